package transporttest

import (
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"
)

func bigEndian(b []byte) uint64 { return binary.BigEndian.Uint64(b) }

// countdown waits for a number of things to happen.
type countdown struct {
	left atomic.Int64
	zero chan struct{}
}

func newCountdown(n int64) *countdown {
	c := &countdown{zero: make(chan struct{})}
	c.left.Store(n)
	return c
}

func (c *countdown) done() {
	if c.left.Add(-1) == 0 {
		close(c.zero)
	}
}

// await waits, and calls again every few hundredths of a second.
func (c *countdown) await(t testing.TB, what string, again func()) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-c.zero:
			return
		case <-tick.C:
			if again != nil {
				again()
			}
		case <-deadline.C:
			t.Fatalf("waited %v for %s: %d are missing", patience, what, c.left.Load())
		}
	}
}
