package tree

import "github.com/kvcluster/kvcluster/indexer"

// coverRange says that the slot holds [from, from+n) of a chain under one more name.
// length is the chain's.
func (l *Lane) coverRange(c *copyRecord, chain ref, tier indexer.Tier, from, n, length uint32) {
	if tier != indexer.Device {
		l.coverTier(c, chain, tier, from, from+n)
		return
	}
	h, side := l.arena.header(chain), l.arena.side(chain)
	s, to := c.slot(), from+n
	cut, entry := l.deviceCut(h, s)
	islands := side.islands()
	if islands == 0 && from <= cut {
		if from < cut { // other names of the slot are there already
			l.addAlias(c, side, indexer.Device, from, min(to, cut))
		}
		if to > cut {
			l.setCut(h, s, to, cut, entry)
			l.held[indexer.Device] += uint64(to - cut)
			l.raise(chain, h, side, to)
		}
		return
	}
	l.coverAmong(c, chain, from, to, cut, entry)
}

// coverAmong is coverRange for a slot that has islands, or gets one.
func (l *Lane) coverAmong(c *copyRecord, chain ref, from, to, cut uint32, entry *uint64) {
	h, side := l.arena.header(chain), l.arena.side(chain)
	s := c.slot()
	spans, row := l.getIslands(l.spans[:0], side.islands(), s)
	fresh := to - from
	if from < cut {
		n := min(to, cut)
		l.addAlias(c, side, indexer.Device, from, n)
		fresh -= n - from
	}
	for _, sp := range spans {
		if f, t := max(from, sp.from()), min(to, sp.to()); f < t {
			l.addAlias(c, side, indexer.Device, f, t)
			fresh -= t - f
		}
	}
	l.held[indexer.Device] += uint64(fresh)
	if from > cut {
		l.spans = addSpan(spans, from, to)
		l.putIslands(side, row, s, l.spans)
		l.recount(chain)
		return
	}
	next := max(cut, to)
	for len(spans) > 0 && spans[0].from() <= next {
		next = max(next, spans[0].to())
		spans = spans[1:]
	}
	if row >= 0 {
		l.putIslands(side, row, s, spans)
	}
	if next != cut {
		l.setCut(h, s, next, cut, entry)
	}
	l.recount(chain)
}

// uncover says that the slot has one name less on [from, to) of a chain.
func (l *Lane) uncover(c *copyRecord, chain ref, tier indexer.Tier, from, to uint32) {
	if c[3] == 0 {
		l.uncoverRange(c, chain, tier, from, to)
		return
	}
	for _, sp := range l.takeAlias(c, l.arena.side(chain), tier, from, to) {
		l.uncoverRange(c, chain, tier, sp.from(), sp.to())
	}
}

func (l *Lane) uncoverRange(c *copyRecord, chain ref, tier indexer.Tier, from, to uint32) {
	h := l.arena.header(chain)
	if tier != indexer.Device {
		l.uncoverTier(c, chain, tier, from, to)
		l.settle(chain)
		return
	}
	s := c.slot()
	cut, entry := l.deviceCut(h, s)
	l.held[indexer.Device] -= uint64(to - from)
	if from < cut {
		l.setCut(h, s, from, cut, entry)
		if to >= cut && l.arena.side(chain).islands() == 0 && h.tiers() == 0 {
			l.settleFrom(chain, cut)
			return
		}
	}
	l.splitIslands(chain, s, from, to, cut)
	l.settle(chain)
}

// splitIslands takes [from, to) out of what the slot holds beyond from, where its cut
// was before.
func (l *Lane) splitIslands(chain ref, s, from, to, cut uint32) {
	side := l.arena.side(chain)
	spans, row := l.getIslands(l.spans[:0], side.islands(), s)
	if to < cut {
		spans = addSpan(spans, to, cut)
	} else {
		spans = cutSpan(spans, from, to)
	}
	l.spans = spans[:0]
	if row >= 0 || len(spans) > 0 {
		l.putIslands(side, row, s, spans)
	}
}
