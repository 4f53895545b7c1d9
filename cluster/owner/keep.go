package owner

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// ErrLarge: what a slot has does not fit into the bound that was given.
var ErrLarge = errors.New("slot too large")

// saveTries is how often a copy is dumped that was written to in the meantime. A try
// takes a few milliseconds, and a copy gets few frames a second.
const saveTries = 12

// noteMask are the bits of a cursor's digest that say what is known of a slot besides its
// blocks; the others are those of a batch (cluster/ingest).
const noteMask = 1<<16 - 1

// Lives yields the slots that have a life here.
func (o *Owner) Lives(yield func(copywire.SlotLife) bool) {
	groups := o.table.groups.Load()
	if groups == nil {
		return
	}
	for _, g := range *groups {
		if g == nil || g.slots.Load() == nil {
			continue
		}
		for s, sl := range *g.slots.Load() {
			if sl == nil {
				continue
			}
			if life := sl.life.Load(); life != 0 && !yield(copywire.SlotLife{Group: g.id, Slot: indexer.Slot(s), Life: life}) {
				return
			}
		}
	}
}

// Saved is what Save returns.
type Saved struct {
	Dump   []byte // copywire.DecodeCopies
	Copies int
	Blocks uint64 // names in them
	// Cursor holds for all copies; zero = none does.
	Cursor copywire.Cursor
}

// Save dumps the copies of a slot that are whole, each at a frame boundary with the label
// of that frame, behind dst. Sessions and lanes go on meanwhile: a copy that
// is written to while it is dumped is dumped again, and left out after some attempts, as
// is one that closes. So are partitions that held does not name: what is left at a former
// owner has nothing of the batches since, which the cursor counts. Errors wrap ErrLarge when the dump would have more than most bytes,
// and ErrLife when the life has ended meanwhile.
func (o *Owner) Save(ctx context.Context, dst []byte, l copywire.SlotLife, most int, held func(indexer.PartitionID) bool) (Saved, error) {
	fail := func(err error) (Saved, error) { return Saved{}, fmt.Errorf("save %v: %w", l, err) }
	g := at(&o.table.groups, int(l.Group))
	if g == nil || at(&g.slots, int(l.Slot)) == nil {
		return fail(ErrLife)
	}
	sl := at(&g.slots, int(l.Slot))
	// The cursor first: everything up to it is in what is dumped after it.
	sl.mu.Lock()
	c := sl.mu.cursor
	sl.mu.Unlock()
	var rest []saved
	for p, r := range g.ofSlot(l.Slot) {
		rest = append(rest, saved{partition: p, record: r})
	}
	out := Saved{Dump: dst}
	for try := 0; try < saveTries && len(rest) > 0; try++ {
		for i := range rest {
			rest[i].look()
		}
		// What the labels say is applied then.
		if err := o.quiesce(ctx, l.Group, l.Slot, nil); err != nil {
			return fail(err)
		}
		again := rest[:0]
		for _, x := range rest {
			if !whole(x.state) {
				continue // filled or closed; if it is filled later, the next dump has it
			}
			e, begin, blocks := copywire.NewEncoder(out.Dump, x.partition), len(out.Dump), uint64(0)
			if err := o.cfg.Index.Dump(ctx, l.Group, x.partition, l.Slot, func(s indexer.Stretch) error {
				blocks += uint64(len(s.Locals))
				if e.Add(&s); e.Len()-len(dst) > most {
					return ErrLarge
				}
				return nil
			}); err != nil {
				return fail(err)
			}
			if x.changed() {
				again = append(again, x)
				out.Dump = out.Dump[:begin]
				continue
			}
			if !held(x.partition) {
				out.Dump = out.Dump[:begin]
				continue // the cursor, which is older, may say more than it has got
			}
			out.Dump = e.Open(x.tenure, x.sequence)
			out.Copies++
			out.Blocks += blocks
		}
		rest = again
	}
	if sl.life.Load() != l.Life {
		return fail(ErrLife)
	}
	// What a later cursor says of the slot besides its batch is said of frames that may be
	// in the dump.
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if now := sl.mu.cursor; c.Life != l.Life || now.Life != c.Life || now.Tenure != c.Tenure || (now.Digest^c.Digest)&noteMask != 0 {
		c = copywire.Cursor{}
	}
	out.Cursor = c
	return out, nil
}

// saved is a copy that is being dumped without anybody waiting for it.
type saved struct {
	partition               indexer.PartitionID
	record                  *record
	state, tenure, sequence uint64
}

func (x *saved) look() {
	x.state, x.tenure, x.sequence = x.record.state.Load(), x.record.tenure.Load(), x.record.sequence.Load()
}

// changed reports that somebody has written to the copy, or may have.
func (x *saved) changed() bool {
	return x.record.state.Load()&^written != x.state&^written || x.record.tenure.Load() != x.tenure || x.record.sequence.Load() != x.sequence
}

// Keep enters copies whose content an earlier process has left, and which the index has
// again. They are closed, and only who takes the slot over with Adopt may carry them on;
// a fill replaces them and the end of the life purges them. c is the cursor that holds for
// them, zero = none. empty are those of them without content. It reports false, and does
// nothing, when the slot has a newer life: the caller purges the content then. It must be
// called before Run.
func (o *Owner) Keep(l copywire.SlotLife, labels []copywire.Label, empty map[indexer.PartitionID]bool, c copywire.Cursor) bool {
	if !inBounds(l.Group, l.Slot) || l.Life == 0 {
		return false
	}
	g, sl := o.table.slot(l.Group, l.Slot)
	if !sl.begin(g, l.Slot, l.Life) {
		return false
	}
	for _, x := range labels {
		if x.Partition >= maxPartitions {
			continue
		}
		sl.raise(x.Tenure)
		r := o.table.ensureRecord(g, x.Partition, l.Slot)
		r.tenure.Store(x.Tenure)
		r.sequence.Store(x.Sequence)
		s := state(closed | kept)
		if !empty[x.Partition] {
			s |= written
		}
		r.state.Store(s)
	}
	sl.keeps.Store(true)
	if c.Life == l.Life {
		sl.raise(c.Tenure)
		sl.mu.Lock()
		sl.mu.cursor = c
		sl.mu.Unlock()
	}
	return true
}
