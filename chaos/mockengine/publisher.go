package mockengine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// Endpoint says where a publisher is and what it speaks.
type Endpoint struct {
	Instance  uint64
	Rank      uint32
	Format    Format
	BlockSize int
	Publish   string
	Replay    string // empty = none
}

// publisher is one engine process: a scheduler, its sockets and its sequence. One
// goroutine runs it.
type publisher struct {
	cfg   *Config
	net   transport.Network
	index int
	topic string
	at    Endpoint
	prof  profile
	enc   Encoder
	log   *slog.Logger

	commands chan command
	ended    chan struct{} // closed when run has returned

	pub      transport.Publisher
	sequence uint64
	faults   []Fault // that wait for their batch
	lose     int     // batches still to be withheld
	drop     int     // batches still to be lost
	stopped  bool
	garbage  int
	payload  []byte

	start    time.Time // wall time of trace time 0
	debt     time.Time // the rate limit is used up until then
	sent     time.Time // of the latest batch
	onFinish func()    // called once, when the trace has been played

	mu struct {
		sync.Mutex
		sched *scheduler
		stats Stats
	}
}

type command struct {
	fault Fault
	reply chan error
}

// errStopped is returned for faults at a publisher that a Stop has ended.
var errStopped = errors.New("publisher is stopped")

func (p *publisher) open() error {
	pub, replay := p.cfg.endpoints(p.index)
	if p.at.Publish != "" { // a restarted process has the addresses it had
		pub, replay = p.at.Publish, p.at.Replay
	}
	s, err := p.net.NewPublisher(transport.PublisherConfig{
		Endpoint: pub, Connect: p.cfg.Connect, ReplayEndpoint: replay,
		Buffer: p.cfg.Buffer, HighWater: p.cfg.HighWater, FourFrames: p.prof.fourFrames,
	})
	if err != nil {
		return fmt.Errorf("publisher %d: open %s: %w", p.index, pub, err)
	}
	p.pub = s
	if p.at.Publish == "" {
		p.at.Publish, p.at.Replay = s.Endpoint(), s.ReplayEndpoint()
	}
	return nil
}

// run plays the trace, then serves faults (with Stay) until ctx is done.
func (p *publisher) run(ctx context.Context) error {
	defer close(p.ended)
	p.start = time.Now()
	if err := p.begin(ctx); err != nil {
		return err
	}
	finished := false
	for {
		p.mu.Lock()
		next, more := p.mu.sched.nextAt()
		due, pending := p.mu.sched.out.due, len(p.mu.sched.out.events) > 0
		p.mu.Unlock()
		var err error
		switch {
		case p.stopped:
			p.finish(&finished)
			if !p.cfg.Stay {
				return nil
			}
			return p.idle(ctx)
		case pending && (!more || due <= next):
			if changed := p.wait(ctx, due, &err); err == nil && !changed {
				err = p.flush(ctx)
			}
		case more:
			if changed := p.wait(ctx, next, &err); err == nil && !changed {
				p.mu.Lock()
				p.mu.sched.step()
				p.mu.Unlock()
			}
		default:
			p.finish(&finished)
			if !p.cfg.Stay {
				return nil
			}
			err = p.idle(ctx)
			if err == nil && ctx.Err() == nil {
				continue // a fault gave it something to do
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (p *publisher) finish(finished *bool) {
	if *finished {
		return
	}
	*finished = true
	p.mu.Lock()
	p.mu.stats.Done = 1
	p.mu.Unlock()
	p.onFinish()
}

// wait sleeps until trace time at; changed says that a fault came first, so that
// the caller has to look again.
func (p *publisher) wait(ctx context.Context, at time.Duration, failed *error) (changed bool) {
	d := time.Duration(0)
	if p.cfg.Speedup > 0 {
		d = time.Until(p.start.Add(time.Duration(float64(at) / p.cfg.Speedup)))
		p.mu.Lock()
		p.mu.stats.Lag = max(-d, 0)
		p.mu.Unlock()
	}
	return p.sleep(ctx, d, failed)
}

// sleep waits and meanwhile serves faults and heartbeats. d <= 0 only looks whether
// there is a fault.
func (p *publisher) sleep(ctx context.Context, d time.Duration, failed *error) (changed bool) {
	if d <= 0 {
		select {
		case c := <-p.commands:
			return p.serve(ctx, c, failed)
		default:
			return false
		}
	}
	end := time.Now().Add(d)
	for {
		left := time.Until(end)
		if left <= 0 {
			return false
		}
		beat := false
		if h := p.prof.heartbeat; h > 0 && !p.stopped {
			if quiet := h - time.Since(p.sent); quiet < left {
				left, beat = max(quiet, 0), true
			}
		}
		timer := time.NewTimer(left)
		select {
		case <-ctx.Done():
			timer.Stop()
			return true
		case c := <-p.commands:
			timer.Stop()
			return p.serve(ctx, c, failed)
		case <-timer.C:
			if beat {
				if err := p.publish(nil, nil); err != nil {
					*failed = err
					return true
				}
			}
		}
	}
}

// idle serves faults after the trace. It returns when a fault has changed something
// or ctx is done.
func (p *publisher) idle(ctx context.Context) error {
	var err error
	for ctx.Err() == nil && err == nil {
		changed := p.sleep(ctx, time.Hour, &err)
		if changed && !p.stopped {
			break
		}
	}
	return err
}

// flush publishes the collected batch, at the pace that the limits allow.
func (p *publisher) flush(ctx context.Context) error {
	p.mu.Lock()
	out := p.mu.sched.take()
	p.mu.Unlock()
	if err := p.publish(out.events, out.records); err != nil {
		return err
	}
	if err := p.dueFaults(ctx); err != nil {
		return err
	}
	return p.pace(ctx, out.events)
}

// pace makes the goroutine sleep off what its batch used of the rate limits, beyond
// a burst of a quarter of a second.
func (p *publisher) pace(ctx context.Context, events []engine.Event) error {
	cost := 0.0
	if r := p.cfg.MaxBatchRate; r > 0 {
		cost = 1 / r
	}
	if r := p.cfg.MaxBlockRate / float64(p.cfg.Workers*p.cfg.Ranks); r > 0 {
		blocks := 0
		for i := range events {
			blocks += len(events[i].Hashes)
		}
		cost = max(cost, float64(blocks)/r)
	}
	if cost == 0 {
		return nil
	}
	const burst = 250 * time.Millisecond
	now := time.Now()
	if p.debt.Before(now) {
		p.debt = now
	}
	p.debt = p.debt.Add(seconds(cost))
	var err error
	if ahead := p.debt.Sub(now); ahead > burst {
		// A fault may cut the pause short; the debt stays and is slept off later.
		p.sleep(ctx, ahead-burst, &err)
	}
	return err
}

// publish encodes and sends one batch, or loses it when a fault says so.
func (p *publisher) publish(events []engine.Event, records []Record) error {
	seq := p.sequence
	p.sequence++
	fate := Sent
	switch {
	case p.drop > 0:
		p.drop--
		fate = Lost
	case p.lose > 0:
		p.lose--
		fate = Withheld
	}
	now := time.Now()
	batch := engine.Batch{Time: float64(now.UnixMicro()) / 1e6, Rank: int64(p.at.Rank), Events: events}
	var err error
	if p.payload, err = p.enc.AppendBatch(p.payload[:0], &batch); err != nil {
		return fmt.Errorf("publisher %d: encode batch %d as %s: %w", p.index, seq, p.at.Format, err)
	}
	for i := range records {
		r := &records[i]
		r.Publisher, r.Sequence, r.Fate = p.index, seq, fate
		if p.cfg.Sink != nil {
			p.cfg.Sink.Append(*r)
		}
	}
	switch fate {
	case Sent:
		err = p.pub.Publish(p.topic, seq, p.payload)
	case Withheld:
		err = p.pub.Record(p.topic, seq, p.payload)
	}
	if err != nil {
		return fmt.Errorf("publisher %d: publish batch %d: %w", p.index, seq, err)
	}
	p.sent = now
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.stats.Batches++
	switch fate {
	case Sent:
		p.mu.stats.Bytes += uint64(len(p.payload))
	case Withheld:
		p.mu.stats.Withheld++
	case Lost:
		p.mu.stats.Lost++
	}
	return nil
}

// begin begins the first life. Batches that are to be lost from the very first one on
// include what the engine says at its start.
func (p *publisher) begin(ctx context.Context) error {
	for len(p.faults) > 0 && p.faults[0].Batch == 0 && (p.faults[0].Kind == Lose || p.faults[0].Kind == Drop) {
		if err := p.apply(ctx, p.faults[0]); err != nil {
			return err
		}
		p.faults = p.faults[1:]
	}
	if err := p.beginLife(); err != nil {
		return err
	}
	return p.dueFaults(ctx)
}

// beginLife sets the first sequence of a process and says what the engine says.
func (p *publisher) beginLife() error {
	p.sequence = 0
	if p.prof.clockSequence {
		p.sequence = uint64(time.Now().UnixNano())
	}
	p.mu.Lock()
	p.mu.stats.Lives++
	p.mu.Unlock()
	if p.cfg.Sink != nil {
		p.cfg.Sink.Append(Record{Publisher: p.index, Kind: RecordLife, Sequence: p.sequence})
	}
	if !p.prof.clearFirst {
		return nil
	}
	p.mu.Lock()
	p.mu.sched.emitCleared()
	out := p.mu.sched.take()
	p.mu.Unlock()
	return p.publish(out.events, out.records)
}
