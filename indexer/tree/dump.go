package tree

import (
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// dump is a copy of what one slot holds in one partition.
type dump struct {
	stretches []indexer.Stretch
	named     map[ref][]piece // the live names of the slot, by chain
}

// Dump returns the live names that a slot holds in a partition. It belongs to the
// goroutine that applies frames; the result is the caller's.
func (l *Lane) Dump(g indexer.GroupID, p indexer.PartitionID, s indexer.Slot) []indexer.Stretch {
	t := l.trees[treeKey{uint32(g), uint32(p)}]
	if t == nil || int(s) >= len(t.copies) || t.copies[s] == 0 {
		return nil
	}
	c := l.copyOf(t, uint32(s))
	d := dump{named: map[ref][]piece{}}
	l.eachRun(c, func(_ uint32, p *piece) {
		for _, q := range l.pieces(p) {
			d.named[q.chain()] = append(d.named[q.chain()], q)
		}
	})
	l.eachRun(c, func(run uint32, p *piece) { l.dumpRun(&d, run, l.getMark(c, run), l.pieces(p)) })
	return d.stretches
}

// eachRun calls f for the runs with live names, in order.
func (l *Lane) eachRun(c *copyRecord, f func(run uint32, p *piece)) {
	for k := range hi(c[1]) {
		if *l.arena.word(ref(c[1]), int(k)) == 0 {
			continue
		}
		for i := range uint32(chunkRuns) {
			if p := l.findRun(c, k*chunkRuns+i); p != nil {
				f(k*chunkRuns+i, p)
			}
		}
	}
}

// dumpRun adds the stretches of one run. The path of its last name has the paths of
// all the others in it.
func (l *Lane) dumpRun(d *dump, run uint32, mark indexer.Mark, pieces []piece) {
	last := pieces[len(pieces)-1]
	path, anchor := l.pathTo(place{last.chain(), last.off() + last.n()})
	above := uint32(len(path)) - last.end()
	var before piece
	for i := 0; i < len(pieces); {
		p := pieces[i]
		from, to := above+p.pos(), above+p.end()
		engines := slices.Clone(l.engineHashes(p))
		j := i + 1
		for j < len(pieces) && pieces[j].pos() == to-above && pieces[j].tiers() == p.tiers() {
			engines = append(engines, l.engineHashes(pieces[j])...)
			to = above + pieces[j].end()
			j++
		}
		st := indexer.Stretch{
			Run: indexer.Run(run), Start: p.pos(), Tiers: p.tiers(), Anchor: anchor,
			Path: path[:from:from], Locals: path[from:to:to], Engines: engines, Mark: mark,
		}
		switch {
		case from == 0:
			st.Parent.Root = true
		case i > 0 && before.end() == p.pos():
			e := l.engineHashes(before)
			st.Parent.Engine = e[len(e)-1]
		default:
			st.Parent.Engine = l.engineAbove(d, place{p.chain(), p.off()})
		}
		d.stretches = append(d.stretches, st)
		before, i = pieces[j-1], j
	}
}

// pathTo returns the local hashes from the root to a place, and the root's anchor.
func (l *Lane) pathTo(at place) (path []uint64, anchor uint64) {
	n := uint32(0)
	for p := at; ; {
		h := l.arena.header(p.chain)
		if h.isRoot() {
			anchor = h[hCuts+1]
			break
		}
		n += p.off
		p = place{h.parent(), h.fork()}
	}
	path = make([]uint64, n)
	for p := at; n > 0; {
		h := l.arena.header(p.chain)
		copy(path[n-p.off:n], l.arena.words(h.content(), int(p.off)))
		n -= p.off
		p = place{h.parent(), h.fork()}
	}
	return path, anchor
}

// engineAbove returns the engine hash of the block above a place that is not the
// root: of a live name of the slot, or if it has none there, of whoever stored it.
func (l *Lane) engineAbove(d *dump, at place) uint64 {
	h := l.arena.header(at.chain)
	for at.off == 0 {
		at = place{h.parent(), h.fork()}
		h = l.arena.header(at.chain)
	}
	for _, q := range d.named[at.chain] {
		if at.off > q.off() && at.off <= q.off()+q.n() {
			return l.engineHashes(q)[at.off-1-q.off()]
		}
	}
	return *l.arena.word(h.content(), int(h.capacity()+at.off-1))
}

// Stats returns the lane's counters. It belongs to the goroutine that applies frames.
func (l *Lane) Stats() indexer.Stats {
	s := indexer.Stats{
		Held: l.held, Distinct: l.distinct, Stored: l.stored, Chains: l.chains, Slots: l.copies,
		Frames: l.frames, Faults: l.faults,
		Bytes:    make(map[string]uint64, numPurposes),
		Reserved: l.arena.reserved(), Limbo: l.limbo.bytes, Revoked: l.revoked,
	}
	if l.arena.base == nil {
		s.Reserved = 0
	}
	for p, n := range l.arena.live {
		s.Bytes[purposeNames[p]] = n
	}
	return s
}
