//go:build !invariants

package tree

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// The audits of the invariants build allocate, so the gate belongs to the plain one.

// TestAllocations: neither queries nor frames allocate from the Go heap, once their
// scratch has grown.
func TestAllocations(t *testing.T) {
	l := openTest(t, LaneConfig{})
	s := sender{l: l}
	path := sequence(1, 300)
	s.store(0, 0, indexer.Parent{}, path)
	(&sender{l: l, slot: 9}).store(0, 0, indexer.Parent{}, path)
	r := l.NewReader()
	defer r.Close()
	var out indexer.Scores
	host := func(drop bool) {
		if b := s.begin(); drop {
			b.Drop(indexer.Host, indexer.MakeRange(0, 10, 100))
		} else {
			b.Claim(indexer.Host, indexer.MakeRange(0, 10, 100))
		}
		l.Apply(s.b.Frame())
	}
	seqs := [][]uint64{sequence(2, 40), sequence(3, 70)}
	work := func() {
		r.Match(indexer.Query{Locals: path}, &out)
		host(false)
		r.Match(indexer.Query{Locals: path}, &out)
		host(true)
		s.store(1, 0, indexer.Parent{}, seqs[0])
		s.store(1, 40, indexer.Parent{}, seqs[1])
		s.drop(1, 30, 1)
		s.drop(1, 50, 60)
		s.drop(1, 0, 30)
		s.drop(1, 31, 19)
	}
	for range 500 {
		work()
	}
	if n := testing.AllocsPerRun(500, work); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
