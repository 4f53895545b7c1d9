package tree

import (
	"cmp"
	"slices"
	"sync/atomic"
)

// deadChains keeps the chains and cut tails that died last and that something was
// dropped from, so that Explain still knows on which path that was. Each is an entry:
//
//	0  chain ref (32)    | version that died (32)
//	1  parent ref (32)   | version of the parent then (32); of a root: group | partition
//	2  fork (16) | blocks (16) | kind (16)
//	3  local hashes of the blocks; of a root: the anchor
//
// Blocks are named as in the eviction log, by chain and version, and so is the parent:
// it is alive in that version, or died in it later. A tail hangs below its own chain in
// the version that begins, so the blocks above the cut are known of the old version too.
//
// Entries lie one after the other in crypts, objects of the arena with the number of
// words in use before them, and never change. There is a bound on bytes, and the oldest
// crypt goes first: it is retired, as anything that readers may be looking at. Memory
// that is needed takes all of it.
type deadChains struct {
	ring    []atomic.Uint64 // for readers: crypt ref (32) | its number (32), 0 = none
	crypts  []crypt         // the same for the lane
	first   int             // oldest
	count   int
	number  uint32 // of the last
	room    uint32 // words left in the last
	bytes   uint64
	version uint32 // the last given to a chain of the lane
}

type crypt struct {
	at    ref
	units uint32
}

const (
	deadHead   = 3 // words
	kindTail   = 3
	cryptUnits = pageUnits

	// deadDrops is how many ranges of the eviction log there are for each crypt, with
	// 4,096 ranges at most a MiB. But a lane keeps no more than one part in deadPart of
	// what the content of live chains takes, and deadLeast bytes at least.
	deadDrops = 16
	deadPart  = 256
	deadLeast = 40 << 10
)

func (d *deadChains) init(drops int) {
	n := max(drops, 0)
	if n > 0 {
		n = max(n/deadDrops, deadLeast/cryptUnits/unitBytes)
	}
	d.ring, d.crypts = make([]atomic.Uint64, n), make([]crypt, n)
}

// deadLimit is the bound in bytes. An entry may be larger, and is then the only one.
func (l *Lane) deadLimit() uint64 {
	most := uint64(len(l.dead.ring)) * cryptUnits * unitBytes
	return min(most, max(deadLeast, l.arena.live[forContent]/deadPart))
}

// nextVersion returns a version that no chain of the lane has had.
func (l *Lane) nextVersion() uint32 {
	if l.dead.version++; l.dead.version == 0 {
		l.dead.version = 1
	}
	return l.dead.version
}

// buryRoot keeps a root that is about to go.
func (l *Lane) buryRoot(c ref, h *header) {
	if l.arena.side(c).dropped() {
		l.bury([...]uint64{pack(uint32(c), hi(h[hLength])), h[hCuts], 1<<16 | kindRoot<<32}, h[hCuts+1:hCuts+2])
	}
}

// buryChain keeps a chain that is about to go.
func (l *Lane) buryChain(c ref, h *header) {
	if !l.arena.side(c).dropped() {
		return
	}
	parent, n := h.parent(), h.length()
	l.arena.side(parent).setDropped()
	l.bury([...]uint64{
		pack(uint32(c), hi(h[hLength])), pack(uint32(parent), hi(l.arena.header(parent)[hLength])),
		uint64(h.fork()) | uint64(n)<<16 | kindChain<<32,
	}, l.arena.words(h.content(), int(n)))
}

// buryTail keeps the blocks that a chain had beyond its length.
func (l *Lane) buryTail(c ref, h *header, version uint32, tail []uint64) {
	side := l.arena.side(c)
	if !side.dropped() {
		return
	}
	// The version that begins has something to be remembered as long as the old one.
	l.bury([...]uint64{
		pack(uint32(c), version), pack(uint32(c), hi(h[hLength])),
		uint64(h.length()) | uint64(len(tail))<<16 | kindTail<<32,
	}, tail)
}

func (l *Lane) bury(head [deadHead]uint64, blocks []uint64) {
	d := &l.dead
	n := uint32(deadHead + len(blocks))
	if n > d.room {
		l.openCrypt(n)
	}
	last := d.first + d.count - 1
	if last >= len(d.crypts) {
		last -= len(d.crypts)
	}
	x := d.crypts[last]
	end := l.arena.word(x.at, 0)
	w := l.arena.words(x.at, int(x.units)*2)[*end:]
	copy(w, head[:])
	copy(w[deadHead:], blocks)
	d.room -= n
	store(end, *end+uint64(n))
}

// openCrypt begins a crypt with room for n words, and gives old ones up.
func (l *Lane) openCrypt(n uint32) {
	d := &l.dead
	units := max(cryptUnits, (n+2)/2)
	size := uint64(roundUp(units)) * unitBytes
	for limit := l.deadLimit(); d.count == len(d.crypts) || d.count > 0 && d.bytes+size > limit; {
		l.forgetCrypt()
	}
	x := crypt{l.arena.alloc(units, forDead), units}
	*l.arena.word(x.at, 0) = 1
	at := d.first + d.count
	if at >= len(d.crypts) {
		at -= len(d.crypts)
	}
	d.number++
	d.ring[at].Store(pack(uint32(x.at), d.number))
	d.crypts[at] = x
	d.count++
	d.room = units*2 - 1
	d.bytes += size
}

// forgetCrypt retires the oldest crypt.
func (l *Lane) forgetCrypt() {
	d := &l.dead
	d.ring[d.first].Store(0)
	x := d.crypts[d.first]
	if d.first++; d.first == len(d.crypts) {
		d.first = 0
	}
	if d.count--; d.count == 0 {
		d.room = 0
	}
	d.bytes -= uint64(roundUp(x.units)) * unitBytes
	l.retire(x.at, x.units, forDead)
}

// forgetDead retires all dead chains and reports whether there were any.
func (l *Lane) forgetDead() bool {
	some := l.dead.count > 0
	for l.dead.count > 0 {
		l.forgetCrypt()
	}
	return some
}

// graves calls found for every dead chain, the youngest first: so that the parent of
// each, if it is dead, comes before it. It reports false when the pin is lost.
func (r *Reader) graves(l *Lane, found func(w []uint64) bool) bool {
	type numbered struct {
		at     ref
		number uint32
	}
	var crypts []numbered
	for i := range l.dead.ring {
		if w := l.dead.ring[i].Load(); w != 0 {
			crypts = append(crypts, numbered{ref(w), hi(w)})
		}
	}
	slices.SortFunc(crypts, func(a, b numbered) int { return cmp.Compare(int32(b.number-a.number), 0) })
	var starts []int
	for _, x := range crypts {
		n := int(load(l.arena.word(x.at, 0)))
		if !r.ok() {
			return false
		}
		words := l.arena.words(x.at, n)
		starts = starts[:0]
		for i := 1; i < n; {
			starts = append(starts, i)
			i += deadHead + int(uint16(words[i+2]>>16))
			if !r.ok() {
				return false
			}
		}
		for end := n; len(starts) > 0; {
			at := starts[len(starts)-1]
			if !found(words[at:end:end]) {
				return false
			}
			starts, end = starts[:len(starts)-1], at
		}
	}
	return true
}
