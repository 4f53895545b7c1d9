package search

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// ErrUnreadable is wrapped by the errors of DumpSlot: a part of the slot cannot be read at
// any owner.
var ErrUnreadable = errors.New("not readable")

const (
	// dumpBatch is how many partitions are asked of one owner at once: their content is
	// kept until the whole answer is known to be good.
	dumpBatch = 32
	// dumpTimeout bounds one such question.
	dumpTimeout = 10 * time.Second
)

// DumpSlot calls visit for everything that a slot holds, at whichever owners it can be
// read; the stretches of one partition are one consistent state. What was visited before an
// error stays visited. Without a live life in the slot nothing is visited.
func (s *Search) DumpSlot(ctx context.Context, g indexer.GroupID, slot indexer.Slot, visit func(indexer.Stretch) error) error {
	v := s.deps.View()
	group, ok := v.Catalog.GroupByID(uint32(g))
	if !ok {
		return nil
	}
	h, live := group.Holder(uint32(slot))
	if !live {
		return nil
	}
	d := slotDump{s: s, ctx: ctx, group: g, slot: slot, life: h.Life, visit: visit, scratch: newScratch()}
	for p := range indexer.PartitionID(len(v.Owners)) {
		if err := d.here(p); err != nil {
			return err
		}
	}
	for len(d.wanted) > 0 {
		if err := d.round(); err != nil {
			return err
		}
	}
	return nil
}

// slotDump is one DumpSlot.
type slotDump struct {
	s       *Search
	ctx     context.Context
	group   indexer.GroupID
	slot    indexer.Slot
	life    uint64
	visit   func(indexer.Stretch) error
	scratch *scratch
	wanted  []wanted
	kept    []indexer.Stretch // shown once they are known to be good
}

// wanted is a partition that another owner is to be asked for.
type wanted struct {
	partition indexer.PartitionID
	failed    []*peer // asked in vain
	why       []string
	single    bool // a batch may fail for another partition's sake: the last try is alone
}

// here dumps a partition from the trees of this node; what cannot be read here is wanted
// of others.
func (d *slotDump) here(p indexer.PartitionID) error {
	if !d.s.plan().segment(p).here {
		d.wanted = append(d.wanted, wanted{partition: p})
		return nil
	}
	d.kept = d.kept[:0]
	mark := d.s.deps.Owner.Mark()
	if err := d.s.deps.Index.Dump(d.ctx, d.group, p, d.slot, d.keep); err != nil {
		return fmt.Errorf("dump partition %d of slot %d: %w", p, d.slot, err)
	}
	plan := d.s.plan() // after the trees were read
	d.scratch.plan, d.scratch.group = plan, d.group
	closed := d.s.deps.Owner.Unreadable(nil, mark, plan.view.Index, d.group, p, d.scratch.lives)
	if !plan.segment(p).here || slices.Contains(closed, d.slot) {
		d.wanted = append(d.wanted, wanted{partition: p, why: []string{d.s.cfg.Name + ": no complete copy that may be read"}})
		return nil
	}
	return d.show()
}

// round asks one owner for as many wanted partitions as it has, beginning with the first.
func (d *slotDump) round() error {
	plan := d.s.plan()
	first := &d.wanted[0]
	owner := d.choose(plan, first)
	if owner == nil && !first.single {
		first.single, first.failed = true, nil
		owner = d.choose(plan, first)
	}
	if owner == nil {
		return fmt.Errorf("partition %d of slot %d: %w: %s", first.partition, d.slot, ErrUnreadable,
			strings.Join(append(first.why, "no other ready owner"), "; "))
	}
	var parts []indexer.PartitionID
	asks := func(w *wanted) bool { // of this owner, in this round
		if w == first {
			return true
		}
		return !first.single && !w.single && !slices.Contains(w.failed, owner) && slices.Contains(plan.segment(w.partition).others, owner)
	}
	for i := range d.wanted {
		if w := &d.wanted[i]; len(parts) < dumpBatch && asks(w) {
			parts = append(parts, w.partition)
		}
	}
	d.kept = d.kept[:0]
	ctx, cancel := context.WithTimeout(d.ctx, dumpTimeout)
	err := d.s.deps.Peek(ctx, owner.name, d.group, d.slot, d.life, parts, func(_ indexer.PartitionID, x indexer.Stretch) error {
		return d.keep(x)
	})
	cancel()
	if err == nil {
		d.wanted = slices.DeleteFunc(d.wanted, func(w wanted) bool { return slices.Contains(parts, w.partition) })
		return d.show()
	}
	if ended := d.ctx.Err(); ended != nil {
		return ended
	}
	for i := range d.wanted {
		if w := &d.wanted[i]; slices.Contains(parts, w.partition) {
			w.failed = append(w.failed, owner)
			if text := fmt.Sprintf("%s: %v", owner.name, err); !slices.Contains(w.why, text) {
				w.why = append(w.why, text)
			}
		}
	}
	return nil
}

// choose returns an owner that was not asked yet, one that is alive if possible.
func (d *slotDump) choose(plan *plan, w *wanted) (best *peer) {
	for _, o := range plan.segment(w.partition).others {
		if !slices.Contains(w.failed, o) && (best == nil || d.s.deps.Alive(o.name)) {
			best = o
		}
	}
	return best
}

// keep copies a stretch: its slices may not be kept.
func (d *slotDump) keep(x indexer.Stretch) error {
	x.Path, x.Locals, x.Engines = slices.Clone(x.Path), slices.Clone(x.Locals), slices.Clone(x.Engines)
	d.kept = append(d.kept, x)
	return nil
}

func (d *slotDump) show() error {
	for _, x := range d.kept {
		if err := d.visit(x); err != nil {
			return err
		}
	}
	return nil
}
