package tree

import (
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
)

// changeRange takes one tier from a stretch of names (a drop), or gives them one more
// (a claim).
func (l *Lane) changeRange(t *tree, c *copyRecord, kind indexer.OpKind, tier indexer.Tier, r indexer.Range) error {
	run, from := uint32(r.Run()), uint32(r.From())
	to := from + uint32(r.Len())
	p := l.findRun(c, run)
	if p == nil {
		return fmt.Errorf("run %d: %w", run, indexer.ErrUnknownName)
	}
	isDrop := kind == indexer.OpDrop
	all := l.pieces(p)
	first := pieceAt(all, from)
	end := first
	for pos := from; pos < to; end++ {
		if end == len(all) || all[end].pos() > pos || all[end].tiers().Has(tier) != isDrop {
			return fmt.Errorf("positions %d to %d of run %d, tier %v: %w", from, to-1, run, tier, indexer.ErrUnknownName)
		}
		pos = all[end].end()
	}
	if isDrop && end == first+1 {
		l.dropInPiece(t, c, run, p, first, tier, from, to)
		return nil
	}
	// Coverage goes block of content by block of content; the pieces are written once.
	// Engine columns are counted anew: first more, then less, so that none is freed.
	out := l.scratch[:0]
	for i, q := range all {
		if i < first || i >= end {
			out = l.putPiece(out, q)
			continue
		}
		f, e := max(from, q.pos()), min(to, q.end())
		off := q.off() + f - q.pos()
		if isDrop {
			l.logEviction(c, q.chain(), off, e-f)
			l.uncover(c, q.chain(), tier, off, off+e-f)
		} else {
			l.coverRange(c, q.chain(), tier, off, e-f, l.arena.header(q.chain()).length())
		}
		if q.pos() < f {
			out = l.putPiece(out, q.part(q.pos(), f))
		}
		if m := q.tiers() ^ tier.Mask(); m != 0 {
			out = l.putPiece(out, q.part(f, e).withTiers(m))
		}
		if e < q.end() {
			out = l.putPiece(out, q.part(e, q.end()))
		}
	}
	l.scratch = out
	l.replacePieces(c, run, p, out)
	return nil
}

func (l *Lane) putPiece(out []piece, q piece) []piece {
	if n := len(out); n > 0 && joins(out[n-1], q) {
		out[n-1] = joined(out[n-1], q)
		return out
	}
	return append(out, q)
}

// replacePieces writes the pieces of a run after a change.
func (l *Lane) replacePieces(c *copyRecord, run uint32, p *piece, out []piece) {
	for _, q := range out {
		l.useEngines(q, true)
	}
	for _, q := range l.pieces(p) {
		l.useEngines(q, false)
	}
	if len(out) == 0 {
		l.freeList(p)
		l.dropRun(c, run)
		return
	}
	l.setPieces(p, out)
}

// dropInPiece is a drop within one piece, which is what an eviction mostly is.
func (l *Lane) dropInPiece(t *tree, c *copyRecord, run uint32, p *piece, i int, tier indexer.Tier, from, to uint32) {
	all := l.pieces(p)
	q := all[i]
	off := q.off() + from - q.pos()
	l.logEviction(c, q.chain(), off, to-from)
	l.uncover(c, q.chain(), tier, off, off+to-from)
	if m := q.tiers() &^ tier.Mask(); m == 0 {
		switch {
		case from > q.pos() && to == q.end():
			all[i] = q.part(q.pos(), from)
			return
		case from == q.pos() && to < q.end():
			all[i] = q.part(to, q.end())
			return
		case from == q.pos() && len(all) == 1:
			l.useEngines(q, false)
			l.freeList(p)
			l.dropRun(c, run)
			return
		}
	}
	out := l.scratch[:0]
	for j, q := range all {
		if j != i {
			out = l.putPiece(out, q)
			continue
		}
		if q.pos() < from {
			out = l.putPiece(out, q.part(q.pos(), from))
		}
		if m := q.tiers() &^ tier.Mask(); m != 0 {
			out = l.putPiece(out, q.part(from, to).withTiers(m))
		}
		if to < q.end() {
			out = l.putPiece(out, q.part(to, q.end()))
		}
	}
	l.scratch = out
	l.replacePieces(c, run, p, out)
}
