package contract

import (
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// tracker knows which names a stream has made, and so which operations are valid.
type tracker struct {
	copies map[at]*tracked
	now    int // number of the frame
}

type tracked struct {
	runs   map[indexer.Run]*trackedRun
	closed bool
}

type trackedRun struct {
	anchor  uint64
	above   []uint64 // path of the position above the run
	locals  []uint64
	tiers   []indexer.TierMask
	live    int
	emptied int // number of the frame that emptied it
}

func newTracker() *tracker { return &tracker{copies: map[at]*tracked{}} }

func (k *tracker) copyOf(a at) *tracked {
	c := k.copies[a]
	if c == nil {
		c = &tracked{runs: map[indexer.Run]*trackedRun{}}
		k.copies[a] = c
	}
	return c
}

// accept leaves out of the frame what is not valid here, notes the rest, and reports
// whether anything is left.
func (k *tracker) accept(f *frame) bool {
	k.now++
	if f.purge {
		for a := range k.copies {
			if a.g == f.at.g && a.s == f.at.s {
				delete(k.copies, a)
			}
		}
		return true
	}
	c := k.copyOf(f.at)
	f.ops = slices.DeleteFunc(f.ops, func(o op) bool { return o.kind == 0 })
	kept := f.ops[:0]
	for i := range f.ops {
		o := f.ops[i]
		if o.kind == indexer.OpClear && o.tier == indexer.AllTiers && i == 0 {
			c.closed = false
		}
		if c.closed || k.acceptOp(c, &o) {
			kept = append(kept, o)
		}
		if o.fault && !c.closed {
			k.wipe(c)
			c.closed = true
		}
	}
	f.ops = kept
	return len(kept) > 0
}

func (k *tracker) acceptOp(c *tracked, o *op) bool {
	if o.fault {
		return true
	}
	switch o.kind {
	case indexer.OpClear:
		if o.tier == indexer.AllTiers {
			k.wipe(c)
			return true
		}
		for _, r := range c.runs {
			for pos := range r.tiers {
				k.set(r, pos, o.tier, false)
			}
		}
		return true
	case indexer.OpStore:
		return k.acceptStore(c, o)
	}
	o.ranges = slices.Clone(o.ranges)
	o.ranges = slices.DeleteFunc(o.ranges, func(g indexer.Range) bool {
		r := c.runs[g.Run()]
		if r == nil || g.From()+g.Len() > len(r.tiers) {
			return true
		}
		for pos := g.From(); pos < g.From()+g.Len(); pos++ {
			if r.tiers[pos] == 0 || r.tiers[pos].Has(o.tier) != (o.kind == indexer.OpDrop) {
				return true
			}
		}
		for pos := g.From(); pos < g.From()+g.Len(); pos++ {
			k.set(r, pos, o.tier, o.kind == indexer.OpClaim)
		}
		return false
	})
	return len(o.ranges) > 0
}

func (k *tracker) acceptStore(c *tracked, o *op) bool {
	r := c.runs[o.run]
	if len(o.locals) == 0 {
		return false
	}
	if o.start > 0 {
		// A tip that is dead may be gone from the tree: a stream never extends there.
		if r == nil || int(o.start) != len(r.locals) || r.tiers[len(r.tiers)-1] == 0 {
			return false
		}
	} else {
		if r != nil && (r.live > 0 || r.emptied >= k.now) {
			return false
		}
		fresh := &trackedRun{anchor: o.parent.Anchor}
		if o.parent.Kind == indexer.ParentName {
			above := c.runs[o.parent.Run]
			if above == nil || o.parent.Run == o.run || int(o.parent.Pos) >= len(above.locals) || !above.liveFrom(int(o.parent.Pos)) {
				return false
			}
			fresh.anchor, fresh.above = above.anchor, above.path(int(o.parent.Pos)+1)
		}
		c.runs[o.run] = fresh
		r = fresh
	}
	for _, l := range o.locals {
		r.locals = append(r.locals, l)
		r.tiers = append(r.tiers, o.tier.Mask())
	}
	r.live += len(o.locals)
	return true
}

// liveFrom reports whether a name at or below pos is live.
func (r *trackedRun) liveFrom(pos int) bool {
	for _, m := range r.tiers[pos:] {
		if m != 0 {
			return true
		}
	}
	return false
}

// path is the path of the first n blocks of the run.
func (r *trackedRun) path(n int) []uint64 { return append(slices.Clone(r.above), r.locals[:n]...) }

func (k *tracker) set(r *trackedRun, pos int, t indexer.Tier, on bool) {
	had := r.tiers[pos] != 0
	if on {
		r.tiers[pos] |= t.Mask()
	} else {
		r.tiers[pos] &^= t.Mask()
	}
	if had && r.tiers[pos] == 0 {
		if r.live--; r.live == 0 {
			r.emptied = k.now
		}
	}
}

func (k *tracker) wipe(c *tracked) {
	for _, r := range c.runs {
		if r.live > 0 {
			r.emptied = k.now
		}
		r.live = 0
		clear(r.tiers)
	}
}
