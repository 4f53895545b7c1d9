package tree

import (
	"math/bits"
	"slices"
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

// maxAttempts bounds how often a query is asked again because a lane took coverage from
// a slot that it reports. A query takes about a microsecond, so a second attempt is
// already rare; only a slot that drops without a pause gets to the last.
const maxAttempts = 64

// Match implements indexer.Reader.
func (r *Reader) Match(q indexer.Query, out *indexer.Scores) {
	out.Rows, out.Tiers = out.Rows[:0], out.Tiers[:0]
	if len(q.Locals) == 0 {
		return
	}
	l := r.lane(q.Group, q.Partition)
	for attempt := 1; ; attempt++ {
		r.enter(l)
		from := l.drops.now.Load()
		tree, done := r.walk(l, q, out)
		proved := done && r.proved(l, tree, from, out)
		last := attempt >= maxAttempts
		if !proved && done && last {
			r.lower(l, tree, from, out)
			proved = true
		}
		if r.leave() && proved {
			return
		}
		r.retries++
		if attempt >= maxAttempts-1 {
			r.before.Rows = append(r.before.Rows[:0], out.Rows...)
			r.before.Tiers = append(r.before.Tiers[:0], out.Tiers...)
		}
		out.Rows, out.Tiers = out.Rows[:0], out.Tiers[:0]
		if attempt == 2*maxAttempts {
			return // the lane was at work on the path each time, or the pin was lost
		}
	}
}

// suspect reports whether the slot lost coverage since the clock stood at from.
func (l *Lane) suspect(tree uint32, s indexer.Slot, from uint64) bool {
	return l.drops.at[dropSlot(tree, uint32(s))].Load() >= from
}

// proved reports whether no slot that is about to be reported has lost coverage since
// the clock stood at from.
func (r *Reader) proved(l *Lane, tree uint32, from uint64, out *indexer.Scores) bool {
	// While one drop is under way the slot only loses: what was seen was all held when
	// the query began.
	if l.drops.now.Load() == from {
		return true
	}
	for i := range out.Rows {
		if l.suspect(tree, out.Rows[i].Slot, from) {
			return false
		}
	}
	for i := range out.Tiers {
		if l.suspect(tree, out.Tiers[i].Slot, from) {
			return false
		}
	}
	return true
}

// lower settles for less where no attempt was proved: a slot that kept losing coverage
// gets the lower one of two attempts. Both saw every block of that held at some moment,
// and what was held all the time is in both.
func (r *Reader) lower(l *Lane, tree uint32, from uint64, out *indexer.Scores) {
	rows := out.Rows[:0]
	for _, row := range out.Rows {
		if !l.suspect(tree, row.Slot, from) {
			rows = append(rows, row)
			continue
		}
		seen := slices.ContainsFunc(rows, func(o indexer.Row) bool { return o.Slot == row.Slot })
		least := uint32(0)
		for _, o := range r.before.Rows {
			if o.Slot == row.Slot && (least == 0 || o.Depth < least) {
				least = o.Depth
			}
		}
		if row.Depth = min(row.Depth, least); row.Depth > 0 && !seen {
			rows = append(rows, row)
		}
	}
	out.Rows = rows
	out.Tiers = slices.DeleteFunc(out.Tiers, func(row indexer.TierRow) bool {
		return l.suspect(tree, row.Slot, from) && !slices.Contains(r.before.Tiers, row)
	})
}

// walk follows the query down the tree. It reports false when it met the lane at work
// in a way that has to be looked at again.
func (r *Reader) walk(l *Lane, q indexer.Query, out *indexer.Scores) (tree uint32, done bool) {
	r.hops = r.hops[:0]
	r.active = r.active[:0]
	c, ok := r.root(l, q.Group, q.Partition, q.Anchor)
	if c == 0 || !ok {
		return 0, ok
	}
	tree = uint32(load(&l.arena.header(c)[hCuts+2]))
	locals, base, fork := q.Locals, uint32(0), uint32(0)
	lower := false
	for {
		hash := childHash(c, fork, locals[0])
		if load(&l.arena.header(c)[hCoverage])&filterBit(hash) == 0 {
			break
		}
		child, n, version, ok := r.child(l, c, fork, locals, hash)
		if !ok {
			return tree, false
		}
		if child == 0 {
			break
		}
		h := l.arena.header(child)
		r.hops = append(r.hops, hop{child, version, base, uint32(n)})
		left, ok := r.enterChain(l, h, version, base, uint32(n), out)
		if !ok {
			return tree, false
		}
		lower = lower || hi(load(&h[hContent])) != 0
		c, fork, base, locals = child, uint32(n), base+uint32(n), locals[n:]
		if len(locals) == 0 || !left && !lower {
			break
		}
	}
	for w, set := range r.active {
		for ; set != 0; set &= set - 1 {
			out.Rows = append(out.Rows, indexer.Row{Slot: indexer.Slot(w*64 + bits.TrailingZeros64(set)), Depth: base})
		}
	}
	if lower {
		return tree, r.walkTiers(l, out)
	}
	return tree, true
}

// enterChain takes the path through one chain: slots whose cut ends in it are scored,
// those that hold all of the extent stay active. It reports whether any are left.
func (r *Reader) enterChain(l *Lane, h *header, version, base, extent uint32, out *indexer.Scores) (left, ok bool) {
	first := base == 0
	if !r.coverage(l, h, extent, first) || hi(load(&h[hLength])) != version {
		return false, false
	}
	any := uint64(0)
	if first {
		r.active, r.next = r.next, r.active[:0]
		r.widen(uint32(len(r.active)))
		for _, e := range r.part {
			if s := hi(e); int(s/64) >= len(r.active) || r.active[s/64]>>(s%64)&1 == 0 {
				out.Rows = append(out.Rows, indexer.Row{Slot: indexer.Slot(s), Depth: lo(e)})
			}
		}
		for _, w := range r.active {
			any |= w
		}
		return any != 0, true
	}
	for _, e := range r.part {
		w, b := hi(e)/64, uint64(1)<<(hi(e)%64)
		if int(w) < len(r.active) && r.active[w]&^r.next[w]&b != 0 {
			r.active[w] &^= b
			out.Rows = append(out.Rows, indexer.Row{Slot: indexer.Slot(hi(e)), Depth: base + lo(e)})
		}
	}
	for w, set := range r.active {
		if set == 0 {
			continue
		}
		stay := set & r.next[w]
		for gone := set &^ stay; gone != 0; gone &= gone - 1 {
			out.Rows = append(out.Rows, indexer.Row{Slot: indexer.Slot(w*64 + bits.TrailingZeros64(gone)), Depth: base})
		}
		r.active[w] = stay
		any |= stay
	}
	return any != 0, true
}

// coverage reads who holds the first extent blocks of a chain into next, and the cuts
// of those who hold fewer into part.
func (r *Reader) coverage(l *Lane, h *header, extent uint32, first bool) bool {
	for range 4 {
		if first {
			r.next = r.next[:0]
		}
		clear(r.next)
		r.part = r.part[:0]
		c := lo(load(&h[hCoverage]))
		if c == 0 {
			r.cuts(h[hCuts:], extent, first)
			if lo(load(&h[hCoverage])) == 0 {
				return r.ok()
			}
			continue
		}
		if !r.ok() {
			return false
		}
		b := (*coverBlock)(l.arena.at(ref(c)))
		state := load(&b[1])
		if !r.ok() {
			return false
		}
		words := lo(state)
		if first {
			r.widen(words)
		}
		for i := range min(words, uint32(len(r.next))) {
			r.next[i] = load(b.full(i))
		}
		r.cuts(h[hCuts:], extent, first)
		// Only now: a slot that turns from a bit to a cut may be the last entry.
		size := load(&b[0])
		if !r.ok() {
			return false
		}
		cuts := unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(b), uintptr(coverHead+words)*8)), lo(size))
		r.cuts(cuts, extent, first)
		if load(&b[1]) == state && lo(load(&h[hCoverage])) == c {
			return r.ok()
		}
	}
	return false
}

func (r *Reader) cuts(cuts []uint64, extent uint32, first bool) {
	for i := range cuts {
		e := load(&cuts[i])
		switch {
		case e == 0:
		case lo(e) < extent:
			r.part = append(r.part, e)
		default:
			w := hi(e) / 64
			if int(w) >= len(r.next) {
				if !first {
					continue // nobody above has so high a number
				}
				if !r.ok() {
					return
				}
				r.widen(w + 1)
			}
			r.next[w] |= 1 << (hi(e) % 64)
		}
	}
}

// widen makes next cover more slots. A query looks at no more words than the highest
// slot of the first chain needs.
func (r *Reader) widen(words uint32) {
	n, had := int(words), len(r.next)
	switch {
	case n <= had:
	case n <= cap(r.next):
		r.next = r.next[:n]
		clear(r.next[had:])
	default:
		r.next = append(r.next, make([]uint64, n-had)...)
	}
}
