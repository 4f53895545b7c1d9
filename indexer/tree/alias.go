package tree

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

// When a slot has several live names on one position in one tier, all but one are
// counted as aliases (rule N6): a drop of one of them only takes the count down. It
// happens when two engine hashes stand for one path, so it is rare. The aliases of a
// chain are a row list; a value is the ref of a block:
//
//	0  entries (32) | room (32)
//	1  entry: from (16) | to (16) | tier (8) | names (24)
type aliasEntry uint64

func makeAlias(tier indexer.Tier, from, to, names uint32) aliasEntry {
	return aliasEntry(from) | aliasEntry(to)<<16 | aliasEntry(tier)<<32 | aliasEntry(names)<<40
}

func (e aliasEntry) from() uint32       { return uint32(uint16(e)) }
func (e aliasEntry) to() uint32         { return uint32(uint16(e >> 16)) }
func (e aliasEntry) tier() indexer.Tier { return indexer.Tier(e >> 32) }
func (e aliasEntry) names() uint32      { return uint32(e >> 40) }

func aliasUnits(room uint32) uint32 { return (1 + room + 1) / 2 }

func (l *Lane) aliasBlock(r ref) []aliasEntry {
	n := lo(*l.arena.word(r, 0))
	return unsafe.Slice((*aliasEntry)(unsafe.Pointer(l.arena.word(r, 1))), n)
}

// addAlias counts one more name on [from, to), all of which the slot covers.
func (l *Lane) addAlias(c *copyRecord, side *sideRecord, tier indexer.Tier, from, to uint32) {
	entries, gaps := l.adjustAlias(c, side, tier, from, to, 1)
	for _, g := range gaps {
		entries = append(entries, makeAlias(tier, g.from(), g.to(), 1))
	}
	l.putAlias(c, side, entries)
}

// takeAlias counts one name less on [from, to) and returns where it was the last.
func (l *Lane) takeAlias(c *copyRecord, side *sideRecord, tier indexer.Tier, from, to uint32) []span {
	if l.findRow(side.aliases(), c.slot()) < 0 {
		return []span{makeSpan(from, to)}
	}
	entries, gaps := l.adjustAlias(c, side, tier, from, to, ^uint32(0))
	l.putAlias(c, side, entries)
	return gaps
}

// adjustAlias returns the slot's entries with delta added in [from, to), and the
// stretches of it that had no entry.
func (l *Lane) adjustAlias(c *copyRecord, side *sideRecord, tier indexer.Tier, from, to, delta uint32) (out []aliasEntry, gaps []span) {
	gaps = []span{makeSpan(from, to)}
	row := l.findRow(side.aliases(), c.slot())
	if row < 0 {
		return nil, gaps
	}
	for _, e := range l.aliasBlock(ref(lo(l.rowList(side.aliases()).rows()[row]))) {
		f, t := max(from, e.from()), min(to, e.to())
		if e.tier() != tier || f >= t {
			out = append(out, e)
			continue
		}
		gaps = cutSpan(gaps, f, t)
		if e.from() < f {
			out = append(out, makeAlias(tier, e.from(), f, e.names()))
		}
		if n := e.names() + delta; n > 0 {
			out = append(out, makeAlias(tier, f, t, n))
		}
		if t < e.to() {
			out = append(out, makeAlias(tier, t, e.to(), e.names()))
		}
	}
	return out, gaps
}

// putAlias replaces the slot's entries.
func (l *Lane) putAlias(c *copyRecord, side *sideRecord, entries []aliasEntry) {
	slices.SortFunc(entries, func(a, b aliasEntry) int {
		return cmp.Or(cmp.Compare(a.tier(), b.tier()), cmp.Compare(a.from(), b.from()))
	})
	merged := entries[:0]
	for _, e := range entries {
		if n := len(merged); n > 0 {
			if p := merged[n-1]; p.to() == e.from() && p.tier() == e.tier() && p.names() == e.names() {
				merged[n-1] = makeAlias(p.tier(), p.from(), e.to(), p.names())
				continue
			}
		}
		merged = append(merged, e)
	}
	list := side.aliases()
	row := l.findRow(list, c.slot())
	if row >= 0 {
		old := ref(lo(l.rowList(list).rows()[row]))
		l.arena.release(old, aliasUnits(hi(*l.arena.word(old, 0))), forAliases)
	}
	n := uint32(len(merged))
	if n == 0 {
		if row >= 0 {
			side.setAliases(l.deleteRow(list, row, forAliases))
			c[3]--
		}
		return
	}
	if row < 0 {
		c[3]++
	}
	block := l.arena.alloc(aliasUnits(n), forAliases)
	*l.arena.word(block, 0) = pack(n, n)
	copy(l.aliasBlock(block), merged)
	side.setAliases(l.setRow(list, row, c.slot(), uint32(block), forAliases))
}
