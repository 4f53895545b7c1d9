package owner

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

// lagIndex is the reference index behind queues, as lanes are: what is written is
// applied later, and not at all while the gate is shut.
type lagIndex struct {
	*reference.Index
	slowTenure atomic.Uint64 // frames of this tenure take longer
	mu         struct {
		sync.Mutex
		shut    bool
		opened  chan struct{} // closed when the gate opens
		writers int
	}
}

func newLagIndex(onFault indexer.FaultHandler) *lagIndex {
	return &lagIndex{Index: reference.New(reference.Config{OnFault: onFault})}
}

func (x *lagIndex) shut() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.mu.shut {
		x.mu.shut, x.mu.opened = true, make(chan struct{})
	}
}

func (x *lagIndex) open() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.shut {
		x.mu.shut = false
		close(x.mu.opened)
	}
}

// pass waits for the gate.
func (x *lagIndex) pass() {
	for {
		x.mu.Lock()
		shut, opened := x.mu.shut, x.mu.opened
		x.mu.Unlock()
		if !shut {
			return
		}
		<-opened
	}
}

type lagWriter struct {
	x       *lagIndex
	inner   indexer.Writer
	frames  chan indexer.Frame
	done    chan struct{}
	written atomic.Uint64
	applied atomic.Uint64
}

func (x *lagIndex) NewWriter() indexer.Writer {
	w := &lagWriter{x: x, inner: x.Index.NewWriter(), frames: make(chan indexer.Frame, 100_000), done: make(chan struct{})}
	x.mu.Lock()
	x.mu.writers++
	x.mu.Unlock()
	go func() {
		defer close(w.done)
		for f := range w.frames {
			x.pass()
			if f.Header().Tenure == x.slowTenure.Load() {
				time.Sleep(10 * time.Millisecond)
			}
			if err := w.inner.Write(f); err != nil {
				panic(err)
			}
			w.applied.Add(1)
		}
	}()
	return w
}

func (w *lagWriter) Write(f indexer.Frame) error {
	if err := f.Validate(); err != nil {
		return err
	}
	w.written.Add(1)
	w.frames <- append(indexer.Frame{}, f...)
	return nil
}

func (w *lagWriter) Written() uint64 { return w.written.Load() }
func (w *lagWriter) Applied() uint64 { return w.applied.Load() }

func (w *lagWriter) Flush(ctx context.Context) error {
	for w.Applied() < w.Written() {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

func (w *lagWriter) Close() {
	close(w.frames)
	<-w.done
	w.x.mu.Lock()
	defer w.x.mu.Unlock()
	w.x.mu.writers--
}
