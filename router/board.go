package router

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// depths is how far the tier walk of one rank gets in each tier, in blocks.
type depths [indexer.NumTiers]uint32

// board collects the depths of a query's ranks by place, so that answers come out in
// order without sorting. Only the marks are cleared between queries.
//
//	marks   bit p = place p has a score
//	depth   [p] valid where the mark is set
type board struct {
	marks []uint64
	depth []depths
}

// reset makes the board empty, for n places.
func (b *board) reset(n int) {
	words := (n + 63) / 64
	if cap(b.marks) < words {
		b.marks = make([]uint64, words)
		b.depth = make([]depths, words*64)
	}
	b.marks = b.marks[:words]
	clear(b.marks)
	b.depth = b.depth[:cap(b.depth)]
}

// raise sets the depths of a place, or raises them tier by tier when it has some.
func (b *board) raise(p place, d depths) {
	bit := uint64(1) << (p & 63)
	if b.marks[p>>6]&bit == 0 {
		b.marks[p>>6] |= bit
		b.depth[p] = d
		return
	}
	have := &b.depth[p]
	for t := range have {
		have[t] = max(have[t], d[t])
	}
}

// all yields the places that have a score, in order.
func (b *board) all(yield func(place, *depths) bool) {
	for w, word := range b.marks {
		for ; word != 0; word &= word - 1 {
			p := place(w<<6 + bits.TrailingZeros64(word))
			if !yield(p, &b.depth[p]) {
				return
			}
		}
	}
}
