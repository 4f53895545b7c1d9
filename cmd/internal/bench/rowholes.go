package bench

import (
	"fmt"
	"math/rand/v2"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
)

func holesRow() Row {
	return Row{
		Name: "holes", Title: "fragmented: 2 % interior holes, chains of 78 blocks with 64 holders, asked cold", run: runHoles,
		Measures: []Measure{
			{Key: "p99.ratio", Title: "query p99, with holes over whole", Unit: "x", AtLeast: 3, Aim: 2, Prototype: "1.6-6.5"},
			{Key: "p50.ratio", Title: "query p50, with holes over whole", Unit: "x"},
			{Key: "whole.p50", Title: "whole p50", Unit: "ns"},
			{Key: "whole.p99", Title: "whole p99", Unit: "ns"},
			{Key: "holes.p50", Title: "with holes p50", Unit: "ns"},
			{Key: "holes.p99", Title: "with holes p99", Unit: "ns"},
			{Key: "build", Title: "blocks stored and dropped per CPU-second, with holes", Unit: "M/s", HigherIsBetter: true, Scale: 1e6, Prototype: "29-32"},
			{Key: "live.whole", Title: "live bytes per held block, whole", Unit: "B"},
			{Key: "live.holes", Title: "live bytes per held block, with holes", Unit: "B"},
		},
	}
}

const (
	holesBlocks  = 78
	holesHolders = 64
)

// chainHashes returns the local and engine hashes of chain c of a made-up family.
func chainHashes(family uint64, c, blocks int) (locals, engines []uint64) {
	locals, engines = make([]uint64, blocks), make([]uint64, blocks)
	fillChain(family, c, locals, engines)
	return locals, engines
}

// fillChain is chainHashes into memory of the caller.
func fillChain(family uint64, c int, locals, engines []uint64) {
	for i := range locals {
		locals[i] = oplist.Mix(family<<48 ^ uint64(c)<<20 ^ uint64(i))
		engines[i] = oplist.Mix(locals[i])
	}
}

// storeRun applies one frame that stores a new run at the root.
func (l *laneUnderTest) storeRun(b *indexer.FrameBuilder, slot indexer.Slot, run indexer.Run, locals, engines []uint64) {
	b.Reset(indexer.Header{Partition: partitionOf(locals[0]), Slot: slot, Life: 1, Tenure: 1})
	lo, en := b.Store(indexer.Device, run, 0, indexer.Parent{}, len(locals))
	copy(lo, locals)
	copy(en, engines)
	l.Apply(b.Frame())
}

// runHoles builds the same chains twice, whole and with holes, and asks for them in
// random order, a stretch on the one tree, a stretch on the other.
func runHoles(b *bencher) error {
	chains := b.choose(3000, 300)
	rnd := rand.New(rand.NewPCG(42, 78))
	var lanes [2]*laneUnderTest
	depth := make([][holesHolders]uint32, chains) // what a holder of a holed chain scores
	locals := make([][]uint64, chains)
	holes := 0
	for variant := range lanes {
		lane, err := openLane()
		if err != nil {
			return err
		}
		lanes[variant] = lane
		cpu, ops := processCPU(), 0
		runs := map[[2]uint32]indexer.Run{}
		var fb indexer.FrameBuilder
		for c := range chains {
			l, engines := chainHashes(1, c, holesBlocks)
			locals[c] = l
			for h := range uint32(holesHolders) {
				// Runs are numbered per slot and partition.
				part := partitionOf(l[0])
				run := runs[[2]uint32{h, uint32(part)}]
				runs[[2]uint32{h, uint32(part)}]++
				lane.storeRun(&fb, indexer.Slot(h), run, l, engines)
				ops += holesBlocks
				if variant == 0 {
					continue
				}
				depth[c][h] = holesBlocks
				fb.Reset(indexer.Header{Partition: part, Slot: indexer.Slot(h), Life: 1, Tenure: 1})
				for i := 1; i < holesBlocks-1; i++ { // interior
					if rnd.IntN(100) < 2 {
						fb.Drop(indexer.Device, indexer.MakeRange(run, i, 1))
						depth[c][h] = min(depth[c][h], uint32(i))
						holes++
						ops++
					}
				}
				if fb.NumOps() > 0 {
					lane.Apply(fb.Frame())
				}
			}
		}
		if variant == 1 {
			b.set("build", float64(ops)/(processCPU()-cpu).Seconds())
		}
		b.set([]string{"live.whole", "live.holes"}[variant], float64(lane.liveBytes())/float64(lane.held()))
	}
	b.inputs("%d chains of %d blocks, %d holders, %d holes; random order", chains, holesBlocks, holesHolders, holes)

	var samples [2][]uint32
	var scores indexer.Scores
	err := b.profiled(func() error {
		const stretch = 100
		readers := [2]interface {
			Match(indexer.Query, *indexer.Scores)
			Close()
		}{lanes[0].NewReader(), lanes[1].NewReader()}
		defer readers[0].Close()
		defer readers[1].Close()
		for range 8 {
			order := rnd.Perm(chains)
			for from := 0; from < chains; from += stretch {
				for variant, reader := range readers {
					for _, c := range order[from:min(from+stretch, chains)] {
						q := queryOf(locals[c])
						t := ticks()
						reader.Match(q, &scores)
						samples[variant] = append(samples[variant], since(t))
						if len(scores.Rows) != holesHolders {
							return fmt.Errorf("%w: chain %d has %d rows", ErrWrongAnswers, c, len(scores.Rows))
						}
						for _, r := range scores.Rows {
							want := uint32(holesBlocks)
							if variant == 1 {
								want = depth[c][r.Slot]
							}
							if r.Depth != want {
								return fmt.Errorf("%w: chain %d, slot %d: %d, want %d", ErrWrongAnswers, c, r.Slot, r.Depth, want)
							}
						}
					}
				}
			}
		}
		return b.ctx.Err()
	})
	if err != nil {
		return err
	}
	b.latencies("whole", samples[0])
	b.latencies("holes", samples[1])
	f := b.result.Figures
	b.set("p50.ratio", f["holes.p50"]/f["whole.p50"])
	b.set("p99.ratio", f["holes.p99"]/f["whole.p99"])
	if err := lanes[0].end(); err != nil {
		return err
	}
	return lanes[1].end()
}
