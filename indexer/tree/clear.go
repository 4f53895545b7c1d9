package tree

import "github.com/kvcluster/kvcluster/indexer"

// clearCopy drops some tiers of everything that a copy holds. It costs what that is:
// the first piece that lies in a chain takes the slot out of all of the chain, so
// that many small runs in one chain cost one change each side.
func (l *Lane) clearCopy(t *tree, c *copyRecord, m indexer.TierMask) {
	if c.liveRuns() == 0 {
		return
	}
	l.drops.begin(t, c.slot())
	defer l.drops.end()
	for k := range hi(c[1]) {
		for i := range uint32(chunkRuns) {
			if *l.arena.word(ref(c[1]), int(k)) == 0 {
				break
			}
			run := k*chunkRuns + i
			if p := l.findRun(c, run); p != nil {
				l.clearRun(c, run, p, m)
			}
			if c.liveRuns() == 0 {
				return
			}
		}
	}
}

func (l *Lane) clearRun(c *copyRecord, run uint32, p *piece, m indexer.TierMask) {
	out := l.scratch[:0]
	for _, q := range l.pieces(p) {
		if q.tiers()&m != 0 {
			l.forget(c, q.chain(), m)
		}
		if left := q.tiers() &^ m; left != 0 {
			out = l.putPiece(out, q.withTiers(left))
		}
	}
	l.scratch = out
	l.replacePieces(c, run, p, out)
}

// forget takes a slot out of a chain, in some tiers, whatever it holds there. The
// chain may be gone already, with the piece before: its memory is still what it was,
// because nothing is reclaimed within a frame.
func (l *Lane) forget(c *copyRecord, chain ref, m indexer.TierMask) {
	h := l.arena.header(chain)
	if h.length() == 0 {
		return
	}
	side, s := l.arena.side(chain), c.slot()
	changed := false
	if c[3] != 0 {
		l.forgetAliases(c, side, m)
	}
	if m.Has(indexer.Device) {
		if cut, entry := l.deviceCut(h, s); cut > 0 {
			l.held[indexer.Device] -= uint64(cut)
			l.setCut(h, s, 0, cut, entry)
			changed = true
		}
		if side.islands() != 0 {
			spans, row := l.getIslands(l.spans[:0], side.islands(), s)
			for _, sp := range spans {
				l.held[indexer.Device] -= uint64(sp.to() - sp.from())
			}
			if l.spans = spans[:0]; row >= 0 {
				l.putIslands(side, row, s, nil)
				changed = true
			}
		}
	}
	if h.tiers() != 0 && m != indexer.Device.Mask() {
		changed = l.forgetTiers(h, s, m) || changed
	}
	if changed {
		l.settle(chain)
	}
}

// forgetTiers is forget for the lower tiers.
func (l *Lane) forgetTiers(h *header, s uint32, m indexer.TierMask) (changed bool) {
	spans, row := l.getTiers(h, s)
	for t := indexer.Host; t < indexer.NumTiers; t++ {
		if !m.Has(t) || len(spans[t]) == 0 {
			continue
		}
		for _, sp := range spans[t] {
			l.held[t] -= uint64(sp.to() - sp.from())
		}
		spans[t], changed = spans[t][:0], true
	}
	if changed {
		l.putTiers(h, row, s)
	}
	return changed
}

// forgetAliases removes the aliases of a slot in some tiers.
func (l *Lane) forgetAliases(c *copyRecord, side *sideRecord, m indexer.TierMask) {
	row := l.findRow(side.aliases(), c.slot())
	if row < 0 {
		return
	}
	var left []aliasEntry
	for _, e := range l.aliasBlock(ref(lo(l.rowList(side.aliases()).rows()[row]))) {
		if !m.Has(e.tier()) {
			left = append(left, e)
		}
	}
	l.putAlias(c, side, left)
}
