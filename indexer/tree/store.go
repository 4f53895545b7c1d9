package tree

import (
	"fmt"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// place is a point between two positions: behind the first off blocks of a chain.
type place struct {
	chain ref
	off   uint32
}

// storeRun is a store: a new run, or more of one whose last name is live.
func (l *Lane) storeRun(t *tree, c *copyRecord, op *indexer.Op) error {
	run := uint32(op.Run)
	p := l.findRun(c, run)
	var at place
	if op.Start > 0 {
		if p == nil {
			return fmt.Errorf("extension of run %d at %d: %w", run, op.Start, indexer.ErrUnknownName)
		}
		all := l.pieces(p)
		last := all[len(all)-1]
		if last.end() != op.Start {
			return fmt.Errorf("extension of run %d at %d, which ends at %d: %w", run, op.Start, last.end(), indexer.ErrUnknownName)
		}
		at = place{last.chain(), last.off() + last.n()}
	} else {
		if p != nil {
			return fmt.Errorf("store of run %d, which has live names: %w", run, indexer.ErrUnknownName)
		}
		switch op.Parent.Kind {
		case indexer.ParentRoot:
			at = place{l.rootOf(t, op.Parent.Anchor), 0}
		case indexer.ParentName:
			var ok bool
			if at, ok = l.below(c, uint32(op.Parent.Run), op.Parent.Pos); !ok {
				return fmt.Errorf("parent %d of run %d: %w", op.Parent.Pos, op.Parent.Run, indexer.ErrUnknownName)
			}
		}
		p = l.makeRun(c, run, op)
	}
	locals, engines, pos := op.Locals, op.Engines, op.Start
	for len(locals) > 0 {
		from, n, engine := l.storeStretch(c, at, op.Tier, locals, engines)
		l.addNames(p, from, uint32(n), pos, op.Tier.Mask(), engines[:n], engine)
		locals, engines, pos = locals[n:], engines[n:], pos+uint32(n)
		at = place{from.chain, from.off + uint32(n)}
	}
	return nil
}

// below finds the place below a position of a run. The name may be dead, but then a
// later name of the run is live: the position lies on the path to it. A stream never
// names a parent beyond the last live name of its run, for what is no longer named
// is not mapped (rule N1).
func (l *Lane) below(c *copyRecord, run, pos uint32) (place, bool) {
	p := l.findRun(c, run)
	if p == nil {
		return place{}, false
	}
	all := l.pieces(p)
	i := pieceAt(all, pos)
	if i == len(all) {
		return place{}, false
	}
	at := place{all[i].chain(), all[i].off()}
	if pos >= all[i].pos() {
		at.off += pos - all[i].pos() + 1
		return at, true
	}
	return l.up(at, all[i].pos()-pos-1), true
}

// up goes n blocks towards the root. What lies before the first block of a chain is a
// place of its parent.
func (l *Lane) up(at place, n uint32) place {
	for n >= at.off {
		h := l.arena.header(at.chain)
		if h.isRoot() {
			break
		}
		n -= at.off
		at = place{h.parent(), h.fork()}
	}
	at.off -= n
	return at
}

// storeStretch stores as many of the blocks as lie in one chain. It returns where
// they are, how many, and whether the engine hashes are those of the chain.
func (l *Lane) storeStretch(c *copyRecord, at place, tier indexer.Tier, locals, engines []uint64) (from place, n int, agree bool) {
	h := l.arena.header(at.chain)
	length := h.length()
	if at.off < length {
		content := l.arena.words(h.content(), int(h.capacity())*2)
		if n = commonPrefix(content[at.off:length], locals); n > 0 {
			own := content[h.capacity()+at.off:]
			agree = slices.Equal(own[:n], engines[:n])
			l.coverRange(c, at.chain, tier, at.off, uint32(n), length)
			return at, n, agree
		}
	}
	hash := childHash(at.chain, at.off, locals[0])
	if h[hCoverage]&filterBit(hash) != 0 || h.isRoot() {
		if child := l.findChild(at.chain, at.off, locals[0], hash); child != 0 {
			return l.storeStretch(c, place{child, 0}, tier, locals, engines)
		}
	}
	if at.off == length && length > 0 && length < maxChain && tier == indexer.Device && l.mayAppend(h, c.slot()) {
		n = min(len(locals), int(maxChain-length))
		l.appendContent(h, locals[:n], engines[:n])
		l.coverRange(c, at.chain, tier, length, uint32(n), length+uint32(n))
		return at, n, true
	}
	n = min(len(locals), maxChain)
	child := l.newChain(at, hash, locals[:n], engines[:n])
	l.coverRange(c, child, tier, 0, uint32(n), uint32(n))
	return place{child, 0}, n, true
}

func commonPrefix(a, b []uint64) int {
	n := min(len(a), len(b))
	a, b = a[:n], b[:n]
	i := 0
	for ; i+4 <= n; i += 4 {
		x, y := (*[4]uint64)(a[i:]), (*[4]uint64)(b[i:])
		if (x[0]^y[0])|(x[1]^y[1])|(x[2]^y[2])|(x[3]^y[3]) != 0 {
			break
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// addNames adds names to the end of a run.
func (l *Lane) addNames(p *piece, at place, n, pos uint32, m indexer.TierMask, engines []uint64, agree bool) {
	if agree {
		l.appendPiece(p, makePiece(at.chain, at.off, n, pos, m, 0))
		return
	}
	own, fresh := l.ownEngines(p, pos, engines)
	l.appendPiece(p, makePiece(at.chain, at.off, n, pos, m, own))
	if all := l.pieces(p); !fresh && all[len(all)-1].pos() == pos {
		l.engineColumn(own)[0] += engineRef
	}
}
