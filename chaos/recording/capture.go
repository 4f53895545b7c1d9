package recording

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// CaptureConfig says what to record.
type CaptureConfig struct {
	Subscribe transport.SubscribeConfig
	// Batches ends the capture after so many batches; 0 = when the context is done.
	Batches uint64
}

// CaptureStats counts what has been recorded.
type CaptureStats struct {
	Batches, Bytes uint64
	Skipped        uint64 // messages that are no batches
	Gaps           uint64 // batches after which the sequence did not go on by one
	Connects       uint64
}

// Capture writes the batches of one publisher to a recording.
type Capture struct {
	cfg CaptureConfig
	out *Writer
	end context.CancelFunc
	mu  struct {
		sync.Mutex
		stats CaptureStats
		last  uint64
		err   error
	}
}

// NewCapture writes the header of a recording that begins now.
func NewCapture(w io.Writer, cfg CaptureConfig) (*Capture, error) {
	if cfg.Subscribe.Endpoint == "" {
		return nil, fmt.Errorf("%w: no endpoint", ErrConfig)
	}
	out, err := NewWriter(w, time.Now())
	if err != nil {
		return nil, err
	}
	return &Capture{cfg: cfg, out: out}, nil
}

// Stats returns the counts. Safe from any goroutine.
func (c *Capture) Stats() CaptureStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.stats
}

// Run records until ctx is done or enough batches were seen, and flushes.
func (c *Capture) Run(ctx context.Context, net transport.Network) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.end = cancel
	loop, err := net.NewLoop("capture")
	if err != nil {
		return fmt.Errorf("capture %s: %w", c.cfg.Subscribe.Endpoint, err)
	}
	loop.Post(func() {
		if _, err := loop.Subscribe(c.cfg.Subscribe, (*captureHandler)(c)); err != nil {
			c.fail(err)
		}
	})
	err = loop.Run(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err = errors.Join(err, c.mu.err, c.out.Flush()); err != nil {
		return fmt.Errorf("capture %s: %w", c.cfg.Subscribe.Endpoint, err)
	}
	return nil
}

func (c *Capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.err == nil {
		c.mu.err = err
	}
	c.end()
}

// captureHandler runs on the loop.
type captureHandler Capture

// OnMessage implements transport.SubscribeHandler.
func (h *captureHandler) OnMessage(frames [][]byte) {
	c := (*Capture)(h)
	topic, seq, payload, err := engine.ParseLive(frames)
	c.mu.Lock()
	s := &c.mu.stats
	full := c.mu.err != nil || c.cfg.Batches > 0 && s.Batches >= c.cfg.Batches
	if full {
		c.mu.Unlock()
		return
	}
	if err != nil {
		s.Skipped++
		c.mu.Unlock()
		return
	}
	if s.Batches > 0 && seq != c.mu.last+1 {
		s.Gaps++
	}
	c.mu.last = seq
	s.Batches++
	s.Bytes += uint64(len(payload))
	done := s.Batches == c.cfg.Batches
	c.mu.Unlock()
	if err := c.out.Write(time.Now(), seq, string(topic), payload); err != nil {
		c.fail(err)
	} else if done {
		c.end()
	}
}

// OnConnect implements transport.SubscribeHandler.
func (h *captureHandler) OnConnect() {
	c := (*Capture)(h)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.stats.Connects++
}

// OnDisconnect implements transport.SubscribeHandler.
func (h *captureHandler) OnDisconnect() {}
