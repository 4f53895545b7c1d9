package fanout

import (
	"context"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// dumpLocal copies the content of this node's own copies, each between two frames of
// the slot: the frames after it are held for the target.
func (fl *fill) dumpLocal(ctx context.Context) (out []copywire.Copy, err error) {
	for _, p := range fl.list {
		c, err := fl.dumpOne(ctx, p)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// patience is how often a dump of a busy slot waits for a moment without frames before
// it makes one.
const patience = 20

func (fl *fill) dumpOne(ctx context.Context, p indexer.PartitionID) (copywire.Copy, error) {
	s := fl.s
	for try := 0; ; try++ {
		// All frames so far have to be applied, and none may come until the dump is made.
		// The stream does not wait for that but at the last try.
		s.mu.Lock()
		w, count := s.local, s.localCount
		var m []uint64
		if w != nil {
			m = w.mark(nil)
		}
		if try < patience {
			s.mu.Unlock()
		}
		for w != nil && !w.closed.Load() && !w.passed(m) && !s.f.cfg.broken.earlyDump {
			if err := sleep(ctx, 100*time.Microsecond); err != nil {
				if try >= patience {
					s.mu.Unlock()
				}
				return copywire.Copy{}, err
			}
		}
		if try < patience {
			s.mu.Lock()
			if s.localCount != count {
				s.mu.Unlock()
				continue
			}
		}
		c, err := fl.dumpNow(ctx, p)
		s.mu.Unlock()
		return c, err
	}
}

// dumpNow makes the dump, with the slot's lock held.
func (fl *fill) dumpNow(ctx context.Context, p indexer.PartitionID) (copywire.Copy, error) {
	s := fl.s
	if err := fl.alive(); err != nil {
		return copywire.Copy{}, err
	}
	c := copywire.Copy{Partition: p, Tenure: s.tenure, Sequence: s.label[p]}
	if self := s.live(fl.at); self == nil || !self.open.has(int(p)) {
		return c, nil
	}
	err := s.f.cfg.Index.Dump(ctx, s.name.Group, p, s.name.Slot, func(st indexer.Stretch) error {
		c.Stretches = append(c.Stretches, st)
		return nil
	})
	if err != nil {
		return c, err
	}
	// A copy that had to be closed is empty, and that would be taken for its content. All
	// its frames are applied, so its owner would know; nothing is noted that was not.
	if !s.f.cfg.Owner.NoteLocal(s.header(p, s.label[p])) {
		return c, nil
	}
	c.Open = true
	s.copies[fl.target.index].held.add(int(p))
	return c, nil
}

// beginLocal closes this node's copies and waits until all that they got by another
// writer before the fill has been applied.
func (fl *fill) beginLocal(ctx context.Context) error {
	fl.s.mu.Lock()
	for _, p := range fl.list {
		if !fl.f.cfg.Owner.BeginLocal(fl.s.name, fl.s.tenure, p) {
			fl.s.mu.Unlock()
			return errForeign
		}
	}
	w := fl.s.local
	var m []uint64
	if w != nil {
		m = w.mark(nil)
	}
	fl.s.mu.Unlock()
	for w != nil && !w.closed.Load() && !w.passed(m) && !fl.f.cfg.broken.beside {
		if err := sleep(ctx, 100*time.Microsecond); err != nil {
			return err
		}
	}
	return nil
}

// writeLocal writes a part of a fill to this node's index.
func (fl *fill) writeLocal(w *filler, fr indexer.Frame) error {
	if err := w.writer().Write(fr); err != nil {
		return fmt.Errorf("fill this node's copy: %w", err)
	}
	fl.target.count.fillFrames.Add(1)
	fl.target.count.filled.Add(uint64(8 * len(fr)))
	return nil
}

// finishLocal writes the held frames until none is left, and opens the copies. All
// that the worker's writer got is applied then, so that the loop's writer can go on.
func (fl *fill) finishLocal(ctx context.Context, w *filler) error {
	s := fl.s
	for written, try := 0, 0; ; try++ {
		s.mu.Lock()
		err := fl.alive()
		if err != nil {
			s.mu.Unlock()
			return err
		}
		more := fl.waiting().frames[written:]
		if len(more) > 0 || try == 0 {
			more = append([]held(nil), more...)
			if try < patience {
				s.mu.Unlock()
			}
			err = fl.writeHeld(ctx, w, more)
			if try < patience {
				written += len(more)
				if err != nil {
					return err
				}
				continue
			}
			if err != nil {
				s.mu.Unlock()
				return err
			}
		}
		for _, p := range fl.list {
			if !s.f.cfg.Owner.EndLocal(s.name, s.tenure, p, s.label[p]) {
				fl.parts.del(int(p))
				err = errForeign
			}
		}
		fl.open()
		s.mu.Unlock()
		return err
	}
}

// writeHeld writes held frames to this node's index and waits until they are applied.
func (fl *fill) writeHeld(ctx context.Context, w *filler, frames []held) error {
	for _, e := range frames {
		if !fl.parts.has(int(e.p)) {
			continue
		}
		m, err := copywire.Decode(e.payload)
		if err != nil {
			return fmt.Errorf("own payload: %w", err)
		}
		if err := w.writer().Write(m.Frame); err != nil {
			return fmt.Errorf("fill this node's copy: %w", err)
		}
	}
	if fl.f.cfg.broken.beside {
		return nil
	}
	return w.writer().Flush(ctx)
}

// selfFill enters or removes a fill of this node's own copies.
func (f *Fanout) selfFill(fl *fill, begin bool) {
	f.selfFills.mu.Lock()
	defer f.selfFills.mu.Unlock()
	key := keyOf(fl.s.name.Group, fl.s.name.Slot)
	if begin {
		f.selfFills.all[key] = fl
	} else if f.selfFills.all[key] == fl {
		delete(f.selfFills.all, key)
	}
}

// FlushLocal returns when the index here has applied all that this node's ingest has
// said of a slot until now, for an owner that has let somebody else write the slot. It
// is owner.Config.FlushLocal.
func (f *Fanout) FlushLocal(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
	f.selfFills.mu.Lock()
	fl := f.selfFills.all[keyOf(g, s)]
	f.selfFills.mu.Unlock()
	if fl != nil {
		fl.s.mu.Lock()
		fl.cancel()
		fl.s.mu.Unlock()
		select {
		case <-fl.ended:
		case <-ctx.Done():
			return fmt.Errorf("flush slot %d of group %d: %w", s, g, ctx.Err())
		}
	}
	f.writers.mu.Lock()
	writers := f.writers.all
	f.writers.mu.Unlock()
	for _, w := range writers {
		begun := w.begun.Load()
		var m []uint64
		for !w.closed.Load() {
			if m == nil && w.written.Load() >= begun {
				m = w.mark(nil)
			}
			if m != nil && w.passed(m) {
				break
			}
			if err := sleep(ctx, 100*time.Microsecond); err != nil {
				return fmt.Errorf("flush slot %d of group %d: %w", s, g, err)
			}
		}
	}
	return nil
}

// forgetLocal frees what this node has of partitions that it is no receiver of any more.
func (fl *fill) forgetLocal(ctx context.Context, w *filler) error {
	for _, p := range fl.list {
		w.build.Reset(fl.s.header(p, 0))
		w.build.Clear(indexer.AllTiers)
		if err := fl.writeLocal(w, w.build.Frame()); err != nil {
			return err
		}
	}
	if err := w.writer().Flush(ctx); err != nil {
		return err
	}
	fl.s.mu.Lock()
	defer fl.s.mu.Unlock()
	fl.f.cfg.Owner.CloseLocal(fl.s.name, fl.s.tenure, fl.list)
	fl.s.copies[fl.target.index].had.andNot(fl.parts)
	return nil
}
