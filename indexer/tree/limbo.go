package tree

// Storage that readers may still be looking at goes into limbo with the epoch of its
// lane. The lane counts its epoch up now and then; what was retired in an epoch is
// free once every pinned reader has pinned a later one. All of it happens in the
// lane, a little at a time, never in a query.

const (
	// reclaimTicks is how many operations pass between two looks at the readers.
	reclaimTicks = 32
	// reclaimBudget is how many pieces one look frees at most, so that no frame waits
	// long; it is several times what 32 operations retire on average.
	reclaimBudget = 512
)

// limbo is a queue, oldest first, of pieces in blocks that the arena holds:
//
//	0  next block ref (32), 0
//	1  entry: epoch (56) | purpose (8), then ref (32) | units (32)
type limbo struct {
	first, last ref    // blocks, 0 = none
	from, to    uint32 // entries taken from the first block, put into the last
	bytes       uint64
	pieces      uint64
}

const (
	limboEntries = 511
	limboUnits   = 1 + limboEntries
)

func (l *Lane) retire(r ref, units uint32, p purpose) {
	q := &l.limbo
	if q.last == 0 || q.to == limboEntries {
		next := l.arena.alloc(limboUnits, forLimbo)
		*l.arena.word(next, 0) = 0
		if q.last == 0 {
			q.first, q.from = next, 0
		} else {
			*l.arena.word(q.last, 0) = uint64(next)
		}
		q.last, q.to = next, 0
	}
	w := l.arena.words(q.last+1+ref(q.to), 2)
	w[0], w[1] = l.epoch.Load()<<8|uint64(p), pack(uint32(r), units)
	q.to++
	q.pieces++
	q.bytes += retiredBytes(units, p)
}

func retiredBytes(units uint32, p purpose) uint64 {
	if p == forChains {
		return 64 + sideBytes
	}
	return uint64(roundUp(units)) * unitBytes
}

// reclaim frees what no reader can see any more, at most budget pieces.
func (l *Lane) reclaim(budget int) {
	l.ticks = 0
	q := &l.limbo
	if q.pieces > 0 {
		l.epoch.Add(1)
		now := l.epoch.Load()
		safe := l.pins.oldest(l.id, now)
		if oldest := *l.arena.word(q.first+1+ref(q.from), 0) >> 8; q.bytes > l.cfg.LimboLimit && oldest >= safe {
			// A reader has been pinned for so long that memory runs away: it loses its
			// pin, throws away what it has and asks again.
			l.revoked += l.pins.revoke(l.id, now)
			safe = l.pins.oldest(l.id, now)
		}
		if q.bytes > l.cfg.LimboLimit/2 {
			budget *= 8
		}
		for ; q.pieces > 0 && budget > 0; budget-- {
			w := l.arena.words(q.first+1+ref(q.from), 2)
			if w[0]>>8 >= safe {
				break
			}
			l.free(ref(w[1]), hi(w[1]), purpose(w[0]))
		}
	}
	l.arena.shrink(4)
}

// free takes the oldest piece out of limbo.
func (l *Lane) free(r ref, units uint32, p purpose) {
	q := &l.limbo
	if p == forChains {
		l.arena.releaseChain(r)
	} else {
		l.arena.release(r, units, p)
	}
	q.bytes -= retiredBytes(units, p)
	q.pieces--
	if q.from++; q.from == limboEntries || q.pieces == 0 {
		next := ref(*l.arena.word(q.first, 0))
		l.arena.release(q.first, limboUnits, forLimbo)
		if q.first, q.from = next, 0; next == 0 {
			q.last, q.to = 0, 0
		}
	}
}
