package tree

import "sync/atomic"

// evictionLog remembers which stretches slots have dropped, for Explain: a ring of
//
//	0  slot (32) | blocks (16) | offset (16)
//	1  chain ref (32) | version of the chain (32), 0 = nothing
//
// It speaks of places in the tree. A version is given once in the life of a lane, so a
// place says which blocks it was even when the chain is gone or its tail was cut: as
// long as deadChains has them. The log never has a say in a score.
type evictionLog struct {
	ring []atomic.Uint64
	next uint32
}

func (e *evictionLog) init(n int) { e.ring = make([]atomic.Uint64, 2*max(n, 0)) }

// logEviction notes a drop, while the drop clock is odd: readers of the two words find
// out by it that they may be of different entries.
func (l *Lane) logEviction(c *copyRecord, chain ref, from, n uint32) {
	e := &l.evicted
	if len(e.ring) == 0 {
		return
	}
	l.arena.side(chain).setDropped()
	e.ring[e.next].Store(uint64(c.slot()) | uint64(n)<<32 | uint64(from)<<48)
	e.ring[e.next+1].Store(pack(uint32(chain), hi(l.arena.header(chain)[hLength])))
	if e.next += 2; int(e.next) == len(e.ring) {
		e.next = 0
	}
}

// stretches calls found for every stretch that a slot has dropped.
func (l *Lane) stretches(slot uint32, found func(chain ref, version, from, to uint32)) {
	ring := l.evicted.ring
	for k := 0; k < len(ring); k += 2 {
		if lo(ring[k].Load()) != slot {
			continue
		}
		for range maxAttempts {
			clock := l.drops.now.Load()
			at, what := ring[k+1].Load(), ring[k].Load()
			if clock&1 != 0 || l.drops.now.Load() != clock {
				continue // an entry half written is for another look
			}
			if at != 0 && lo(what) == slot {
				from := uint32(what >> 48)
				found(ref(at), hi(at), from, from+uint32(uint16(what>>32)))
			}
			break
		}
	}
}

// forget takes out what it has of a slot number, in whatever group.
func (e *evictionLog) forget(slot uint32) {
	for k := 0; k < len(e.ring); k += 2 {
		if e.ring[k+1].Load() != 0 && lo(e.ring[k].Load()) == slot {
			e.ring[k+1].Store(0)
		}
	}
}
