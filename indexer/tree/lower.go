package tree

import (
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

// What slots hold of a chain in the lower tiers is kept apart from the device tier
// and only where there is some. The chain's header leads to a block
//
//	0  rows (32) | room (32)
//	1  unused
//	2  row: tier record ref (32) | slot (32), 0 = none
//
// and a row to a record, which is never changed once readers can see it:
//
//	0  spans of host (16) | of disk (16) | of external (16) | 0 (16)
//	1  the spans of the three tiers, each in order, 4 bytes each
//
// Rows do not move within a block, and a bigger block is published in one word.
const tierHead = 2 // spans that the counts take

func tierUnits(spans uint32) uint32 { return (tierHead + spans + 3) / 4 }

func (l *Lane) tierRows(h *header) (rows []uint64, list *rowList) {
	r := h.tiers()
	if r == 0 {
		return nil, nil
	}
	list = l.rowList(r)
	return list.rows(), list
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
	var spans [indexer.NumTiers][]span
	row := l.getTiers(h, c.slot(), &spans)
	fresh := to - from
	for _, sp := range spans[tier] {
		if f, t := max(from, sp.from()), min(to, sp.to()); f < t {
			l.addAlias(c, side, tier, f, t)
			fresh -= t - f
		}
	}
	l.held[tier] += uint64(fresh)
	spans[tier] = addSpan(spans[tier], from, to)
	l.putTiers(h, row, c.slot(), &spans)
	l.recount(chain)
}

// uncoverTier takes [from, to), all of which the slot holds, out of a lower tier.
func (l *Lane) uncoverTier(c *copyRecord, chain ref, tier indexer.Tier, from, to uint32) {
	h := l.arena.header(chain)
	var spans [indexer.NumTiers][]span
	row := l.getTiers(h, c.slot(), &spans)
	l.held[tier] -= uint64(to - from)
	spans[tier] = cutSpan(spans[tier], from, to)
	l.putTiers(h, row, c.slot(), &spans)
}

// getTiers copies the slot's spans out and returns its row, or -1.
func (l *Lane) getTiers(h *header, s uint32, spans *[indexer.NumTiers][]span) int {
	rows, _ := l.tierRows(h)
	for i, w := range rows {
		if w != 0 && hi(w) == s {
			for t := indexer.Host; t < indexer.NumTiers; t++ {
				spans[t] = append([]span(nil), l.tierSpans(ref(w), t)...)
			}
			return i
		}
	}
	return -1
}

// putTiers publishes new spans for the slot.
func (l *Lane) putTiers(h *header, row int, s uint32, spans *[indexer.NumTiers][]span) {
	rows, list := l.tierRows(h)
	n := uint32(len(spans[indexer.Host]) + len(spans[indexer.Disk]) + len(spans[indexer.External]))
	var entry uint64
	if n > 0 {
		r := l.arena.alloc(tierUnits(n), forTiers)
		*l.arena.word(r, 0) = uint64(len(spans[indexer.Host])) | uint64(len(spans[indexer.Disk]))<<16 | uint64(len(spans[indexer.External]))<<32
		for t := indexer.Host; t < indexer.NumTiers; t++ {
			copy(l.tierSpans(r, t), spans[t])
		}
		entry = pack(uint32(r), s)
	}
	if row >= 0 {
		old := ref(lo(rows[row]))
		store(&rows[row], entry)
		l.retire(old, tierUnits(spanCount(*l.arena.word(old, 0))), forTiers)
		if entry == 0 {
			if list[1]--; list[1] == 0 {
				store(&h[hContent], pack(uint32(h.content()), 0))
				l.retire(l.arena.refOf(unsafe.Pointer(list)), rowUnits(list.room()), forTiers)
			}
		}
		return
	}
	if entry == 0 {
		return
	}
	l.addTierRow(h, rows, list, entry)
}

// addTierRow enters a slot that has no row. Word 1 of the list counts the rows in use.
func (l *Lane) addTierRow(h *header, rows []uint64, list *rowList, entry uint64) {
	if list != nil && list[1] < uint64(len(rows)) {
		for i := range rows {
			if rows[i] == 0 {
				list[1]++
				store(&rows[i], entry)
				return
			}
		}
	}
	n := uint32(len(rows))
	if list == nil || n == list.room() {
		room := n + n/2 + 2
		r := l.arena.alloc(rowUnits(room), forTiers)
		next := l.rowList(r)
		*next = rowList{pack(n+1, room), uint64(n + 1)}
		copy(next.rows(), rows)
		next.rows()[n] = entry
		store(&h[hContent], pack(uint32(h.content()), uint32(r)))
		if list != nil {
			l.retire(l.arena.refOf(unsafe.Pointer(list)), rowUnits(list.room()), forTiers)
		}
		return
	}
	list[1]++
	w := (*uint64)(unsafe.Add(unsafe.Pointer(list), (rowHead+n)*8))
	store(w, entry)
	store(&list[0], pack(n+1, list.room()))
}

// markTiers marks what any slot holds in the lower tiers.
func (l *Lane) markTiers(h *header) {
	rows, _ := l.tierRows(h)
	for _, w := range rows {
		if w == 0 {
			continue
		}
		for t := indexer.Host; t < indexer.NumTiers; t++ {
			for _, sp := range l.tierSpans(ref(w), t) {
				l.mark(sp.from(), sp.to())
			}
		}
	}
}
