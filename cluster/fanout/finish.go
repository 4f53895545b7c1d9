package fanout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
)

// send sends a part of a fill to a peer, as far as that keeps pace.
func (fl *fill) send(ctx context.Context, payload []byte) error {
	n, err := fl.f.cfg.Links.Send(fl.sess.id, payload)
	if err != nil {
		fl.f.broke(fl.sess)
		return fmt.Errorf("%w: %w", errLost, err)
	}
	fl.sess.sent(n)
	fl.target.count.fillFrames.Add(1)
	fl.target.count.filled.Add(uint64(len(payload)))
	fl.flight = append(fl.flight, inFlight{n, uint64(len(payload))})
	fl.inFlight += int64(len(payload))
	for fl.inFlight > fl.f.cfg.FillWindow {
		news := fl.sess.news.next()
		acked, taken := fl.sess.acked.Load(), 0
		for taken < len(fl.flight) && fl.flight[taken].n <= acked {
			fl.inFlight -= int64(fl.flight[taken].bytes)
			taken++
		}
		fl.flight = fl.flight[taken:]
		if fl.inFlight <= fl.f.cfg.FillWindow {
			break
		}
		if err := fl.await(ctx, news); err != nil {
			return err
		}
	}
	return nil
}

// stall is how long a fill waits for an acknowledgement.
const stall = 5 * time.Second

func (fl *fill) await(ctx context.Context, news <-chan struct{}) error {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-news:
	case <-timer.C:
		return errStalled
	}
	return fl.check()
}

// waiting are the frames that have come since the dump. The caller holds the slot's
// lock.
func (fl *fill) waiting() *queue {
	if fl.from == fromNothing {
		return &fl.s.pend.queue
	}
	return &fl.queue
}

// rest is how many bytes of held frames are sent under the slot's lock at the end of a
// fill: less than a millisecond.
const rest = 64 << 10

// finish sends the held frames until few are left, and with the lock held these and the
// end of the fill.
func (fl *fill) finish(ctx context.Context) error {
	s := fl.s
	for sent := 0; ; {
		s.mu.Lock()
		if err := fl.alive(); err != nil {
			s.mu.Unlock()
			return err
		}
		more, left := fl.waiting().frames[sent:], 0
		for _, e := range more {
			left += len(e.payload)
		}
		if left <= rest {
			err := fl.close(more)
			s.mu.Unlock()
			return err
		}
		more = append([]held(nil), more...)
		s.mu.Unlock()
		for _, e := range more {
			if fl.parts.has(int(e.p)) {
				if err := fl.send(ctx, e.fill()); err != nil {
					return err
				}
			}
		}
		sent += len(more)
	}
}

// open notes that the copies are open. The caller holds the slot's lock.
func (fl *fill) open() {
	c := &fl.s.copies[fl.target.index]
	c.held.andNot(fl.parts)
	c.open.or(fl.parts)
	if fl.s.cursor.Life != 0 {
		if fl.target.self() {
			fl.f.cfg.Owner.CursorLocal(fl.s.cursor)
		} else {
			fl.f.sendControl(fl.sess, copywire.AppendCursor(nil, fl.s.cursor))
		}
	}
	if fl.from == fromNothing {
		fl.s.settlePending(fl.parts)
	}
}

// done ends the fill, however it went.
func (fl *fill) done(err error) {
	s, f := fl.s, fl.f
	close(fl.ended)
	s.mu.Lock()
	c := &s.copies[fl.target.index]
	c.fill = nil
	if c.sess == fl.sess {
		c.held.andNot(fl.parts)
	}
	f.release(&fl.queue)
	if err == nil {
		c.backoff = 0
	} else {
		if fl.from == fromNothing {
			s.pend.busy = false
		}
		c.backoff = min(max(2*c.backoff, f.cfg.RetryMin), f.cfg.RetryMax)
		c.retryAt = time.Now().Add(c.backoff)
	}
	s.mu.Unlock()
	switch {
	case err == nil && fl.from != forgotten:
		fl.target.count.fills.Add(1)
	case err != nil:
		fl.target.count.failed.Add(1)
		if !errors.Is(err, context.Canceled) {
			f.log.Info("fill failed; it is tried again", "slot", s.name, "partitions", len(fl.list), "target", fl.target.name, "source", fl.sourceName(), "error", err)
		}
	}
	if f.backlog.Load() == 0 || err != nil {
		f.wakeUp()
	}
}

// fill is the frame as a part of a fill.
func (e held) fill() []byte {
	m, err := copywire.Decode(e.payload)
	if err != nil {
		panic(fmt.Sprintf("fanout: own payload: %v", err)) // pack made it
	}
	return copywire.AppendFill(make([]byte, 0, len(e.payload)), false, false, m.Frame)
}
