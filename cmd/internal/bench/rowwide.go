package bench

import (
	"fmt"
	"math/rand/v2"

	"github.com/kvcluster/kvcluster/indexer"
)

func wideRow() Row {
	r := Row{Name: "wide", Title: "wide: 1,024 and 8,192 slots, chains of 78 blocks with few to all holders", run: runWide}
	for _, slots := range wideSlots() {
		for _, holders := range wideHolders(slots) {
			key := wideKey(slots, holders)
			r.Measures = append(r.Measures,
				Measure{Key: key + ".p50", Title: fmt.Sprintf("%d slots, %d holders: query p50", slots, holders), Unit: "ns", Prototype: widePrototype(slots, holders, 0)},
				Measure{Key: key + ".p99", Title: fmt.Sprintf("%d slots, %d holders: query p99", slots, holders), Unit: "ns", Prototype: widePrototype(slots, holders, 1)})
		}
		r.Measures = append(r.Measures, Measure{Key: fmt.Sprintf("w%d.store", slots), Title: fmt.Sprintf("%d slots: CPU of a 78-block duplicate store", slots), Unit: "ns", Prototype: "1000-1200"})
	}
	return r
}

func wideSlots() []int { return []int{1024, 8192} }

func wideHolders(slots int) []int {
	if slots == 1024 {
		return []int{1, 64, 1024}
	}
	return []int{1, 64, 512, 8192}
}

func wideKey(slots, holders int) string { return fmt.Sprintf("w%d.h%d", slots, holders) }

func widePrototype(slots, holders, percentile int) string {
	if slots != 8192 {
		return ""
	}
	return map[int][2]string{1: {"312", "800"}, 64: {"1006", "1900"}, 512: {"1334", "11000"}, 8192: {"8019", "19000"}}[holders][percentile]
}

// runWide builds a tree for each number of slots with families of chains that differ
// in the number of holders, spread over all slots.
func runWide(b *bencher) error {
	blocks := b.choose(4<<20, 1<<19) / holesBlocks // (holder, chain) pairs for each family, about
	b.inputs("families of up to %d chains with so many holders, spread over the slots; random order", min(blocks/64, 512))
	rnd := rand.New(rand.NewPCG(42, 8192))
	return b.profiled(func() error {
		for _, slots := range wideSlots() {
			if err := wideTree(b, rnd, slots, blocks); err != nil {
				return err
			}
		}
		return nil
	})
}

func wideTree(b *bencher, rnd *rand.Rand, slots, pairs int) error {
	lane, err := openLane()
	if err != nil {
		return err
	}
	reader := lane.NewReader()
	runs := map[[2]uint32]indexer.Run{}
	var fb indexer.FrameBuilder
	families := wideHolders(slots)
	locals := make([][][]uint64, len(families))
	stores, cpu := 0, processCPU()
	for f, holders := range families {
		for c := range min(max(pairs/holders, 8), 512) {
			l, e := chainHashes(uint64(16+f), c, holesBlocks)
			locals[f] = append(locals[f], l)
			part, first := partitionOf(l[0]), rnd.IntN(slots)
			for h := range holders {
				slot := uint32((first + h*(slots/holders)) % slots)
				run := runs[[2]uint32{slot, uint32(part)}]
				runs[[2]uint32{slot, uint32(part)}]++
				lane.storeRun(&fb, indexer.Slot(slot), run, l, e)
				stores++
			}
		}
	}
	b.set(fmt.Sprintf("w%d.store", slots), float64(processCPU()-cpu)/float64(stores))
	var scores indexer.Scores
	for f, holders := range families {
		var samples []uint32
		for len(samples) < max(4096, 64*1024/holders) {
			for _, c := range rnd.Perm(len(locals[f])) {
				q := queryOf(locals[f][c])
				t := ticks()
				reader.Match(q, &scores)
				samples = append(samples, since(t))
				if len(scores.Rows) != holders || scores.Rows[0].Depth != holesBlocks {
					return fmt.Errorf("%w: %d of %d slots hold a chain, %d rows", ErrWrongAnswers, holders, slots, len(scores.Rows))
				}
			}
		}
		b.latencies(wideKey(slots, holders), samples)
	}
	reader.Close()
	return lane.end()
}
