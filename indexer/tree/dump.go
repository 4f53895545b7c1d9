package tree

import (
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// dump is a copy of what one slot holds in one partition.
type dump struct{ stretches []indexer.Stretch }

// Dump returns the live names that a slot holds in a partition. It belongs to the
// goroutine that applies frames; the result is the caller's.
func (l *Lane) Dump(g indexer.GroupID, p indexer.PartitionID, s indexer.Slot) []indexer.Stretch {
	t := l.trees[treeKey{uint32(g), uint32(p)}]
	if t == nil || int(s) >= len(t.copies) || t.copies[s] == 0 {
		return nil
	}
	c := l.copyOf(t, uint32(s))
	var d dump
	for k := range hi(c[1]) {
		if *l.arena.word(ref(c[1]), int(k)) == 0 {
			continue
		}
		for i := range uint32(chunkRuns) {
			if p := l.findRun(c, k*chunkRuns+i); p != nil {
				l.dumpRun(&d, k*chunkRuns+i, l.pieces(p))
			}
		}
	}
	return d.stretches
}

// dumpRun adds the stretches of one run. The path of its last name has the paths of
// all the others in it.
func (l *Lane) dumpRun(d *dump, run uint32, pieces []piece) {
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
			Path: path[:from:from], Locals: path[from:to:to], Engines: engines,
		}
		switch {
		case from == 0:
			st.Parent.Root = true
		case i > 0 && before.end() == p.pos():
			e := l.engineHashes(before)
			st.Parent.Engine = e[len(e)-1]
		default:
			st.Parent.Engine = l.engineAbove(place{p.chain(), p.off()})
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

// engineAbove returns the engine hash that is stored with the block above a place
// that is not the root.
func (l *Lane) engineAbove(at place) uint64 {
	h := l.arena.header(at.chain)
	for at.off == 0 {
		at = place{h.parent(), h.fork()}
		h = l.arena.header(at.chain)
	}
	return *l.arena.word(h.content(), int(h.capacity()+at.off-1))
}

// Stats returns the lane's counters. It belongs to the goroutine that applies frames.
func (l *Lane) Stats() indexer.Stats {
	s := indexer.Stats{
		Held: l.held, Distinct: l.distinct, Stored: l.stored, Chains: l.chains, Slots: l.copies,
		Frames: l.frames, Faults: l.faults,
		Bytes:    make(map[string]uint64, numPurposes),
		Reserved: l.arena.reserved(), Limbo: l.limbo.bytes,
	}
	if l.arena.base == nil {
		s.Reserved = 0
	}
	for p, n := range l.arena.live {
		s.Bytes[purposeNames[p]] = n
	}
	return s
}
