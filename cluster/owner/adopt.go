package owner

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

// Adopt fences off all tenures of a slot below this one. When it returns, what had been
// received under them before is applied and nothing of them will be; the labels say
// what is here (rule T1). Errors wrap ErrTenure when a newer tenure is known, ErrLife
// when the slot has another life.
func (o *Owner) Adopt(ctx context.Context, l copywire.SlotLife, tenure uint64) (copywire.Labels, error) {
	fail := func(err error) (copywire.Labels, error) {
		return copywire.Labels{}, fmt.Errorf("adopt %v under tenure %d: %w", l, tenure, err)
	}
	if !inBounds(l.Group, l.Slot) {
		return fail(ErrLife)
	}
	g, sl := o.table.slot(l.Group, l.Slot)
	if !sl.begin(g, l.Slot, l.Life) {
		return fail(ErrLife)
	}
	if _, ok := sl.raise(tenure); !ok {
		return fail(ErrTenure)
	}
	if !o.cfg.broken.adoptNoWait {
		if err := o.quiesce(ctx, l.Group, l.Slot, nil); err != nil {
			return fail(err)
		}
	}
	labels := o.Labels(l)
	if sl.tenure.Load() != tenure {
		return fail(ErrTenure)
	}
	return labels, nil
}

// Fence refuses all tenures of a slot below this one from now on, and what they wrote
// cannot be read until it is carried on under a later one. It does not wait, and does
// nothing about a slot that is not known here.
func (o *Owner) Fence(l copywire.SlotLife, tenure uint64) {
	if g := at(&o.table.groups, int(l.Group)); g != nil {
		if sl := at(&g.slots, int(l.Slot)); sl != nil && sl.life.Load() == l.Life {
			sl.raise(tenure)
		}
	}
}

// Labels are the open copies of a slot here, and its last cursor. They are exact after
// Adopt; before it, frames may be on their way to the index that they count already.
func (o *Owner) Labels(l copywire.SlotLife) copywire.Labels {
	var out copywire.Labels
	g := at(&o.table.groups, int(l.Group))
	if g == nil {
		return out
	}
	sl := at(&g.slots, int(l.Slot))
	if sl == nil || sl.life.Load() != l.Life {
		return out
	}
	now := currency{o: o, carriers: *o.carriers.Load(), since: ^uint64(0), index: ^uint64(0)}
	for p, r := range g.ofSlot(l.Slot) {
		if s := r.state.Load(); whole(s) {
			out.Copies = append(out.Copies, copywire.Label{
				Partition: p, Current: phase(s) == open && now.current(carrierOf(s)), Tenure: r.tenure.Load(), Sequence: r.sequence.Load(),
			})
		}
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	out.Cursor = sl.mu.cursor
	return out
}

func (o *Owner) serveAdopt(ctx context.Context, _ string, req []byte) ([]byte, error) {
	r, err := copywire.DecodeAdoptRequest(req)
	if err != nil {
		return nil, err
	}
	labels, err := o.Adopt(ctx, r.SlotLife, r.Tenure)
	if err != nil {
		return nil, err
	}
	return labels.Append(nil), nil
}

// Methods are the calls that an owner answers, for link.Hub.Handle.
func (o *Owner) Methods() map[string]link.CallHandler {
	return map[string]link.CallHandler{
		copywire.MethodDump: o.serveDump, copywire.MethodPeek: o.servePeek, copywire.MethodAdopt: o.serveAdopt,
	}
}

// retirement is a life that is over.
type retirement struct {
	slot catalog.Retired
	done func(error)
}

// Retire ends a life: from now on nothing of it is taken any more. done is called when
// the index holds nothing of it, from a goroutine of Run, with the error if that failed;
// it must not wait.
func (o *Owner) Retire(r catalog.Retired, done func(error)) {
	o.mu.Lock()
	ended := o.mu.ended
	if !ended {
		o.mu.retires = append(o.mu.retires, retirement{r, done})
	}
	o.mu.Unlock()
	if ended {
		done(fmt.Errorf("retire slot %d of group %d: %w", r.Slot, r.Group, ErrClosed))
		return
	}
	o.signal()
}

// retire carries out retirements, with one wait for all of them.
func (o *Owner) retire(ctx context.Context, all []retirement) {
	purge := make([]bool, len(all))
	for i, r := range all {
		g, s := indexer.GroupID(r.slot.Group), indexer.Slot(r.slot.Slot)
		if inBounds(g, s) {
			gr, sl := o.table.slot(g, s)
			purge[i] = sl.end(gr, s, r.slot.Life)
		}
	}
	var err error
	if !o.cfg.broken.purgeNoWait {
		err = o.awaitAll(ctx, nil)
	}
	for i, r := range all {
		failed := err
		if failed == nil && purge[i] {
			failed = o.cfg.Index.Purge(ctx, indexer.GroupID(r.slot.Group), indexer.Slot(r.slot.Slot))
		}
		if failed != nil && !errors.Is(failed, context.Canceled) {
			o.log.Error("slot not purged", "group", r.slot.Group, "slot", r.slot.Slot, "life", r.slot.Life, "error", failed)
		}
		if failed != nil {
			failed = fmt.Errorf("retire slot %d of group %d, life %d: %w", r.slot.Slot, r.slot.Group, r.slot.Life, failed)
		}
		r.done(failed)
	}
}
