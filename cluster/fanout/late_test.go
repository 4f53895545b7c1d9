package fanout

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

// lateIndex applies frames some time after they were written, as lanes do: each writer
// has a ring to each lane, and rings know nothing of each other.
type lateIndex struct {
	*reference.Index
	seed atomic.Uint64
	done sync.WaitGroup
}

const lateLanes = 2

func newLateIndex(h indexer.FaultHandler) indexer.Index {
	return &lateIndex{Index: reference.New(reference.Config{OnFault: h})}
}

func (x *lateIndex) Close() error {
	x.done.Wait()
	return x.Index.Close()
}

type lateWriter struct {
	to    indexer.Writer
	rings [lateLanes]*lateRing
}

type lateRing struct {
	frames           chan indexer.Frame
	written, applied atomic.Uint64
}

func (x *lateIndex) NewWriter() indexer.Writer {
	w := &lateWriter{to: x.Index.NewWriter()}
	for i := range w.rings {
		r := &lateRing{frames: make(chan indexer.Frame, 64)}
		w.rings[i] = r
		rng := rand.New(rand.NewPCG(x.seed.Add(1), 8))
		x.done.Go(func() {
			for f := range r.frames {
				if rng.IntN(4) == 0 {
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
				}
				_ = x.Index.NewWriter().Write(f)
				r.applied.Add(1)
			}
		})
	}
	return w
}

func (w *lateWriter) Write(f indexer.Frame) error {
	if err := f.Validate(); err != nil {
		return err
	}
	r := w.rings[int(f.Header().Partition)%lateLanes]
	r.written.Add(1)
	r.frames <- slices.Clone(f)
	return nil
}

func (w *lateWriter) Written() (n uint64) {
	for _, r := range w.rings {
		n += r.written.Load()
	}
	return n
}

func (w *lateWriter) Applied() (n uint64) {
	for _, r := range w.rings {
		n += r.applied.Load()
	}
	return n
}

func (w *lateWriter) AppendMark(dst []uint64) []uint64 {
	for _, r := range w.rings {
		dst = append(dst, r.written.Load())
	}
	return dst
}

func (w *lateWriter) Passed(mark []uint64) bool {
	for i, r := range w.rings {
		if r.applied.Load() < mark[i] {
			return false
		}
	}
	return true
}

func (w *lateWriter) Flush(ctx context.Context) error {
	for m := w.AppendMark(nil); !w.Passed(m); {
		if err := sleep(ctx, 50*time.Microsecond); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
	}
	return nil
}

func (w *lateWriter) Close() {
	_ = w.Flush(context.Background())
	for _, r := range w.rings {
		close(r.frames)
	}
}
