package tree

import (
	"slices"
	"unsafe"
)

// span is a stretch of positions of one chain: from (16) | to (16), from < to.
type span uint32

func makeSpan(from, to uint32) span { return span(from | to<<16) }
func (s span) from() uint32         { return uint32(uint16(s)) }
func (s span) to() uint32           { return uint32(s >> 16) }

// A row list is what a chain keeps for some of its slots, apart from the device cuts:
//
//	0  rows (32) | room (32)
//	1  rows in use (32) | slot index ref (32)
//	2  no free row below (32)
//	3  row: value (32) | slot (32), in no order
//
// Islands are such a list, of spans that the slot holds in the device tier beyond
// its cut. A value is one span, or with the top bit the ref of a block of spans:
//
//	spans (16) | room (16), then the spans in order, 4 bytes each
//
// A score ends at the cut, so queries never look at them; Explain does, which is why
// blocks of spans are replaced and not changed.
type rowList [3]uint64

const (
	rowHead  = 3 // words
	manyFlag = 1 << 31
)

func rowUnits(room uint32) uint32 { return (rowHead + room + 1) / 2 }

func (b *rowList) count() uint32 { return lo(b[0]) }
func (b *rowList) room() uint32  { return hi(b[0]) }
func (b *rowList) live() uint32  { return lo(b[1]) }
func (b *rowList) rows() []uint64 {
	return unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(b), rowHead*8)), b.count())
}

func (l *Lane) rowList(r ref) *rowList { return (*rowList)(l.arena.at(r)) }

// findRow returns the number of the slot's row, or -1.
func (l *Lane) findRow(list ref, s uint32) int {
	if list == 0 {
		return -1
	}
	b := l.rowList(list)
	if ix := ref(hi(b[1])); ix != 0 {
		return l.indexFind(ix, s, b.rows())
	}
	for i, w := range b.rows() {
		if hi(w) == s && w != 0 {
			return i
		}
	}
	return -1
}

// setRow gives the slot a row with the value, which is not 0; i is what findRow
// returned. It returns the list, which may have moved.
func (l *Lane) setRow(list ref, i int, s, value uint32, p purpose) ref {
	if i >= 0 {
		store(&l.rowList(list).rows()[i], pack(value, s))
		return list
	}
	var b *rowList
	if list != 0 {
		b = l.rowList(list)
	}
	if b == nil || b.count() == b.room() && b.live() == b.count() {
		list = l.growRows(list, p)
		b = l.rowList(list)
	}
	n := b.count()
	at := n
	if b.live() < n {
		at = lo(b[2])
		for b.rows()[at] != 0 {
			at++
		}
	}
	b[1]++
	b[2] = uint64(at + 1)
	if ix := ref(hi(b[1])); ix != 0 {
		l.indexPut(ix, s, at)
	}
	store((*uint64)(unsafe.Add(unsafe.Pointer(b), uintptr(rowHead+at)*8)), pack(value, s))
	if at == n {
		store(&b[0], b[0]+1)
	}
	return list
}

// growRows makes a list with more room.
func (l *Lane) growRows(list ref, p purpose) ref {
	var rows []uint64
	if list != 0 {
		rows = l.rowList(list).rows()
	}
	n := uint32(len(rows))
	room := n + n/2 + 2
	next := l.arena.alloc(rowUnits(room), p)
	b := l.rowList(next)
	*b = rowList{pack(n, room), 0, uint64(n)}
	copy(b.rows(), rows)
	b[1] = pack(n, uint32(l.newIndex(b.rows(), room, p)))
	if list != 0 {
		l.retireRows(list, p)
	}
	return next
}

// deleteRow removes a row and returns the list, 0 when it was the last.
func (l *Lane) deleteRow(list ref, i int, p purpose) ref {
	b := l.rowList(list)
	rows := b.rows()
	if ix := ref(hi(b[1])); ix != 0 {
		l.indexDelete(ix, uint32(i), rows)
	}
	b[2] = uint64(min(lo(b[2]), uint32(i)))
	store(&rows[i], 0)
	if b[1]--; b.live() == 0 {
		l.retireRows(list, p)
		return 0
	}
	return list
}

func (l *Lane) retireRows(list ref, p purpose) {
	b := l.rowList(list)
	l.freeIndex(ref(hi(b[1])), p)
	l.retire(list, rowUnits(b.room()), p)
}

// getIslands appends the slot's islands, in order, to dst.
func (l *Lane) getIslands(dst []span, list ref, s uint32) (spans []span, row int) {
	row = l.findRow(list, s)
	if row < 0 {
		return dst, row
	}
	return l.appendSpans(dst, lo(l.rowList(list).rows()[row])), row
}

func (l *Lane) appendSpans(dst []span, value uint32) []span {
	if value&manyFlag == 0 {
		return append(dst, span(value))
	}
	return append(dst, l.spanBlock(value)...)
}

func (l *Lane) spanBlock(value uint32) []span {
	p := (*[2]uint16)(l.arena.at(ref(value &^ manyFlag)))
	return unsafe.Slice((*span)(unsafe.Add(unsafe.Pointer(p), 4)), p[0])
}

// putIslands replaces the slot's islands; row is what getIslands returned.
func (l *Lane) putIslands(side *sideRecord, row int, s uint32, spans []span) {
	list := side.islands()
	var old uint32
	if row >= 0 {
		old = lo(l.rowList(list).rows()[row])
	}
	switch {
	case len(spans) == 0:
		if row >= 0 {
			side.setIslands(l.deleteRow(list, row, forIslands))
		}
		l.freeSpans(old)
	case len(spans) == 1:
		side.setIslands(l.setRow(list, row, s, uint32(spans[0]), forIslands))
		l.freeSpans(old)
	default:
		side.setIslands(l.setRow(list, row, s, l.newSpans(spans), forIslands))
		l.freeSpans(old)
	}
}

func spanUnits(room uint32) uint32 { return (room + 1 + 3) / 4 }

func (l *Lane) newSpans(spans []span) uint32 {
	units := roundUp(spanUnits(uint32(len(spans))))
	r := l.arena.alloc(units, forIslands)
	p := (*[2]uint16)(l.arena.at(r))
	p[0], p[1] = uint16(len(spans)), uint16(units*4-1)
	value := uint32(r) | manyFlag
	copy(l.spanBlock(value), spans)
	return value
}

func (l *Lane) freeSpans(value uint32) {
	if value&manyFlag != 0 {
		r := ref(value &^ manyFlag)
		l.retire(r, spanUnits(uint32((*[2]uint16)(l.arena.at(r))[1])), forIslands)
	}
}

// addSpan unites [from, to) with spans, which are in order and do not touch.
func addSpan(spans []span, from, to uint32) []span {
	i := 0
	for i < len(spans) && spans[i].to() < from {
		i++
	}
	j := i
	for j < len(spans) && spans[j].from() <= to {
		from, to = min(from, spans[j].from()), max(to, spans[j].to())
		j++
	}
	return slices.Replace(spans, i, j, makeSpan(from, to))
}

// cutSpan takes [from, to) out of spans.
func cutSpan(spans []span, from, to uint32) []span {
	for i := 0; i < len(spans); {
		f, t := spans[i].from(), spans[i].to()
		switch {
		case t <= from || f >= to:
			i++
		case f < from && t > to:
			spans[i] = makeSpan(f, from)
			return slices.Insert(spans, i+1, makeSpan(to, t))
		case f < from:
			spans[i] = makeSpan(f, from)
			i++
		case t > to:
			spans[i] = makeSpan(to, t)
			i++
		default:
			spans = slices.Delete(spans, i, i+1)
		}
	}
	return spans
}
