package tree

import (
	"math/rand/v2"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// benchTree has prompts that share a first half in groups, each held by some slots.
func benchTree(b *testing.B, slots, prompts, n int) (*Lane, [][]uint64) {
	l := openTest(b, LaneConfig{})
	rng := rand.New(rand.NewPCG(1, 1))
	var paths [][]uint64
	for p := range prompts {
		path := append(sequence(uint64(p/8), n/2), sequence(uint64(1_000_000+p), n/2)...)
		paths = append(paths, path)
		for range 4 {
			s := sender{l: l, slot: indexer.Slot(rng.IntN(slots))}
			s.store(indexer.Run(p*4+rng.IntN(4)), 0, indexer.Parent{}, path)
		}
	}
	return l, paths
}

func BenchmarkMatch(b *testing.B) {
	l, paths := benchTree(b, 128, 10_000, 96)
	r := l.NewReader()
	defer r.Close()
	var out indexer.Scores
	rng := rand.New(rand.NewPCG(2, 2))
	b.ReportAllocs()
	for b.Loop() {
		r.Match(indexer.Query{Locals: paths[rng.IntN(len(paths))]}, &out)
	}
}

// BenchmarkStoreDrop stores and drops whole runs: new content, then content that
// another slot has already.
func BenchmarkStoreDrop(b *testing.B) {
	const n = 96
	for _, c := range []struct {
		name   string
		shared bool
	}{{"new", false}, {"shared", true}} {
		b.Run(c.name, func(b *testing.B) {
			l, paths := benchTree(b, 128, 2000, n)
			s := sender{l: l, slot: 500}
			fresh := make([][]uint64, len(paths))
			for i := range fresh {
				fresh[i] = paths[i]
				if !c.shared {
					fresh[i] = sequence(uint64(5_000_000+i), n)
				}
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				s.store(0, 0, indexer.Parent{}, fresh[i%len(fresh)])
				s.drop(0, 0, n)
				i++
			}
			b.ReportMetric(float64(b.N)*2*n/b.Elapsed().Seconds()/1e6, "Mblocks/s")
		})
	}
}

// BenchmarkExtend adds single blocks to 4,096 runs in turn, as decoding does.
func BenchmarkExtend(b *testing.B) {
	l := openTest(b, LaneConfig{})
	senders := make([]sender, 64)
	for i := range senders {
		senders[i] = sender{l: l, slot: indexer.Slot(i)}
	}
	one := make([]uint64, 1)
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		s, run, pos := i%64, i/64%64, i/4096%4096
		if pos == 0 && i >= 4096 {
			senders[s].drop(indexer.Run(run), 0, 4096)
		}
		one[0] = mix(uint64(run*64+s)<<20 + uint64(i/4096))
		senders[s].store(indexer.Run(run), pos, indexer.Parent{}, one)
		i++
	}
}
