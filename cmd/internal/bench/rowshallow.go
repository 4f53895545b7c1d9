package bench

import (
	"fmt"
	"math/rand/v2"

	"github.com/kvcluster/kvcluster/indexer"
)

func shallowRow() Row {
	return Row{
		Name: "shallow", Title: "shallow queries, without and with garbage of dropped chains", run: runShallow,
		Measures: []Measure{
			{Key: "p99.ratio", Title: "query p99, with garbage over without", Unit: "x"},
			{Key: "p50.ratio", Title: "query p50, with garbage over without", Unit: "x"},
			{Key: "clean.p50", Title: "without p50", Unit: "ns"},
			{Key: "clean.p99", Title: "without p99", Unit: "ns"},
			{Key: "garbage.p50", Title: "with p50", Unit: "ns"},
			{Key: "garbage.p99", Title: "with p99", Unit: "ns"},
			{Key: "stored", Title: "positions with storage after the churn, over those held", Unit: "x"},
		},
	}
}

// runShallow asks for prompts that leave a shared prefix after one to three blocks,
// before and right after a churn that stored and dropped many other chains below the
// same prefixes. What is dropped must neither be met by a query nor slow it down.
func runShallow(b *bencher) error {
	const prefixes, prefix, holders = 512, 4, 16
	churned := b.choose(200_000, 20_000) // chains
	lane, err := openLane()
	if err != nil {
		return err
	}
	var fb indexer.FrameBuilder
	runs := map[[2]uint32]indexer.Run{}
	next := func(slot int, part indexer.PartitionID) indexer.Run {
		k := [2]uint32{uint32(slot), uint32(part)}
		runs[k]++
		return runs[k] - 1
	}
	locals := make([][]uint64, prefixes)
	for p := range prefixes {
		l, e := chainHashes(3, p, prefix)
		locals[p] = l
		for h := range holders {
			lane.storeRun(&fb, indexer.Slot(h), next(h, partitionOf(l[0])), l, e)
		}
	}
	rnd := rand.New(rand.NewPCG(42, 3))
	reader := lane.NewReader()
	defer reader.Close()
	ask := func() ([]uint32, error) {
		var samples []uint32
		var scores indexer.Scores
		query := make([]uint64, 32)
		for range b.choose(200_000, 20_000) {
			p, depth := rnd.IntN(prefixes), 1+rnd.IntN(prefix-1)
			n := copy(query, locals[p][:depth])
			for ; n < len(query); n++ {
				query[n] = rnd.Uint64()
			}
			q := queryOf(query)
			t := ticks()
			reader.Match(q, &scores)
			samples = append(samples, since(t))
			if len(scores.Rows) != holders || scores.Rows[0].Depth != uint32(depth) {
				return nil, fmt.Errorf("%w: %d rows for a prefix of %d blocks", ErrWrongAnswers, len(scores.Rows), depth)
			}
		}
		return samples, b.ctx.Err()
	}
	return b.profiled(func() error {
		clean, err := ask()
		if err != nil {
			return err
		}
		// Slots that hold nothing else store below every position of the prefixes and
		// drop all of it.
		for c := range churned {
			slot, p, at := holders+c%64, rnd.IntN(prefixes), 1+rnd.IntN(prefix)
			part := partitionOf(locals[p][0])
			l, e := chainHashes(4, c, 16)
			l = append(append([]uint64{}, locals[p][:at]...), l...)
			e = append(append([]uint64{}, l[:at]...), e...)
			run := next(slot, part)
			lane.storeRun(&fb, indexer.Slot(slot), run, l, e)
			fb.Reset(indexer.Header{Partition: part, Slot: indexer.Slot(slot), Life: 1, Tenure: 1})
			fb.Drop(indexer.Device, indexer.MakeRange(run, 0, len(l)))
			lane.Apply(fb.Frame())
		}
		b.inputs("%d prefixes of %d blocks with %d holders, queries leave them after 1 to %d blocks; garbage: %d chains of 16 blocks stored below and dropped", prefixes, prefix, holders, prefix-1, churned)
		s := lane.Stats()
		b.set("stored", float64(s.Stored)/float64(s.Distinct))
		garbage, err := ask()
		if err != nil {
			return err
		}
		b.latencies("clean", clean)
		b.latencies("garbage", garbage)
		f := b.result.Figures
		b.set("p50.ratio", f["garbage.p50"]/f["clean.p50"])
		b.set("p99.ratio", f["garbage.p99"]/f["clean.p99"])
		return lane.end()
	})
}
