package contract

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// remembered is how many blocks that were given up an eviction log remembers at least.
const remembered = 500

// model answers by sets alone: a live name is an entry, a position is a string, and
// a block is held if some live name has its position.
type model struct {
	copies map[at]map[namePos]*named
	closed map[at]bool
	// count[place][slot][tier] is the number of live names: an index over copies.
	count map[position]map[indexer.Slot]*[indexer.NumTiers]int
	ever  map[position]map[indexer.Slot]bool
	// dropped says when a slot dropped the last of a position, as the number of names
	// that were given up by then, and released that of all until now.
	dropped  map[position]map[indexer.Slot]int
	released int
	// parents has the name above the first position of a run that hangs below one.
	parents map[at]map[indexer.Run]namePos
}

type namePos struct {
	run indexer.Run
	pos uint32
}

type named struct {
	where  position
	engine uint64
	tiers  indexer.TierMask // 0 = dead
}

// position is a place of a tree.
type position struct {
	g      indexer.GroupID
	p      indexer.PartitionID
	anchor uint64
	path   string
}

func newModel() *model {
	return &model{
		copies: map[at]map[namePos]*named{}, closed: map[at]bool{},
		count: map[position]map[indexer.Slot]*[indexer.NumTiers]int{},
		ever:  map[position]map[indexer.Slot]bool{}, dropped: map[position]map[indexer.Slot]int{}, parents: map[at]map[indexer.Run]namePos{},
	}
}

// apply takes a frame of a valid stream; only the frames that are meant to be faults
// are marked so.
func (m *model) apply(f *frame) {
	if f.purge {
		for a := range m.copies {
			if a.g == f.at.g && a.s == f.at.s {
				m.clear(a, indexer.AllTiers.Mask())
				delete(m.closed, a)
			}
		}
		for _, of := range m.dropped { // a log may forget the number in whatever group
			delete(of, f.at.s)
		}
		return
	}
	if m.copies[f.at] == nil {
		m.copies[f.at] = map[namePos]*named{}
	}
	for i := range f.ops {
		o := &f.ops[i]
		if o.kind == indexer.OpClear && o.tier == indexer.AllTiers {
			m.closed[f.at] = false
		}
		if m.closed[f.at] {
			return
		}
		if o.fault {
			m.clear(f.at, indexer.AllTiers.Mask())
			m.closed[f.at] = true
			return
		}
		m.applyOp(f.at, o)
	}
}

func (m *model) applyOp(a at, o *op) {
	c := m.copies[a]
	switch o.kind {
	case indexer.OpClear:
		m.clear(a, o.tier.Mask())
	case indexer.OpStore:
		where := position{a.g, a.p, o.parent.Anchor, ""}
		switch {
		case o.start > 0:
			where = c[namePos{o.run, o.start - 1}].where
		case o.parent.Kind == indexer.ParentName:
			where = c[namePos{o.parent.Run, o.parent.Pos}].where
		}
		if o.start == 0 {
			for k := range c {
				if k.run == o.run {
					delete(c, k)
				}
			}
			if m.parents[a] == nil {
				m.parents[a] = map[indexer.Run]namePos{}
			}
			delete(m.parents[a], o.run)
			for below, above := range m.parents[a] {
				if above.run == o.run { // the number stands for another run from now on
					delete(m.parents[a], below)
				}
			}
			if o.parent.Kind == indexer.ParentName {
				m.parents[a][o.run] = namePos{o.parent.Run, o.parent.Pos}
			}
		}
		for i, l := range o.locals {
			where.path += pathString([]uint64{l})
			n := &named{where: where, engine: o.engines[i]}
			c[namePos{o.run, o.start + uint32(i)}] = n
			m.set(a.s, n, o.tier, true)
		}
	default:
		for _, r := range o.ranges {
			for pos := r.From(); pos < r.From()+r.Len(); pos++ {
				n := c[namePos{r.Run(), uint32(pos)}]
				m.set(a.s, n, o.tier, o.kind == indexer.OpClaim)
				if m.mask(n.where, a.s) == 0 {
					m.dropped[n.where][a.s] = m.released
				}
			}
		}
	}
}

func (m *model) set(s indexer.Slot, n *named, t indexer.Tier, on bool) {
	if m.count[n.where] == nil {
		m.count[n.where] = map[indexer.Slot]*[indexer.NumTiers]int{}
		m.ever[n.where] = map[indexer.Slot]bool{}
		m.dropped[n.where] = map[indexer.Slot]int{}
	}
	if m.count[n.where][s] == nil {
		m.count[n.where][s] = new([indexer.NumTiers]int)
	}
	if on {
		n.tiers |= t.Mask()
		m.count[n.where][s][t]++
		m.ever[n.where][s] = true
		delete(m.dropped[n.where], s)
	} else {
		n.tiers &^= t.Mask()
		m.count[n.where][s][t]--
		m.released++
	}
}

func (m *model) clear(a at, which indexer.TierMask) {
	for _, n := range m.copies[a] {
		for t := range indexer.Tier(indexer.NumTiers) {
			if which.Has(t) && n.tiers.Has(t) {
				m.set(a.s, n, t, false)
			}
		}
	}
	if which == indexer.AllTiers.Mask() {
		clear(m.copies[a])
	}
}

// mask is the tiers in which a slot holds a position.
func (m *model) mask(w position, s indexer.Slot) (mask indexer.TierMask) {
	if c := m.count[w][s]; c != nil {
		for t, n := range c {
			if n > 0 {
				mask |= indexer.Tier(t).Mask()
			}
		}
	}
	return mask
}

// match is the right answer to a query.
func (m *model) match(q indexer.Query) (rows, tiers) {
	got, lower := rows{}, tiers{}
	if len(q.Locals) == 0 {
		return got, lower
	}
	places := positions(q)
	for s := range m.count[places[0]] {
		blocks := make([]indexer.TierMask, len(places))
		for i, w := range places {
			blocks[i] = m.mask(w, s)
		}
		d := walk(blocks)
		if d[device] > 0 {
			got[s] = d[device]
		}
		if d[external] > d[device] {
			lower[s] = d
		}
	}
	return got, lower
}

func positions(q indexer.Query) []position {
	path := pathString(q.Locals)
	out := make([]position, len(q.Locals))
	for i := range out {
		out[i] = position{q.Group, q.Partition, q.Anchor, path[:8*(i+1)]}
	}
	return out
}

// places are the copies that ever were, in order.
func (m *model) places() (out []at) {
	for a := range m.copies {
		out = append(out, a)
	}
	slices.SortFunc(out, func(a, b at) int {
		return cmp.Or(cmp.Compare(a.g, b.g), cmp.Compare(a.p, b.p), cmp.Compare(a.s, b.s))
	})
	return out
}

// checkAll compares scores, explanations, names and statistics.
func checkAll(b *bench, m *model, paths []indexer.Query) error {
	var errs []error
	for _, q := range paths {
		errs = append(errs, checkQuery(b.r, m, q))
	}
	for i, q := range paths {
		if i%7 == 0 {
			errs = append(errs, checkExplain(b, m, q))
		}
	}
	for _, a := range m.places() {
		errs = append(errs, checkDump(b, m, a))
	}
	errs = append(errs, checkStats(b, m))
	return errors.Join(errs...)
}

func checkQuery(r indexer.Reader, m *model, q indexer.Query) error {
	got, lower, err := match(r, q)
	want, wantLower := m.match(q)
	if err := errors.Join(err, sameScores(got, lower, want, wantLower)); err != nil {
		return fmt.Errorf("query group %d, partition %d, anchor %d, %d: %w", q.Group, q.Partition, q.Anchor, q.Locals, err)
	}
	return nil
}

func checkExplain(b *bench, m *model, q indexer.Query) error {
	places := positions(q)
	for s := range indexer.Slot(4) {
		states := b.r.Explain(q, s, nil)
		if len(states) != len(q.Locals) {
			return fmt.Errorf("explain: %d states for %d blocks", len(states), len(q.Locals))
		}
		for i, w := range places {
			covered := false
			for other := range m.count[w] {
				covered = covered || m.mask(w, other) != 0
			}
			got, mask := states[i], m.mask(w, s)
			if got.Tiers != mask || covered && !got.Known || mask != 0 && !got.Known ||
				got.Evicted && (mask != 0 || !m.ever[w][s]) {
				return fmt.Errorf("explain slot %d, block %d of %d: %+v; held %04b, covered %t, ever %t",
					s, i, q.Locals, got, mask, covered, m.ever[w][s])
			}
			if at, was := m.dropped[w][s]; was && !got.Evicted && m.released-at < remembered && !b.restored {
				return fmt.Errorf("explain slot %d, block %d of %d: %+v, but it was dropped %d blocks ago",
					s, i, q.Locals, got, m.released-at)
			}
		}
	}
	return nil
}

func checkDump(b *bench, m *model, a at) error {
	got, err := dump(b.x, a)
	if err != nil {
		return fmt.Errorf("dump %+v: %w", a, err)
	}
	var want []name
	for k, n := range m.copies[a] {
		if n.tiers != 0 {
			want = append(want, name{k.run, k.pos, n.tiers, n.engine, n.where.anchor, n.where.path, len(n.where.path) / 8})
		}
	}
	slices.SortFunc(want, func(x, y name) int { return cmp.Or(cmp.Compare(x.run, y.run), cmp.Compare(x.pos, y.pos)) })
	if have := names(got); !slices.Equal(have, want) {
		return fmt.Errorf("dump of %+v: %s", a, difference(have, want))
	}
	for _, s := range got {
		if b.restored { // below helper runs: the parents of before are not known there
			break
		}
		if err := checkParent(m, a, s); err != nil {
			return fmt.Errorf("dump of %+v: run %d at %d: %w", a, s.Run, s.Start, err)
		}
	}
	return nil
}

// checkParent: while the name of the parent is live, its engine hash, or that of
// another live name on the same position, must come with the stretch.
func checkParent(m *model, a at, s indexer.Stretch) error {
	if s.Parent.Root {
		return nil
	}
	parent, ok := m.parents[a][s.Run]
	if s.Start > 0 {
		parent, ok = namePos{s.Run, s.Start - 1}, true
	}
	p := m.copies[a][parent]
	above := position{a.g, a.p, s.Anchor, pathString(s.Path)}
	if !ok || p == nil || p.tiers == 0 || p.where != above {
		return nil
	}
	for _, n := range m.copies[a] {
		if n.tiers != 0 && n.where == above && n.engine == s.Parent.Engine {
			return nil
		}
	}
	return fmt.Errorf("parent %#x is not the hash of a live name above; the parent's is %#x", s.Parent.Engine, p.engine)
}

func difference(have, want []name) string {
	for i := range max(len(have), len(want)) {
		switch {
		case i >= len(have):
			return fmt.Sprintf("%d names, want %d; missing %+v", len(have), len(want), want[i])
		case i >= len(want):
			return fmt.Sprintf("%d names, want %d; too many: %+v", len(have), len(want), have[i])
		case have[i] != want[i]:
			return fmt.Sprintf("name %d is %+v, want %+v", i, have[i], want[i])
		}
	}
	return "equal"
}

func checkStats(b *bench, m *model) error {
	s := b.x.Stats()
	var held [indexer.NumTiers]uint64
	distinct := uint64(0)
	for w, of := range m.count {
		covered := false
		for slot := range of {
			mask := m.mask(w, slot)
			covered = covered || mask != 0
			for t := range held {
				if mask.Has(indexer.Tier(t)) {
					held[t]++
				}
			}
		}
		if covered {
			distinct++
		}
	}
	copies := uint64(0)
	for _, c := range m.copies {
		for _, n := range c {
			if n.tiers != 0 {
				copies++
				break
			}
		}
	}
	if s.Held != held || s.Distinct != distinct || s.Slots != copies {
		return fmt.Errorf("statistics say held %v, distinct %d, slots %d; want %v, %d, %d", s.Held, s.Distinct, s.Slots, held, distinct, copies)
	}
	return nil
}
