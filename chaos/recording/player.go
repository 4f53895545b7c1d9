package recording

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// Errors of players and captures.
var (
	// ErrConfig is wrapped by errors about values that cannot be used.
	ErrConfig = errors.New("invalid recording configuration")
	// ErrState is wrapped when a method is called at the wrong time.
	ErrState = errors.New("wrong state")
)

// PlayerConfig says how to publish a recording.
type PlayerConfig struct {
	Path string
	// Endpoint is the PUB address, bound (or dialled with Connect); ReplayEndpoint
	// that of the replay socket, empty = none.
	Endpoint, ReplayEndpoint string
	Connect                  bool
	FourFrames               bool // replies of the replay socket carry the topic
	Buffer, HighWater        int  // as in transport.PublisherConfig
	// Speedup plays the recorded times that many times faster; 0 = not by time.
	Speedup float64
	// Rate publishes so many batches in a second instead, evenly. With both at 0
	// the rate is 2,000, so that high-water marks are not overrun.
	Rate float64
	// Settle is the pause before the first batch, for subscribers to connect.
	Settle time.Duration
	// Stay keeps the sockets open, answering replays, until the context is done.
	Stay bool
}

// Validate names the first value that cannot be used.
func (c *PlayerConfig) Validate() error {
	switch {
	case c.Path == "":
		return fmt.Errorf("%w: no file", ErrConfig)
	case c.Endpoint == "":
		return fmt.Errorf("%w: no endpoint", ErrConfig)
	case !(c.Speedup >= 0) || math.IsInf(c.Speedup, 0):
		return fmt.Errorf("%w: speed-up is %v, want 0 or more", ErrConfig, c.Speedup)
	case !(c.Rate >= 0) || math.IsInf(c.Rate, 0):
		return fmt.Errorf("%w: rate is %v, want 0 or more", ErrConfig, c.Rate)
	case c.Speedup > 0 && c.Rate > 0:
		return fmt.Errorf("%w: speed-up and rate exclude each other", ErrConfig)
	case c.Settle < 0:
		return fmt.Errorf("%w: settle is %s, want 0 or more", ErrConfig, c.Settle)
	}
	return nil
}

// PlayerStats counts what has been published.
type PlayerStats struct {
	Batches, Bytes uint64
	At             time.Duration // recorded time of the latest batch
	Lag            time.Duration // behind the schedule
}

// Player publishes one recording. NewPlayer, Open and Run are called once each, in
// this order; the rest may be called from any goroutine after Open.
type Player struct {
	cfg PlayerConfig
	pub transport.Publisher
	mu  struct {
		sync.Mutex
		stats PlayerStats
	}
}

// NewPlayer checks the configuration. It does no I/O.
func NewPlayer(cfg PlayerConfig) (*Player, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Speedup == 0 && cfg.Rate == 0 {
		cfg.Rate = 2000
	}
	return &Player{cfg: cfg}, nil
}

// Open opens the sockets.
func (p *Player) Open(net transport.Network) error {
	if p.pub != nil {
		return fmt.Errorf("open player: %w: it is open", ErrState)
	}
	pub, err := net.NewPublisher(transport.PublisherConfig{
		Endpoint: p.cfg.Endpoint, ReplayEndpoint: p.cfg.ReplayEndpoint, Connect: p.cfg.Connect,
		FourFrames: p.cfg.FourFrames, Buffer: p.cfg.Buffer, HighWater: p.cfg.HighWater,
	})
	if err != nil {
		return fmt.Errorf("open player: %w", err)
	}
	p.pub = pub
	return nil
}

// Endpoint and ReplayEndpoint return the addresses in use, with real ports.
func (p *Player) Endpoint() string       { return p.pub.Endpoint() }
func (p *Player) ReplayEndpoint() string { return p.pub.ReplayEndpoint() }

// Stats returns the counts.
func (p *Player) Stats() PlayerStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.stats
}

// Run publishes the file and closes the sockets. It returns nil at its end (with
// Stay: when ctx is done) or when ctx is done. The frames before a damaged one are
// published; the error names it.
func (p *Player) Run(ctx context.Context) error {
	if p.pub == nil {
		return fmt.Errorf("run player: %w: it is not open", ErrState)
	}
	err := p.play(ctx)
	if err == nil && p.cfg.Stay {
		<-ctx.Done()
	}
	return errors.Join(err, p.pub.Close())
}

func (p *Player) play(ctx context.Context) error {
	f, err := os.Open(p.cfg.Path)
	if err != nil {
		return fmt.Errorf("play: %w", err)
	}
	defer f.Close()
	r, err := NewReader(f)
	if err != nil {
		return fmt.Errorf("play %s: %w", p.cfg.Path, err)
	}
	if !sleep(ctx, p.cfg.Settle) {
		return nil
	}
	start := time.Now()
	var first time.Duration
	for n := 0; ; n++ {
		frame, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("play %s: %w", p.cfg.Path, err)
		}
		if n == 0 {
			first = frame.At
		}
		due := time.Duration(float64(n) / max(p.cfg.Rate, 1e-9) * float64(time.Second))
		if p.cfg.Speedup > 0 {
			due = time.Duration(float64(frame.At-first) / p.cfg.Speedup)
		}
		ahead := time.Until(start.Add(due))
		if !sleep(ctx, ahead) {
			return nil
		}
		if err := p.pub.Publish(frame.Topic, frame.Sequence, frame.Payload); err != nil {
			return fmt.Errorf("play %s: batch %d: %w", p.cfg.Path, frame.Sequence, err)
		}
		p.mu.Lock()
		p.mu.stats.Batches++
		p.mu.stats.Bytes += uint64(len(frame.Payload))
		p.mu.stats.At = frame.At
		p.mu.stats.Lag = max(-ahead, 0)
		p.mu.Unlock()
	}
}

// sleep waits for d; false = ctx is done.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
