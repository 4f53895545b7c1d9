package mockengine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// serve applies a fault that someone asked for.
func (p *publisher) serve(ctx context.Context, c command, failed *error) (changed bool) {
	err := p.apply(ctx, c.fault)
	c.reply <- err
	if err != nil && !errors.Is(err, errStopped) {
		*failed = err
	}
	return true
}

// dueFaults applies the configured faults whose batch has been made.
func (p *publisher) dueFaults(ctx context.Context) error {
	p.mu.Lock()
	made := p.mu.stats.Batches
	p.mu.Unlock()
	for len(p.faults) > 0 && p.faults[0].Batch <= made {
		f := p.faults[0]
		p.faults = p.faults[1:]
		if err := p.apply(ctx, f); err != nil && !errors.Is(err, errStopped) {
			return err
		}
	}
	return nil
}

func (p *publisher) apply(ctx context.Context, f Fault) error {
	if p.stopped {
		return fmt.Errorf("publisher %d: %s: %w", p.index, f.Kind, errStopped)
	}
	p.log.Info("fault", "publisher", p.index, "kind", string(f.Kind), "count", max(f.Count, 1), "sequence", p.sequence)
	n := max(f.Count, 1)
	switch f.Kind {
	case Restart:
		p.lock((*scheduler).restart)
		if err := p.reopen(ctx); err != nil {
			return err
		}
		return p.beginLife()
	case RestartInPlace:
		p.lock((*scheduler).restart)
		if err := p.pub.ForgetReplay(); err != nil {
			return fmt.Errorf("publisher %d: forget replay: %w", p.index, err)
		}
		return p.beginLife()
	case Lose:
		p.lose += n
	case Drop:
		p.drop += n
	case ResetSequence:
		if err := p.pub.ForgetReplay(); err != nil {
			return fmt.Errorf("publisher %d: forget replay: %w", p.index, err)
		}
		p.sequence = 0
	case Garbage:
		for range n {
			if err := p.sendGarbage(); err != nil {
				return fmt.Errorf("publisher %d: send garbage: %w", p.index, err)
			}
		}
	case Clear:
		p.lock((*scheduler).clear)
	case Stop:
		p.lock((*scheduler).restart)
		p.stopped = true
		p.mu.Lock()
		p.mu.stats.Stopped = 1
		p.mu.Unlock()
		return p.pub.Close()
	}
	return nil
}

func (p *publisher) lock(fn func(*scheduler)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fn(p.mu.sched)
}

// restart loses everything that the process had in memory.
func (s *scheduler) restart() { s.reset(false) }

// clear resets the prefix cache. Running requests are taken back and begin again,
// because a cache in use cannot be reset.
func (s *scheduler) clear() {
	s.reset(true)
	s.emitCleared()
	s.admitWaiting()
}

// reopen closes the sockets and opens them on the same addresses. The system may
// need a moment to give a port back.
func (p *publisher) reopen(ctx context.Context) error {
	if err := p.pub.Close(); err != nil {
		return fmt.Errorf("publisher %d: close: %w", p.index, err)
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		err := p.open()
		if err == nil || !errors.Is(err, transport.ErrAddressInUse) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// sendGarbage sends the next of a few messages that are no batches. Those with a
// proper sequence frame use up their number, as a batch that failed on its way
// would.
func (p *publisher) sendGarbage() error {
	topic := []byte(p.topic)
	var err error
	switch p.garbage % 6 {
	case 0: // payload alone
		err = p.pub.SendRaw([]byte("garbage"))
	case 1: // no sequence frame
		err = p.pub.SendRaw(topic, []byte("garbage"))
	case 2: // sequence frame of seven bytes
		err = p.pub.SendRaw(topic, []byte("1234567"), []byte("garbage"))
	case 3: // text where msgpack should be
		err = p.pub.Publish(p.topic, p.sequence, []byte("{\"type\": \"BlockStored\"}"))
		p.sequence++
	case 4: // an array that promises 2^32-1 events and ends
		err = p.pub.Publish(p.topic, p.sequence, []byte{0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff})
		p.sequence++
	case 5: // nothing at all
		err = p.pub.Publish(p.topic, p.sequence, []byte{0xc1})
		p.sequence++
	}
	p.garbage++
	p.mu.Lock()
	p.mu.stats.Garbage++
	p.mu.Unlock()
	return err
}
