package tree

import (
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

// What slots hold of a chain in the lower tiers is kept apart from the device tier
// and only where there is some. The chain's header leads to a block
// that is a row list with tier record refs for values, and a row to a record, which is never changed once readers can see it:
//
//	0  spans of host (16) | of disk (16) | of external (16) | 0 (16)
//	1  the spans of the three tiers, each in order, 4 bytes each
//
// Rows do not move within a list, and a bigger list is published in one word.
const tierHead = 2 // spans that the counts take

func tierUnits(spans uint32) uint32 { return (tierHead + spans + 3) / 4 }

func (l *Lane) tierRows(h *header) []uint64 {
	if r := h.tiers(); r != 0 {
		return l.rowList(r).rows()
	}
	return nil
}

// tierSpans is a view of the spans of one tier in a record.
func (l *Lane) tierSpans(record ref, t indexer.Tier) []span {
	w := *l.arena.word(record, 0)
	from, n := uint32(0), uint32(0)
	for i := indexer.Host; i <= t; i++ {
		from += n
		n = uint32(uint16(w >> (16 * (i - indexer.Host))))
	}
	return unsafe.Slice((*span)(unsafe.Add(l.arena.at(record), (tierHead+from)*4)), n)
}

func spanCount(w uint64) uint32 {
	return uint32(uint16(w)) + uint32(uint16(w>>16)) + uint32(uint16(w>>32))
}

// coverTier says that the slot holds [from, to) in a lower tier under one more name.
func (l *Lane) coverTier(c *copyRecord, chain ref, tier indexer.Tier, from, to uint32) {
	h, side := l.arena.header(chain), l.arena.side(chain)
	spans, row := l.getTiers(h, c.slot())
	fresh := to - from
	for _, sp := range spans[tier] {
		if f, t := max(from, sp.from()), min(to, sp.to()); f < t {
			l.addAlias(c, side, tier, f, t)
			fresh -= t - f
		}
	}
	l.held[tier] += uint64(fresh)
	spans[tier] = addSpan(spans[tier], from, to)
	l.putTiers(h, row, c.slot())
	if side.covered() < h.length() {
		l.recount(chain)
	}
}

// uncoverTier takes [from, to), all of which the slot holds, out of a lower tier.
func (l *Lane) uncoverTier(c *copyRecord, chain ref, tier indexer.Tier, from, to uint32) {
	h := l.arena.header(chain)
	spans, row := l.getTiers(h, c.slot())
	l.held[tier] -= uint64(to - from)
	spans[tier] = cutSpan(spans[tier], from, to)
	l.putTiers(h, row, c.slot())
}

// getTiers copies the slot's spans to where putTiers takes them from, and returns
// them and the slot's row, or -1.
func (l *Lane) getTiers(h *header, s uint32) (spans *[indexer.NumTiers][]span, row int) {
	row = l.findRow(h.tiers(), s)
	for t := indexer.Host; t < indexer.NumTiers; t++ {
		l.tierScratch[t] = l.tierScratch[t][:0]
		if row >= 0 {
			l.tierScratch[t] = append(l.tierScratch[t], l.tierSpans(ref(l.tierRows(h)[row]), t)...)
		}
	}
	return &l.tierScratch, row
}

// putTiers publishes new spans for the slot.
func (l *Lane) putTiers(h *header, row int, s uint32) {
	spans, list := &l.tierScratch, h.tiers()
	old := ref(0)
	if row >= 0 {
		old = ref(l.rowList(list).rows()[row])
	}
	n := uint32(len(spans[indexer.Host]) + len(spans[indexer.Disk]) + len(spans[indexer.External]))
	next := list
	switch {
	case n > 0:
		r := l.arena.alloc(tierUnits(n), forTiers)
		*l.arena.word(r, 0) = uint64(len(spans[indexer.Host])) | uint64(len(spans[indexer.Disk]))<<16 | uint64(len(spans[indexer.External]))<<32
		for t := indexer.Host; t < indexer.NumTiers; t++ {
			copy(l.tierSpans(r, t), spans[t])
		}
		next = l.setRow(list, row, s, uint32(r), forTiers)
	case row >= 0:
		next = l.deleteRow(list, row, forTiers)
	}
	if next != list {
		store(&h[hContent], pack(uint32(h.content()), uint32(next)))
	}
	if old != 0 {
		l.retire(old, tierUnits(spanCount(*l.arena.word(old, 0))), forTiers)
	}
}

// markTiers marks what any slot holds in the lower tiers, until all is marked.
func (l *Lane) markTiers(h *header) {
	for i, w := range l.tierRows(h) {
		if w == 0 {
			continue
		}
		for t := indexer.Host; t < indexer.NumTiers; t++ {
			for _, sp := range l.tierSpans(ref(w), t) {
				l.mark(sp.from(), sp.to())
			}
		}
		if i%16 == 15 && l.allMarked(h.length()) {
			return
		}
	}
}
