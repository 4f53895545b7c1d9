package tree

import (
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// TestMarksOfRuns gives runs marks, with and without a note, in any order, and takes the
// runs away again: each comes back as it was given, and no memory stays behind.
func TestMarksOfRuns(t *testing.T) {
	const keeper = 100
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		l := openTest(t, LaneConfig{})
		s := sender{l: l, slot: 1}
		s.store(keeper, 0, indexer.Parent{}, sequence(1, 2)) // keeps the directory, in a chunk of its own
		empty := l.arena.live[forRuns] - directory(l)
		want := map[indexer.Run]indexer.Mark{}
		for range 300 {
			run := indexer.Run(rng.Uint32N(60))
			if _, ok := want[run]; ok {
				s.drop(run, 0, 1)
				delete(want, run)
			} else {
				m := indexer.Mark{Set: rng.IntN(3) > 0}
				if m.Set {
					m.Tag = uint16(rng.Uint32())
				}
				if m.Set && seed > 0 && rng.IntN(3) == 0 {
					m.Note = [2]uint64{rng.Uint64(), rng.Uint64()}
				}
				locals, engines := s.begin().Store(indexer.Device, run, 0, indexer.Parent{}, 1)
				locals[0], engines[0] = uint64(run), uint64(run)
				if m.Set {
					s.b.Mark(m)
				}
				l.Apply(s.b.Frame())
				want[run] = m
			}
			if err := l.audit(); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			got := map[indexer.Run]indexer.Mark{}
			for _, st := range l.Dump(0, 0, 1) {
				if st.Run != keeper {
					got[st.Run] = st.Mark
				}
			}
			if !maps.Equal(got, want) {
				t.Fatalf("seed %d: marks are %v, want %v", seed, got, want)
			}
		}
		for run := range want {
			s.drop(run, 0, 1)
		}
		if left := l.arena.live[forRuns] - directory(l); left != empty {
			t.Fatalf("seed %d: %d bytes stay behind, want %d", seed, left, empty)
		}
	}
}

// directory is the size of the directory of the only copy, which grows and stays.
func directory(l *Lane) uint64 {
	c := (*copyRecord)(l.arena.at(l.treeList[0].copies[1]))
	return uint64(hi(c[1])) * 8
}
