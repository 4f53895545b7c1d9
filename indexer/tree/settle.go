package tree

import (
	"math/bits"
	"unsafe"
)

// Each chain has two counts, kept exact: tip, the end of the last position that any
// slot covers in any tier, and covered, how many positions any slot covers. Cuts
// alone cover a prefix, so both are the highest cut; only islands and lower tiers
// make it necessary to mark positions one by one.

// raise notes that some slot now holds [0, to).
func (l *Lane) raise(c ref, h *header, side *sideRecord, to uint32) {
	if side.islands() != 0 || h.tiers() != 0 {
		if side.covered() < h.length() {
			l.recount(c)
		}
		return
	}
	if to > side.tip() {
		l.distinct += uint64(to - side.covered())
		side[2] = side[2]&^0xffffffff | uint64(to) | uint64(to)<<16
	}
}

// highestCut returns the highest cut of any slot.
func (l *Lane) highestCut(h *header) uint32 {
	top := uint32(0)
	for i := hCuts; i < hCuts+numCuts; i++ {
		top = max(top, lo(h[i]))
	}
	b := l.cover(h)
	if b == nil {
		return top
	}
	if b.bits() > 0 {
		return h.length()
	}
	if b.live() > 0 {
		for _, w := range unsafe.Slice(b.cut(0), b.count()) {
			top = max(top, lo(w))
		}
	}
	return top
}

// recount brings tip and covered up to date.
func (l *Lane) recount(c ref) {
	h, side := l.arena.header(c), l.arena.side(c)
	top := l.highestCut(h)
	tip, covered := top, top
	if top < h.length() && (side.islands() != 0 || h.tiers() != 0) {
		tip, covered = l.countMarks(h, side, top)
	}
	l.distinct += uint64(covered) - uint64(side.covered())
	side[2] = side[2]&^0xffffffff | uint64(tip) | uint64(covered)<<16
}

// countMarks counts with islands and lower tiers; cuts cover [0, top).
func (l *Lane) countMarks(h *header, side *sideRecord, top uint32) (tip, covered uint32) {
	words := (h.length() + 63) / 64
	clear(l.marks[:words])
	l.mark(0, top)
	if list := side.islands(); list != 0 {
		for _, row := range l.rowList(list).rows() {
			if v := lo(row); row == 0 {
				continue
			} else if v&manyFlag == 0 {
				l.mark(max(top, span(v).from()), span(v).to())
			} else {
				for _, sp := range l.spanBlock(v) {
					l.mark(max(top, sp.from()), sp.to())
				}
			}
		}
	}
	l.markTiers(h)
	for i, w := range l.marks[:words] {
		if w != 0 {
			covered += uint32(bits.OnesCount64(w))
			tip = uint32(i*64 + bits.Len64(w))
		}
	}
	return tip, covered
}

func (l *Lane) mark(from, to uint32) {
	for from < to {
		w, b := from/64, from%64
		n := min(64-b, to-from)
		l.marks[w] |= (^uint64(0) >> (64 - n)) << b
		from += n
	}
}

// allMarked reports whether every position of a chain is marked.
func (l *Lane) allMarked(length uint32) bool {
	for _, w := range l.marks[:length/64] {
		if w != ^uint64(0) {
			return false
		}
	}
	rest := length % 64
	return rest == 0 || l.marks[length/64] == 1<<rest-1
}

// settleFrom is settle after a slot lost a prefix that ended at cut.
func (l *Lane) settleFrom(c ref, cut uint32) {
	if cut < l.arena.side(c).tip() {
		return
	}
	l.settle(c)
}

// settle looks after a chain that has lost coverage: it goes when nothing is left of
// it, and then perhaps what is above it; a dead tail is given back.
func (l *Lane) settle(c ref) {
	l.recount(c)
	for {
		h, side := l.arena.header(c), l.arena.side(c)
		if side.covered() > 0 || side.children() > 0 {
			if !h.isRoot() {
				l.trim(c, h, max(side.tip(), side.lastFork()))
			}
			return
		}
		parent := h.parent()
		if l.freeChain(c); parent == 0 {
			return
		}
		c = parent
	}
}

// trim gives back the tail of a chain when it is worth a copy: so that eviction block
// by block copies each block a few times at most.
func (l *Lane) trim(c ref, h *header, tip uint32) {
	length, capacity := h.length(), h.capacity()
	if dead := length - tip; dead < 4 || dead < capacity/8 {
		return
	}
	next := roundUp(tip)
	if next >= capacity {
		return
	}
	if b := l.cover(h); b != nil && b.bits() == 0 && b.words() > 0 {
		// A bit would stand for another length from now on.
		l.shrinkCover(h, b)
	}
	l.stored -= uint64(length - tip)
	old, version := h.content(), hi(h[hLength])
	l.moveContent(h, next, tip)
	l.buryTail(c, h, version, l.arena.words(old, int(length))[tip:])
	l.retire(old, capacity, forContent)
}

// shrinkCover drops the bits of a chain that nobody holds in full, and the whole
// block when it has no cuts either.
func (l *Lane) shrinkCover(h *header, b *coverBlock) {
	next := ref(0)
	if n := b.live(); n > 0 {
		next = l.arena.alloc(coverUnits(0, n+4), forCoverage)
		to := (*coverBlock)(l.arena.at(next))
		*to = coverBlock{pack(n, n+4), 0, pack(n, 0), pack(0, n)}
		i := uint32(0)
		for _, w := range unsafe.Slice(b.cut(0), b.count()) {
			if w != 0 {
				*to.cut(i) = w
				i++
			}
		}
		to[3] = pack(uint32(l.newIndex(unsafe.Slice(to.cut(0), n), n+4, forCoverage)), n)
	}
	store(&h[hCoverage], h[hCoverage]&^0xffffffff|uint64(next))
	l.retireCover(b)
}

// freeChain takes a chain or root without coverage and children out of the tree.
func (l *Lane) freeChain(c ref) {
	h, side := l.arena.header(c), l.arena.side(c)
	if h.isRoot() {
		l.unpublish(c, rootHash(lo(h[hCuts]), hi(h[hCuts]), h[hCuts+1]))
		l.buryRoot(c, h)
		l.retire(c, 0, forChains)
		return
	}
	if side.islands() != 0 || side.aliases() != 0 || h.tiers() != 0 {
		panic("tree: chain freed while a slot holds some of it")
	}
	l.unlink(c)
	l.chains--
	l.stored -= uint64(h.length())
	if b := l.cover(h); b != nil {
		l.retireCover(b)
	}
	l.buryChain(c, h)
	l.retire(h.content(), h.capacity(), forContent)
	store(&h[hLength], packLength(0, 0, hi(h[hLength])+1))
	l.retire(c, 0, forChains)
}
