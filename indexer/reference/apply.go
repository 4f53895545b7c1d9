package reference

import (
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
)

// copyState is what one slot holds in one partition.
type copyState struct {
	slot   indexer.Slot
	tree   treeKey
	runs   map[indexer.Run]*run
	closed bool
}

// run is the positions that one run number names.
type run struct {
	anchor       uint64
	mark         indexer.Mark
	parent       *node // the root or the position above nodes[0]
	parentEngine uint64
	nodes        []*node
	engines      []uint64
	tiers        []indexer.TierMask // of the names; 0 = dead
	live         int                // names that are not dead
}

func (x *Index) write(f indexer.Frame) error {
	err := f.Validate()
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.closed {
		return fmt.Errorf("write frame: %w", indexer.ErrClosed)
	}
	if err != nil {
		x.mu.faults++
		return fmt.Errorf("write frame: %w", err)
	}
	h := f.Header()
	c := x.copyOf(h)
	var op indexer.Op
	for off := f.Next(0, &op); off != 0; off = f.Next(off, &op) {
		if op.Kind == indexer.OpClear && op.Tier == indexer.AllTiers {
			c.closed = false
		}
		if c.closed {
			x.mu.faults++
			return nil
		}
		if err := x.applyOp(c, &op); err != nil {
			x.empty(c)
			c.closed = true
			x.mu.faults++
			if x.onFault != nil {
				x.onFault(h, fmt.Errorf("slot %d of group %d, partition %d, sequence %d: %w",
					h.Slot, h.Group, h.Partition, h.Sequence, err))
			}
			return nil
		}
	}
	x.mu.frames++
	return nil
}

func (x *Index) copyOf(h indexer.Header) *copyState {
	k := copyKey{treeKey{h.Group, h.Partition}, h.Slot}
	c := x.mu.copies[k]
	if c == nil {
		c = &copyState{slot: h.Slot, tree: k.treeKey, runs: map[indexer.Run]*run{}}
		x.mu.copies[k] = c
		of := x.mu.bySlot[slotKey{h.Group, h.Slot}]
		if of == nil {
			of = map[indexer.PartitionID]*copyState{}
			x.mu.bySlot[slotKey{h.Group, h.Slot}] = of
		}
		of[h.Partition] = c
	}
	return c
}

func (x *Index) applyOp(c *copyState, op *indexer.Op) error {
	switch op.Kind {
	case indexer.OpStore:
		return x.store(c, op)
	case indexer.OpClear:
		x.clear(c, op.Tier)
		return nil
	}
	for i := range op.NumRanges() {
		g := op.Range(i)
		r := c.runs[g.Run()]
		if r == nil {
			return fmt.Errorf("run %d: %w", g.Run(), indexer.ErrUnknownName)
		}
		if g.From()+g.Len() > len(r.nodes) {
			return fmt.Errorf("positions %d to %d of run %d, which has %d: %w",
				g.From(), g.From()+g.Len()-1, g.Run(), len(r.nodes), indexer.ErrUnknownName)
		}
		for pos := g.From(); pos < g.From()+g.Len(); pos++ {
			has := r.tiers[pos].Has(op.Tier)
			if r.tiers[pos] == 0 || has != (op.Kind == indexer.OpDrop) {
				return fmt.Errorf("position %d of run %d has tiers %04b, operation %d of tier %v: %w",
					pos, g.Run(), r.tiers[pos], op.Kind, op.Tier, indexer.ErrUnknownName)
			}
			if op.Kind == indexer.OpClaim {
				r.tiers[pos] |= op.Tier.Mask()
				x.add(r.nodes[pos], c.slot, op.Tier)
			} else {
				x.drop(c, r, pos, op.Tier)
			}
		}
		x.settle(c, g.Run(), r)
	}
	return nil
}

func (x *Index) store(c *copyState, op *indexer.Op) error {
	r := c.runs[op.Run]
	if op.Start == 0 {
		if r != nil {
			return fmt.Errorf("store of run %d, which has %d live names: %w", op.Run, r.live, indexer.ErrUnknownName)
		}
		r = &run{mark: op.Mark()}
		switch p := op.Parent; p.Kind {
		case indexer.ParentRoot:
			r.anchor = p.Anchor
			r.parent = x.tree(c.tree).root(p.Anchor)
		case indexer.ParentName:
			above := c.runs[p.Run]
			if above == nil || int(p.Pos) >= len(above.nodes) {
				return fmt.Errorf("parent %d of run %d: %w", p.Pos, p.Run, indexer.ErrUnknownName)
			}
			r.anchor = above.anchor
			r.parent, r.parentEngine = above.nodes[p.Pos], above.engines[p.Pos]
		}
		c.runs[op.Run] = r
	} else if r == nil || int(op.Start) != len(r.nodes) {
		return fmt.Errorf("extension of run %d at %d: %w", op.Run, op.Start, indexer.ErrUnknownName)
	}
	at := r.parent
	if len(r.nodes) > 0 {
		at = r.nodes[len(r.nodes)-1]
	}
	for i, local := range op.Locals {
		at = x.child(at, local)
		at.runs++
		x.add(at, c.slot, op.Tier)
		r.nodes = append(r.nodes, at)
		r.engines = append(r.engines, op.Engines[i])
		r.tiers = append(r.tiers, op.Tier.Mask())
		x.mu.evictions.refill(evicted{c.tree.group, c.tree.partition, c.slot, at.path})
	}
	r.live += len(op.Locals)
	x.mu.names += uint64(len(op.Locals))
	return nil
}

// drop takes one tier from a name that has it.
func (x *Index) drop(c *copyState, r *run, pos int, t indexer.Tier) {
	n := r.nodes[pos]
	if x.remove(n, c.slot, t) && n.tiers(c.slot) == 0 {
		x.mu.evictions.add(evicted{c.tree.group, c.tree.partition, c.slot, n.path})
	}
	if r.tiers[pos] &^= t.Mask(); r.tiers[pos] == 0 {
		r.live--
		x.mu.names--
	}
}

// settle forgets a run without live names.
func (x *Index) settle(c *copyState, number indexer.Run, r *run) {
	if r.live > 0 {
		return
	}
	delete(c.runs, number)
	for _, n := range r.nodes {
		n.runs--
	}
	// What is above the last position goes with it, or has something else below.
	x.release(r.nodes[len(r.nodes)-1])
}

func (x *Index) clear(c *copyState, tier indexer.Tier) {
	for number, r := range c.runs {
		for pos, has := range r.tiers {
			for t := range indexer.Tier(indexer.NumTiers) {
				if has.Has(t) && tier.Mask().Has(t) {
					x.drop(c, r, pos, t)
				}
			}
		}
		x.settle(c, number, r)
	}
}

// empty drops everything that the copy holds.
func (x *Index) empty(c *copyState) { x.clear(c, indexer.AllTiers) }
