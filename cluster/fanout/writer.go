package fanout

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// writer is the way in for the frames of one ingest loop. It implements indexer.Writer:
// Written counts frames that have been given away, Applied those that every copy that
// may be read has applied.
type writer struct {
	f      *Fanout
	local  indexer.Writer
	marker marker // local, if it can
	arenas []arena
	counts []sendCount // by number of the peer; written by one goroutine

	begun   atomic.Uint64 // calls of Write that may have reached the local index
	written atomic.Uint64
	acks    checkpoints
	closed  atomic.Bool
}

// marker is kept by index writers with several lanes: counting does not say which
// frames have been applied.
type marker interface {
	// AppendMark appends what stands for all frames written so far.
	AppendMark(dst []uint64) []uint64
	// Passed reports whether all of them have been applied. Any goroutine may ask.
	Passed(mark []uint64) bool
}

// NewWriter returns the writer of one loop. One goroutine may use it; Applied may be
// called by any.
func (f *Fanout) NewWriter() indexer.Writer {
	w := &writer{f: f, local: f.cfg.Index.NewWriter(), counts: make([]sendCount, maxPeers)}
	w.marker, _ = w.local.(marker)
	f.writers.mu.Lock()
	f.writers.all = append(f.writers.all, w)
	f.writers.mu.Unlock()
	return w
}

// Write implements indexer.Writer. A frame of a slot that this node does not write (any
// more) goes nowhere, and is counted.
func (w *writer) Write(fr indexer.Frame) error {
	t := w.f.table.Load()
	if len(fr) < frameHeader || int(uint32(fr[0])) != len(fr) {
		return fmt.Errorf("write frame: %w: %d words", indexer.ErrFrame, len(fr))
	}
	h := fr.Header()
	if int(h.Partition) >= t.partitions {
		return fmt.Errorf("write frame: %w: partition %d of %d", indexer.ErrFrame, h.Partition, t.partitions)
	}
	s := t.slots[keyOf(h.Group, h.Slot)]
	if s == nil || s.name.Life != h.Life || s.tenure != h.Tenure {
		w.f.count.strayed.Add(1)
		w.begun.Add(1)
		w.written.Add(1)
		return nil
	}
	w.begun.Add(1)
	s.mu.Lock()
	if s.gone {
		s.mu.Unlock()
		w.f.count.strayed.Add(1)
		w.written.Add(1)
		return nil
	}
	// The table may have changed since: a receiver that is new must not be missed.
	t = w.f.table.Load()
	err := s.write(w, t, h, fr)
	s.mu.Unlock()
	n := w.written.Add(1)
	if n%checkpointEvery == 0 {
		w.acks.add(w)
	}
	if err != nil {
		return fmt.Errorf("write frame: %w", err)
	}
	return nil
}

// sent counts a frame that went to a peer.
func (w *writer) sent(p *peer, payload []byte, blocks uint64) {
	c := &p.count.sent
	if p.index < len(w.counts) {
		c = &w.counts[p.index]
	}
	c.frames.Add(1)
	c.blocks.Add(blocks)
	c.bytes.Add(uint64(len(payload)))
}

// Written implements indexer.Writer.
func (w *writer) Written() uint64 { return w.written.Load() }

// Applied implements indexer.Writer. It is coarse: several frames become applied at
// once.
func (w *writer) Applied() uint64 { return w.acks.applied(w) }

// Flush implements indexer.Writer. It waits for every peer that may answer reads.
func (w *writer) Flush(ctx context.Context) error {
	target := w.written.Load()
	for wait := 50 * time.Microsecond; w.Applied() < target; wait = min(2*wait, 2*time.Millisecond) {
		if err := sleep(ctx, wait); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
	}
	return nil
}

// Close implements indexer.Writer. Peers that do not acknowledge are not waited for
// longer than Config.CloseTimeout.
func (w *writer) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), w.f.cfg.CloseTimeout)
	defer cancel()
	_ = w.Flush(ctx)
	if w.closed.Swap(true) {
		return
	}
	w.local.Close()
}

// mark appends what stands for all that has been written to the local index.
func (w *writer) mark(dst []uint64) []uint64 {
	if w.marker != nil {
		return w.marker.AppendMark(dst)
	}
	return append(dst, w.local.Written())
}

func (w *writer) passed(mark []uint64) bool {
	if w.marker != nil {
		return w.marker.Passed(mark)
	}
	return w.local.Applied() >= mark[0]
}

// awaitLocal waits until the local index has applied all that has been written. It is
// called when a slot changes its loop, which is rare, and lanes are fast.
func (w *writer) awaitLocal() {
	if w.closed.Load() {
		return // Close has waited
	}
	for m := w.mark(nil); !w.passed(m) && !w.closed.Load(); {
		time.Sleep(50 * time.Microsecond)
	}
}

// sleep waits, or returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

const frameHeader = 6 // words, see indexer.Frame

// maxPeers is for how many peers a writer counts by itself; others share counters.
const maxPeers = 64
