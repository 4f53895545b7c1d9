package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport"
)

var (
	// ErrUnknownRank: no source here carries this instance and rank.
	ErrUnknownRank = errors.New("instance or rank not read by this node")
	// ErrState: the listener's state does not allow what was asked.
	ErrState = errors.New("listener state")
	// ErrStopped: the manager does not run (any more).
	ErrStopped = errors.New("ingest stopped")
)

// Status returns a snapshot of every source, ordered by ID. It is at most a few hundred
// milliseconds old and does not disturb the loops. The entries must not be changed.
func (m *Manager) Status() []*SourceStatus {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := make([]*SourceStatus, 0, len(m.mu.entries))
	for _, e := range m.mu.entries {
		if st := e.status.Load(); st != nil {
			out = append(out, st)
		}
	}
	slices.SortFunc(out, func(a, b *SourceStatus) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// RankStatus returns the snapshot of one rank and of its source.
func (m *Manager) RankStatus(instance string, rank uint32) (RankStatus, *SourceStatus, error) {
	e, err := m.find(instance, rank)
	if err != nil {
		return RankStatus{}, nil, err
	}
	st := e.status.Load()
	if st != nil {
		for _, r := range st.Ranks {
			if r.Rank == rank {
				return r, st, nil
			}
		}
	}
	return RankStatus{Rank: rank}, st, nil
}

// Lag returns how long batches took from the engine's clock to being readable.
func (m *Manager) Lag() LagHistogram {
	h := LagHistogram{Bounds: lagBounds[:], Counts: make([]uint64, len(lagBounds)+1)}
	for _, l := range m.loops {
		l.lag.addTo(&h)
	}
	return h
}

// Memory returns the bytes that the translators' maps have taken from the operating
// system, and those in use.
func (m *Manager) Memory() (reserved, used uint64) { return m.memory.Reserved() }

// Loops returns the counters of the loops.
func (m *Manager) Loops() []transport.LoopStats {
	out := make([]transport.LoopStats, len(m.loops))
	for i, l := range m.loops {
		out[i] = l.tl.Stats()
	}
	return out
}

func (m *Manager) find(instance string, rank uint32) (*entry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.mu.byInstance[instance] {
		for _, r := range e.spec.Ranks {
			if r.Rank == rank {
				return e, nil
			}
		}
	}
	return nil, fmt.Errorf("%w: instance %s dp_rank %d", ErrUnknownRank, instance, rank)
}

// on runs fn on a loop and waits for it.
func (l *loop) on(ctx context.Context, fn func()) error {
	done := make(chan struct{})
	if !l.tl.Post(func() { fn(); close(done) }) {
		return ErrStopped
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Pause stops reading the source of a rank (all its ranks, if it has several): its
// socket is closed. Allowed in every state but paused and failed.
func (m *Manager) Pause(ctx context.Context, instance string, rank uint32) error {
	return m.switchSource(ctx, instance, rank, "paused", func(s *source, st State) bool {
		if st == Paused || st == Failed {
			return false
		}
		s.pause()
		return true
	})
}

// Resume reads a paused or failed source again. What happened meanwhile is a lost
// connection: replayed where that proves the same engine run, else a new life.
func (m *Manager) Resume(ctx context.Context, instance string, rank uint32) error {
	return m.switchSource(ctx, instance, rank, "resumed", func(s *source, st State) bool {
		if st != Paused && st != Failed {
			return false
		}
		s.resume()
		return true
	})
}

func (m *Manager) switchSource(ctx context.Context, instance string, rank uint32, what string, do func(*source, State) bool) error {
	e, err := m.find(instance, rank)
	if err != nil {
		return err
	}
	var refused error
	err = e.loop.on(ctx, func() {
		st := e.source.state(e.source.slots[rank])
		if !do(e.source, st) {
			refused = fmt.Errorf("%w: instance %s dp_rank %d cannot be %s from status %s", ErrState, instance, rank, what, st)
			return
		}
		e.source.publish(e.loop.tl.Now())
	})
	return errors.Join(err, refused)
}

// Explain says what is known of engine hashes for one rank: held, waiting for a parent,
// tainted, or not known. The rank's loop answers between two batches.
func (m *Manager) Explain(ctx context.Context, instance string, rank uint32, hashes []uint64) ([]translate.HashState, error) {
	e, err := m.find(instance, rank)
	if err != nil {
		return nil, err
	}
	out := make([]translate.HashState, len(hashes))
	err = e.loop.on(ctx, func() {
		if sl := e.source.slots[rank]; sl != nil && sl.tr != nil {
			for i, h := range hashes {
				out[i] = sl.tr.Lookup(h)
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("explain instance %s dp_rank %d: %w", instance, rank, err)
	}
	return out, nil
}

// Shed asks every translator to drop a share, at most 1, of what it holds in the
// partitions that in accepts, nil = all (rule N8). It returns before they have; in is
// called until then, from the loops.
func (m *Manager) Shed(share float64, in func(indexer.PartitionID) bool) {
	if !(share > 0) {
		return
	}
	type held struct {
		e    *entry
		rank uint32
	}
	var all []held
	m.mu.Lock()
	for _, e := range m.mu.entries {
		if st := e.status.Load(); st != nil {
			for _, r := range st.Ranks {
				if r.Translator.Mapped > 0 {
					all = append(all, held{e, r.Rank})
				}
			}
		}
	}
	m.mu.Unlock()
	for _, h := range all {
		h.e.loop.tl.Post(func() {
			if sl := h.e.source.slots[h.rank]; sl != nil {
				sl.shed(min(1, share), in)
			}
		})
	}
}

func (sl *slot) shed(share float64, in func(indexer.PartitionID) bool) {
	if sl.tr == nil {
		return
	}
	sl.tr.Begin(sl.frameSeq())
	out := sl.tr.Shed(share, in)
	sl.n.Shed += uint64(out.Shed)
	sl.src.loop.wrote(sl.tr.End(sl.src.loop.emitFn))
	sl.src.dirty = true
}

// Flush waits until everything that the loops have read before the call is readable
// in the index.
func (m *Manager) Flush(ctx context.Context) error {
	for _, l := range m.loops {
		var mark uint64
		if err := l.on(ctx, func() { mark = l.w.Written() }); err != nil {
			return err
		}
		poll := time.NewTicker(time.Millisecond)
		defer poll.Stop()
		for l.w.Applied() < mark {
			select {
			case <-poll.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
	return nil
}
