package fanout

import (
	"context"
	"errors"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// worker carries out one fill after the other.
func (f *Fanout) worker(ctx context.Context, work <-chan need) {
	w := &filler{f: f}
	defer w.close()
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-work:
			if fl := n.s.beginFill(f.table.Load(), n.to, time.Now()); fl != nil {
				fl.done(fl.run(ctx, w))
			}
			n.to.filling.Add(-1)
			select {
			case f.freed <- struct{}{}:
			default:
			}
		}
	}
}

// filler is what a worker uses again.
type filler struct {
	f     *Fanout
	local indexer.Writer
	build indexer.FrameBuilder
}

func (w *filler) writer() indexer.Writer {
	if w.local == nil {
		w.local = w.f.cfg.Index.NewWriter()
	}
	return w.local
}

func (fl *fill) run(ctx context.Context, w *filler) error {
	var dump map[indexer.PartitionID]copywire.Copy
	if fl.from != forgotten {
		var err error
		if dump, err = fl.fetch(ctx); err != nil {
			return err
		}
	}
	if fl.target.self() {
		fl.f.selfFill(fl, true)
		defer func() {
			// Nothing of it may be on its way to the index when others are told.
			if w.local != nil {
				_ = w.local.Flush(ctx)
			}
			fl.f.selfFill(fl, false)
		}()
		if err := fl.beginLocal(ctx); err != nil {
			return err
		}
	}
	if fl.from == forgotten {
		return fl.forgetLocal(ctx, w)
	}
	for _, p := range fl.list {
		if err := fl.content(ctx, w, p, dump[p]); err != nil {
			return err
		}
	}
	if fl.target.self() {
		return fl.finishLocal(ctx, w)
	}
	return fl.finish(ctx)
}

// content sends what a copy has, as frames that make an empty copy equal to it.
func (fl *fill) content(ctx context.Context, w *filler, p indexer.PartitionID, c copywire.Copy) error {
	return copywire.Rebuild(&w.build, fl.s.header(p, c.Sequence), c.Stretches, fl.f.cfg.FillFrame/8, func(first, last bool, fr indexer.Frame) error {
		if fl.f.cfg.broken.noClear {
			if first {
				fr = withoutClear(fr)
			}
			first = false
		}
		if err := errors.Join(fl.f.pacer.wait(ctx, 8*len(fr)), fl.check()); err != nil {
			return err
		}
		if fl.target.self() {
			return fl.writeLocal(w, fr)
		}
		return fl.send(ctx, copywire.AppendFill(nil, first, last && fl.f.cfg.broken.openFirst, fr))
	})
}

// withoutClear is for a mutant.
func withoutClear(fr indexer.Frame) indexer.Frame {
	out := append(append(indexer.Frame{}, fr[:frameHeader]...), fr[frameHeader+1:]...)
	out[0] = uint64(len(out)) | uint64(fr.NumOps()-1)<<32
	return out
}
