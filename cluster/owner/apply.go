package owner

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// frame applies a frame if its copy is open, of this life, written by the session of w,
// and not fenced off; otherwise it is ignored and counted.
func (w *worker) frame(ctx context.Context, m *copywire.Message) error {
	h := m.Frame.Header()
	sl, r := w.o.table.find(h.Group, h.Partition, h.Slot)
	if r == nil || sl.life.Load() != h.Life {
		w.o.count.ignored[ignoredLife].Add(1)
		return nil
	}
	if t := sl.tenure.Load(); h.Tenure != t && !w.o.cfg.broken.oldTenure {
		if h.Tenure < t {
			w.o.count.ignored[ignoredTenure].Add(1)
			return nil
		}
		if ok, err := w.raise(ctx, sl, h); !ok {
			return err
		}
	}
	s := r.state.Load()
	if (phase(s) < filled || carrierOf(s) != w.id) && !w.o.cfg.broken.closedFrame {
		w.o.count.ignored[ignoredClosed].Add(1)
		return nil
	}
	r.touch(s)
	if r.tenure.Load() != h.Tenure {
		r.tenure.Store(h.Tenure)
	}
	r.sequence.Store(h.Sequence)
	w.o.count.frames.Add(1)
	return w.write(r, h, m.Frame)
}

// write hands a frame to the index. One that breaks the format closes its copy; other
// errors end the session.
func (w *worker) write(r *record, h indexer.Header, f indexer.Frame) error {
	err := w.writer.Write(f)
	if errors.Is(err, indexer.ErrFrame) {
		w.o.fault(r, h, err)
		return nil
	}
	return err
}

// raise makes the tenure of h the highest of its slot. If it was not, it waits until
// nothing of older ones is on its way to the index. It reports whether h may be
// applied.
func (w *worker) raise(ctx context.Context, sl *slot, h indexer.Header) (bool, error) {
	before, ok := sl.raise(h.Tenure)
	if !ok && !w.o.cfg.broken.oldTenure {
		w.o.count.ignored[ignoredTenure].Add(1)
		return false, nil
	}
	if before == 0 || before >= h.Tenure {
		return true, nil
	}
	if err := w.quiesce(ctx, h.Group, h.Slot); err != nil {
		return false, fmt.Errorf("tenure %d of slot %d of group %d: %w", h.Tenure, h.Slot, h.Group, err)
	}
	return true, nil
}

// quiesce waits until the index has applied what others have said of a slot. What
// the session of w said is applied first: so no two of them wait for each other.
func (w *worker) quiesce(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
	if w.o.cfg.broken.adoptNoWait {
		return nil
	}
	if err := w.writer.Flush(ctx); err != nil {
		return err
	}
	w.settle()
	defer w.unsettle()
	return w.o.quiesce(ctx, g, s, w)
}

func (o *Owner) quiesce(ctx context.Context, g indexer.GroupID, s indexer.Slot, but *worker) error {
	if err := o.awaitAll(ctx, but); err != nil {
		return err
	}
	if o.cfg.FlushLocal != nil {
		return o.cfg.FlushLocal(ctx, g, s)
	}
	return nil
}

// fill takes a part of a fill. From the first on the copy is that session's; frames
// are taken behind the last, and it is open when the index has applied that.
func (w *worker) fill(ctx context.Context, m *copywire.Message) error {
	h := m.Frame.Header()
	if !inBounds(h.Group, h.Slot) || h.Partition >= maxPartitions {
		w.malformed(fmt.Errorf("%w: fill of slot %d of group %d, partition %d", copywire.ErrMessage, h.Slot, h.Group, h.Partition))
		return nil
	}
	g, sl := w.o.table.slot(h.Group, h.Slot)
	r := w.o.table.ensureRecord(g, h.Partition, h.Slot)
	if m.First {
		if ok, err := w.beginFill(ctx, g, sl, r, h); !ok {
			return err
		}
	}
	s := r.state.Load()
	switch {
	case sl.life.Load() != h.Life:
		w.o.count.ignored[ignoredLife].Add(1)
		return nil
	case h.Tenure != sl.tenure.Load():
		w.o.count.ignored[ignoredTenure].Add(1)
		return nil
	case phase(s) != filling || carrierOf(s) != w.id:
		w.o.count.ignored[ignoredClosed].Add(1)
		return nil
	}
	if err := w.write(r, h, m.Frame); err != nil || !m.Last {
		return err
	}
	r.tenure.Store(h.Tenure)
	r.sequence.Store(h.Sequence)
	if w.o.cfg.broken.openFaulty {
		r.state.Store(makeState(filled, w.id, 0) | written)
	} else if !r.state.CompareAndSwap(s, makeState(filled, w.id, 0)|written) {
		return nil // refused meanwhile
	}
	w.filled = append(w.filled, r)
	w.o.count.fills.Add(1)
	return nil
}

func (w *worker) beginFill(ctx context.Context, g *group, sl *slot, r *record, h indexer.Header) (bool, error) {
	if !sl.begin(g, h.Slot, h.Life) {
		w.o.count.ignored[ignoredLife].Add(1)
		return false, nil
	}
	if ok, err := w.raise(ctx, sl, h); !ok {
		return false, err
	}
	if s := r.state.Load(); phase(s) != closed && carrierOf(s) != w.id {
		// Another writer of the same tenure. There is none, unless this node took over
		// from itself.
		r.close(carrierOf(s))
		if err := w.quiesce(ctx, h.Group, h.Slot); err != nil {
			return false, err
		}
	}
	sl.outdate(h.Tenure)
	r.state.Store(makeState(filling, w.id, 0) | written)
	return true, nil
}

// openFresh opens copies of a fresh life: empty, so complete.
func (w *worker) openFresh(ctx context.Context, m *copywire.Message) error {
	g, h, err := w.claim(ctx, m)
	if g == nil {
		return err
	}
	for _, h.Partition = range m.Partitions {
		if h.Partition >= maxPartitions {
			w.malformed(fmt.Errorf("%w: open of %v, partition %d", copywire.ErrMessage, m.SlotLife, h.Partition))
			continue
		}
		r := w.o.table.ensureRecord(g, h.Partition, m.Slot)
		if !w.o.openRecord(r, w.id, m.Tenure) {
			// Its sender does not know that there was content: it has to be filled.
			w.o.count.ignored[ignoredReopen].Add(1)
			w.o.report(h, w.carrier, "opened as new, but it has had content")
		}
	}
	return nil
}

// claim makes the life and the tenure of a message those of its slot. No group: the
// message is not to be carried out.
func (w *worker) claim(ctx context.Context, m *copywire.Message) (*group, indexer.Header, error) {
	h := indexer.Header{Group: m.Group, Slot: m.Slot, Life: m.Life, Tenure: m.Tenure}
	if !inBounds(m.Group, m.Slot) {
		w.malformed(fmt.Errorf("%w: %v of %v", copywire.ErrMessage, m.Kind, m.SlotLife))
		return nil, h, nil
	}
	g, sl := w.o.table.slot(m.Group, m.Slot)
	if !sl.begin(g, m.Slot, m.Life) {
		w.o.count.ignored[ignoredLife].Add(1)
		return nil, h, nil
	}
	if ok, err := w.raise(ctx, sl, h); !ok {
		return nil, h, err
	}
	return g, h, nil
}

// openRecord opens an empty copy. It reports whether it is one.
func (o *Owner) openRecord(r *record, carrier uint32, tenure uint64) bool {
	s := r.state.Load()
	if s&written != 0 && !o.cfg.broken.reopen {
		r.state.CompareAndSwap(s, written)
		return false
	}
	r.tenure.Store(tenure)
	r.sequence.Store(0)
	return r.state.CompareAndSwap(s, makeState(open, carrier, o.version.Add(1)))
}

// close closes copies that the session carries.
func (w *worker) close(m *copywire.Message) {
	for _, p := range m.Partitions {
		sl, r := w.o.table.find(m.Group, p, m.Slot)
		switch {
		case r == nil || sl.life.Load() != m.Life:
			w.o.count.ignored[ignoredLife].Add(1)
		case m.Tenure < sl.tenure.Load():
			w.o.count.ignored[ignoredTenure].Add(1)
		default:
			r.close(w.id)
		}
	}
}

func (w *worker) cursor(ctx context.Context, m *copywire.Message) error {
	if gr := at(&w.o.table.groups, int(m.Group)); gr == nil || at(&gr.slots, int(m.Slot)) == nil {
		w.o.count.ignored[ignoredLife].Add(1)
		return nil
	}
	g, sl := w.o.table.slot(m.Group, m.Slot)
	w.o.noteCursor(g, sl, m.Cursor())
	return nil
}

// noteCursor keeps the cursor of a slot, unless its tenure is fenced off. It holds for what
// its sender has open here. A copy that was kept when an earlier session ended, and has not
// been filled since, lacks what came between, so nobody may go on with it any more.
func (o *Owner) noteCursor(g *group, sl *slot, c copywire.Cursor) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	switch {
	case sl.life.Load() != c.Life:
		o.count.ignored[ignoredLife].Add(1)
	case c.Tenure < sl.tenure.Load():
		o.count.ignored[ignoredTenure].Add(1)
	default:
		if old := sl.mu.cursor; (old.Life != c.Life || c.Sequence > old.Sequence) && sl.keeps.Swap(false) && !o.cfg.broken.cursorForKept {
			for _, r := range g.ofSlot(c.Slot) {
				r.give()
			}
		}
		sl.mu.cursor = c
	}
}

// outdate forgets the cursor of an earlier tenure: what a later one fills may not be as
// far, since it was the best that could be reached.
func (sl *slot) outdate(tenure uint64) {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if sl.mu.cursor.Tenure < tenure {
		sl.mu.cursor = copywire.Cursor{}
	}
}

// malformed gives up all copies of the session: it is not known which of them the
// message was for.
func (w *worker) malformed(err error) {
	w.o.count.ignored[ignoredMalformed].Add(1)
	if !w.odd {
		w.odd = true
		w.o.log.Error("malformed message: all copies of the session are closed", "session", w.carrier.session, "error", err)
	}
	for k, r := range w.o.table.all() {
		if r.close(w.id) {
			w.o.report(w.o.headerOf(k, r), w.carrier, "a message of the session was malformed")
		}
	}
}
