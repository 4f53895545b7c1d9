package tree

import "sync/atomic"

// evictionLog remembers which stretches slots have dropped, for Explain: a ring of
//
//	0  slot (32) | blocks (16) | birth of the chain (16)
//	1  chain ref (32) | offset (16) | version of the chain (16)
//
// It speaks of places in the tree, so it knows of a stretch as long as the tree has
// the chain and its tail was not cut: as long as somebody holds the blocks. It never
// has a say in a score.
type evictionLog struct {
	ring []atomic.Uint64
	next uint32
}

func (e *evictionLog) init(n int) { e.ring = make([]atomic.Uint64, 2*max(n, 0)) }

func (l *Lane) logEviction(c *copyRecord, chain ref, from, n uint32) {
	e := &l.evicted
	if len(e.ring) == 0 {
		return
	}
	h := l.arena.header(chain)
	e.ring[e.next].Store(uint64(c.slot()) | uint64(n)<<32 | uint64(birthOf(h[hParent]))<<48)
	e.ring[e.next+1].Store(uint64(chain) | uint64(from)<<32 | uint64(uint16(hi(h[hLength])))<<48)
	if e.next += 2; int(e.next) == len(e.ring) {
		e.next = 0
	}
}

// stretches calls found for every stretch of a chain that a slot has dropped.
func (e *evictionLog) stretches(slot uint32, chain ref, birth, version uint32, found func(from, to uint32)) {
	for k := 0; k < len(e.ring); k += 2 {
		w := e.ring[k].Load()
		if lo(w) != slot || w == 0 || uint32(w>>48) != birth {
			continue
		}
		v := e.ring[k+1].Load()
		if ref(v) == chain && uint16(v>>48) == uint16(version) {
			from := uint32(uint16(v >> 32))
			found(from, from+uint32(uint16(w>>32)))
		}
	}
}

// forget takes out what it has of a slot number, in whatever group.
func (e *evictionLog) forget(slot uint32) {
	for k := 0; k < len(e.ring); k += 2 {
		if w := e.ring[k].Load(); w != 0 && lo(w) == slot {
			e.ring[k].Store(0)
		}
	}
}
