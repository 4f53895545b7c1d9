package tree

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// writer is the way in for one thread: a ring to each lane that it has frames for.
type writer struct {
	index   *Index
	rings   []*ring
	written atomic.Uint64
}

// NewWriter implements indexer.Index.
func (x *Index) NewWriter() indexer.Writer {
	w := &writer{index: x, rings: make([]*ring, len(x.lanes))}
	for i, t := range x.threads {
		w.rings[i] = newRing(x.cfg.RingWords)
		t.addRing(w.rings[i])
	}
	return w
}

// Write implements indexer.Writer.
func (w *writer) Write(f indexer.Frame) error {
	if err := f.Validate(); err != nil {
		w.refuse(f)
		return fmt.Errorf("write frame: %w", err)
	}
	h := f.Header()
	i := laneOf(h.Group, h.Partition, len(w.rings))
	r, t := w.rings[i], w.index.threads[i]
	// Counted first: a frame that is applied but not yet counted could stand for one
	// that is counted but not yet applied, in another ring.
	w.written.Add(1)
	if !r.offer(f) {
		r.stalled.Add(1)
		for spins := 0; !r.offer(f); spins++ {
			if t.stop.Load() {
				w.written.Add(^uint64(0))
				return fmt.Errorf("write frame: %w", indexer.ErrClosed)
			}
			t.nudge()
			if spins < 64 {
				runtime.Gosched()
			} else {
				time.Sleep(20 * time.Microsecond)
			}
		}
	}
	t.nudge()
	return nil
}

// refuse counts a frame that breaks the format, with the first lane.
func (w *writer) refuse(indexer.Frame) {
	w.index.threads[0].request(func(l *Lane) { l.faults++ })
}

// Written implements indexer.Writer.
func (w *writer) Written() uint64 { return w.written.Load() }

// Applied implements indexer.Writer.
func (w *writer) Applied() uint64 {
	n := uint64(0)
	for _, r := range w.rings {
		n += r.applied.Load()
	}
	return n
}

// Flush implements indexer.Writer.
func (w *writer) Flush(ctx context.Context) error {
	for spins := 0; w.Applied() < w.Written(); spins++ {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
		for _, t := range w.index.threads {
			if t.stop.Load() {
				return fmt.Errorf("flush: %w", indexer.ErrClosed)
			}
		}
		if spins < 64 {
			runtime.Gosched()
		} else {
			time.Sleep(time.Duration(min(spins, 500)) * 200 * time.Nanosecond)
		}
	}
	return nil
}

// Close implements indexer.Writer.
func (w *writer) Close() {
	_ = w.Flush(context.Background())
	for i, r := range w.rings {
		r.closed.Store(true)
		w.index.threads[i].removeRings()
	}
}
