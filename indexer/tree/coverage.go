package tree

import "unsafe"

// Device coverage of a chain says for every slot its cut: it holds [0, cut). What it
// holds beyond that are islands, which readers never need.
//
//	four cuts in the header, then a coverage block:
//	0  entries (32)    | room for entries (32)
//	1  bit words (32)  | moves (32)
//	2  live entries (32) | slots with a bit (32)
//	3  slot index ref (32) | no free entry below (32)
//	4  full[bit words]       bit per slot: holds the whole chain
//	   cuts[room]            cut (32) | slot (32), 0 = none
//
// A slot has a bit or a cut, never both except while it changes. The order in which
// the lane writes them, for a reader that looks at bits, then header, then entries:
//
//   - full to cut: the cut first, then the bit is cleared. No reader misses it.
//   - cut to full: the bit, then moves is counted up, then the cut is cleared. A
//     reader that finds moves changed looks again.
type coverBlock [4]uint64

const coverHead = 4 // words

func coverUnits(words, room uint32) uint32 { return (coverHead + words + room + 1) / 2 }

func (b *coverBlock) count() uint32 { return lo(b[0]) }
func (b *coverBlock) room() uint32  { return hi(b[0]) }
func (b *coverBlock) words() uint32 { return lo(b[1]) }
func (b *coverBlock) moves() uint32 { return hi(b[1]) }
func (b *coverBlock) live() uint32  { return lo(b[2]) }
func (b *coverBlock) bits() uint32  { return hi(b[2]) }

func (b *coverBlock) full(i uint32) *uint64 {
	return (*uint64)(unsafe.Add(unsafe.Pointer(b), uintptr(coverHead+i)*8))
}

func (b *coverBlock) cut(i uint32) *uint64 {
	return (*uint64)(unsafe.Add(unsafe.Pointer(b), uintptr(coverHead+b.words()+i)*8))
}

func (b *coverBlock) isFull(s uint32) bool {
	return s/64 < b.words() && *b.full(s / 64)>>(s%64)&1 != 0
}

func (l *Lane) cover(h *header) *coverBlock {
	if r := h.coverage(); r != 0 {
		return (*coverBlock)(l.arena.at(r))
	}
	return nil
}

// findCut returns the word with the slot's cut, or nil.
func (l *Lane) findCut(h *header, s uint32) *uint64 {
	for i := hCuts; i < hCuts+numCuts; i++ {
		if w := h[i]; hi(w) == s && w != 0 {
			return &h[i]
		}
	}
	b := l.cover(h)
	if b == nil || b.live() == 0 {
		return nil
	}
	cuts := unsafe.Slice(b.cut(0), b.count())
	if ix := ref(b[3]); ix != 0 {
		if i := l.indexFind(ix, s, cuts); i >= 0 {
			return &cuts[i]
		}
		return nil
	}
	for i := range cuts {
		if w := cuts[i]; hi(w) == s && w != 0 {
			return &cuts[i]
		}
	}
	return nil
}

// deviceCut returns what the slot holds from the start of the chain.
func (l *Lane) deviceCut(h *header, s uint32) (cut uint32, entry *uint64) {
	if b := l.cover(h); b != nil && b.isFull(s) {
		return h.length(), nil
	}
	if entry = l.findCut(h, s); entry != nil {
		return lo(*entry), entry
	}
	return 0, nil
}

// setCut gives the slot a new cut, 0 for none. entry is what deviceCut returned with
// the old cut.
func (l *Lane) setCut(h *header, s, cut, old uint32, entry *uint64) {
	if entry == nil && old > 0 { // it has a bit
		if cut > 0 {
			l.addCut(h, s, cut)
		}
		b := l.cover(h)
		w := b.full(s / 64)
		store(w, *w&^(1<<(s%64)))
		b[2] -= 1 << 32
		return
	}
	if cut > 0 && cut == h.length() {
		if b := l.cover(h); b != nil && s/64 < b.words() {
			w := b.full(s / 64)
			store(w, *w|1<<(s%64))
			b[2] += 1 << 32
			if entry != nil {
				store(&b[1], pack(b.words(), b.moves()+1))
				l.clearCut(h, entry)
			}
			return
		}
	}
	switch {
	case entry == nil:
		if cut > 0 {
			l.addCut(h, s, cut)
		}
	case cut == 0:
		l.clearCut(h, entry)
	default:
		store(entry, pack(cut, s))
	}
}

// clearCut removes an entry.
func (l *Lane) clearCut(h *header, entry *uint64) {
	if p := uintptr(unsafe.Pointer(entry)) - uintptr(unsafe.Pointer(h)); p >= uintptr(len(h))*8 {
		b := l.cover(h)
		n := uint32((uintptr(unsafe.Pointer(entry)) - uintptr(unsafe.Pointer(b.cut(0)))) / 8)
		if ix := ref(b[3]); ix != 0 {
			l.indexDelete(ix, n, unsafe.Slice(b.cut(0), b.count()))
		}
		b[2]--
		b[3] = pack(lo(b[3]), min(hi(b[3]), n))
	}
	store(entry, 0)
}

// addCut enters a slot that has no entry.
func (l *Lane) addCut(h *header, s, cut uint32) {
	for i := hCuts; i < hCuts+numCuts; i++ {
		if h[i] == 0 {
			store(&h[i], pack(cut, s))
			return
		}
	}
	b := l.cover(h)
	if b == nil {
		l.growCover(h, s)
		l.addCut(h, s, cut)
		return
	}
	if b.live() < b.count() {
		i := hi(b[3])
		for *b.cut(i) != 0 {
			i++
		}
		l.putCut(b, i, s, cut)
		return
	}
	if n := b.count(); n < b.room() {
		l.putCut(b, n, s, cut)
		store(&b[0], pack(n+1, b.room()))
		return
	}
	// The caller of addCut has decided that the slot gets a cut, also where it could
	// have a bit in the bigger block: then it must still be found there.
	l.growCover(h, s)
	l.addCut(h, s, cut)
}

func (l *Lane) putCut(b *coverBlock, i, s, cut uint32) {
	b[2]++
	b[3] = pack(lo(b[3]), i+1)
	if ix := ref(b[3]); ix != 0 {
		l.indexPut(ix, s, i)
	}
	store(b.cut(i), pack(cut, s))
}

// growCover makes a bigger coverage block. When enough slots hold all of the chain
// that bits are smaller than entries, it gives them bits.
func (l *Lane) growCover(h *header, s uint32) {
	length := h.length()
	old := l.cover(h)
	var words, live, whole uint32
	top := s
	each := func(w uint64) {
		if w != 0 {
			live++
			top = max(top, hi(w))
			if lo(w) == length {
				whole++
			}
		}
	}
	for i := hCuts; i < hCuts+numCuts; i++ {
		each(h[i])
	}
	inHeader := live
	if old != nil {
		words = old.words()
		for i := range old.count() {
			each(*old.cut(i))
		}
	}
	need := max(words, top/64+1)
	convert := words > 0 || whole >= max(numCuts, need)
	if convert {
		words = need
		live -= whole
		inHeader = 0
		for i := hCuts; i < hCuts+numCuts; i++ {
			if h[i] != 0 && lo(h[i]) != length {
				inHeader++
			}
		}
	}
	listed := live - inHeader
	room := listed + listed/2 + 4
	r := l.arena.alloc(coverUnits(words, room), forCoverage)
	b := (*coverBlock)(l.arena.at(r))
	*b = coverBlock{pack(0, room), pack(words, 0), 0, 0}
	clear(unsafe.Slice(b.full(0), words))
	n, full := uint32(0), uint32(0)
	if old != nil {
		full = old.bits()
	}
	put := func(w uint64, listed bool) {
		switch {
		case w == 0:
		case convert && lo(w) == length:
			*b.full(hi(w) / 64) |= 1 << (hi(w) % 64)
			full++
		case listed:
			*b.cut(n) = w
			n++
		}
	}
	if old != nil {
		for i := range old.words() {
			*b.full(i) = *old.full(i)
		}
		for i := range old.count() {
			put(*old.cut(i), true)
		}
	}
	for i := hCuts; i < hCuts+numCuts; i++ {
		put(h[i], false)
	}
	b[0], b[2] = pack(n, room), pack(n, full)
	b[3] = pack(uint32(l.newIndex(unsafe.Slice(b.cut(0), n), room, forCoverage)), n)
	store(&h[hCoverage], h[hCoverage]&^0xffffffff|uint64(r))
	if convert {
		for i := hCuts; i < hCuts+numCuts; i++ {
			if h[i] != 0 && lo(h[i]) == length {
				store(&h[i], 0)
			}
		}
	}
	if old != nil {
		l.retireCover(old)
	}
}

func (l *Lane) retireCover(b *coverBlock) {
	l.freeIndex(ref(b[3]), forCoverage)
	l.retire(l.arena.refOf(unsafe.Pointer(b)), coverUnits(b.words(), b.room()), forCoverage)
}
