package tree

import "sync/atomic"

// evictionLog remembers which stretches slots have dropped, for Explain: a ring of
//
//	0  slot (32) | blocks (16) | tree (16)
//	1  first local hash
//
// It can name a stretch wrongly where the same local hash occurs in two places of a
// tree; it never has a say in a score.
type evictionLog struct {
	ring []atomic.Uint64
	next uint32
}

func (e *evictionLog) init(n int) { e.ring = make([]atomic.Uint64, 2*max(n, 0)) }

func (l *Lane) logEviction(t *tree, c *copyRecord, chain ref, from, n uint32) {
	e := &l.evicted
	if len(e.ring) == 0 {
		return
	}
	w := uint64(c.slot()) | uint64(n)<<32 | uint64(t.number)<<48
	e.ring[e.next+1].Store(*l.arena.word(l.arena.header(chain).content(), int(from)))
	e.ring[e.next].Store(w)
	if e.next += 2; int(e.next) == len(e.ring) {
		e.next = 0
	}
}

// mark sets drop[i] for the blocks of a query that a slot has dropped.
func (e *evictionLog) mark(tree, slot uint32, locals []uint64, found func(i int)) {
	for k := 0; k < len(e.ring); k += 2 {
		w := e.ring[k].Load()
		if lo(w) != slot || w>>48 != uint64(uint16(tree)) || w == 0 {
			continue
		}
		first, n := e.ring[k+1].Load(), int(uint16(w>>32))
		for i, local := range locals {
			if local == first {
				for j := i; j < min(i+n, len(locals)); j++ {
					found(j)
				}
			}
		}
	}
}

// forget takes out what it has of a slot in the trees of a group.
func (e *evictionLog) forget(group, slot uint32, trees []*tree) {
	for k := 0; k < len(e.ring); k += 2 {
		w := e.ring[k].Load()
		if n := int(w >> 48); w != 0 && lo(w) == slot && n < len(trees) && trees[n].key.group == group {
			e.ring[k].Store(0)
		}
	}
}
