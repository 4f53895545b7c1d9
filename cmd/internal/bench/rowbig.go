package bench

import (
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

func bigRow() Row {
	return Row{
		Name: "big", Title: "a tree of 50 million held blocks: clear of a slot, share of the collector", Repeat: 3, run: runBig,
		Measures: []Measure{
			{Key: "clear.long", Title: "clear of 100 k blocks, runs of 128", Unit: "ms", AtLeast: 1, Aim: 0.3, Prototype: "0.25-0.47"},
			{Key: "clear.ones", Title: "clear of 100 k blocks, runs of one block", Unit: "ms", AtLeast: 10, Aim: 3},
			{Key: "clear.long.max", Title: "runs of 128, slowest slot", Unit: "ms"},
			{Key: "clear.ones.max", Title: "runs of one block, slowest slot", Unit: "ms"},
			{Key: "gc", Title: "collector's share of CPU, full load, 100 MB of other garbage a CPU-second", Unit: "%", AtLeast: 1, Aim: 0.3, Prototype: "0.7-2"},
			{Key: "gc.100", Title: "the same with GOGC=100, the runtime's default", Unit: "%"},
			{Key: "gc.none", Title: "the same without other garbage", Unit: "%"},
			{Key: "gc.much", Title: "the same with 800 MB a CPU-second", Unit: "%"},
			{Key: "heap", Title: "live Go heap at 50 M held", Unit: "MiB", Scale: 1 << 20},
			{Key: "gc.cycle", Title: "CPU of one full cycle", Unit: "ms", Prototype: "0.7-2.0"},
			{Key: "live", Title: "live bytes per held block, all parts", Unit: "B"},
			{Key: "build", Title: "blocks stored per CPU-second while building, translator and tree", Unit: "M/s", HigherIsBetter: true, Scale: 1e6},
		},
	}
}

const (
	nodeGC    = 400     // what the command sets for every process unless GOGC says otherwise
	bigBlocks = 100_000 // of one slot
	bigChain  = 128
)

// bigTree is slots of bigBlocks blocks in chains of bigChain; two neighbouring slots
// hold the same.
type bigTree struct {
	arm   *indexArm
	slots int
}

// bigStart puts the measured slots behind those of translators.
const bigStart = 1 << 12

// bigChainBuffer has room for the hashes of one chain.
type bigChainBuffer struct{ locals, engines [bigChain]uint64 }

// of returns the hashes of chain c of a slot, valid until the next call.
func (b *bigChainBuffer) of(slot, c int) (locals, engines []uint64) {
	n := min(bigChain, bigBlocks-c*bigChain)
	fillChain(uint64(256+slot/2), c, b.locals[:n], b.engines[:n])
	return b.locals[:n], b.engines[:n]
}

func newBigTree(b *bencher, slots int) (*bigTree, error) {
	a, err := newIndexArm(slots)
	if err != nil {
		return nil, err
	}
	cpu := processCPU()
	var buf bigChainBuffer
	for s := range slots {
		for c := range (bigBlocks + bigChain - 1) / bigChain {
			l, e := buf.of(s, c)
			a.store(uint32(s), false, 0, l, e)
		}
		if b.ctx.Err() != nil {
			return nil, b.ctx.Err()
		}
	}
	b.set("build", float64(slots*bigBlocks)/(processCPU()-cpu).Seconds())
	if held, distinct := a.counts(); held != uint64(slots*bigBlocks) || distinct != held/2 {
		return nil, fmt.Errorf("%w: %d held, %d distinct", ErrWrongAnswers, held, distinct)
	}
	return &bigTree{a, slots}, nil
}

func runBig(b *bencher) error {
	slots := b.choose(500, 20)
	before, err := takeMemory()
	if err != nil {
		return err
	}
	t, err := newBigTree(b, slots)
	if err != nil {
		return err
	}
	after, err := takeMemory()
	if err != nil {
		return err
	}
	held, _ := t.arm.counts()
	b.inputs("%d slots x %d blocks = %.1f M held, %.1f M distinct; the cleared slots hold like the others, two by two", slots, bigBlocks, float64(held)/1e6, float64(held)/2e6)
	b.set("live", float64(int64(t.arm.mappedBytes())+after.heap-before.heap)/float64(held))
	cycle := gcCycle()
	b.set("gc.cycle", cycle.Seconds()*1e3)
	if err := t.clears(b); err != nil {
		return err
	}
	b.set("heap", float64(after.heap-before.heap))
	for _, load := range []struct {
		key     string
		garbage int // bytes for each CPU second
		percent int // GOGC
	}{{"gc", 100e6, nodeGC}, {"gc.100", 100e6, 100}, {"gc.none", 0, nodeGC}, {"gc.much", 800e6, nodeGC}} {
		old := debug.SetGCPercent(load.percent)
		share, err := t.collections(b, load.garbage)
		debug.SetGCPercent(old)
		if err != nil {
			return err
		}
		b.set(load.key, 100*share*cycle.Seconds())
	}
	return t.arm.close()
}

// clears times the clear of whole slots, which get their content from frames made
// here: one-block runs cannot be had from a translator that extends runs.
func (t *bigTree) clears(b *bencher) error {
	rounds := b.choose(6, 2)
	for _, ones := range []bool{false, true} {
		var took []float64
		for range rounds {
			for s := range 2 {
				t.fill(bigStart+s, ones)
			}
			for s := range 2 {
				cpu := threadCPUOf(func() { t.clear(bigStart + s) })
				took = append(took, cpu.Seconds()*1e3)
			}
		}
		key := "clear.long"
		if ones {
			key = "clear.ones"
		}
		b.set(key, NewSpread(took).Median)
		b.set(key+".max", slices.Max(took))
	}
	if held, _ := t.arm.counts(); held != uint64(t.slots*bigBlocks) {
		return fmt.Errorf("%w: %d held after clears", ErrWrongAnswers, held)
	}
	return b.ctx.Err()
}

// fill stores the content of a slot, in runs of a chain or of one block.
func (t *bigTree) fill(slot int, ones bool) {
	var fb indexer.FrameBuilder
	var buf bigChainBuffer
	runs := map[indexer.PartitionID]indexer.Run{}
	for c := range (bigBlocks + bigChain - 1) / bigChain {
		locals, engines := buf.of(slot, c)
		part := partitionOf(locals[0])
		fb.Reset(indexer.Header{Partition: part, Slot: indexer.Slot(slot), Life: 1, Tenure: 1})
		parent := indexer.Parent{}
		size := len(locals)
		if ones {
			size = 1
		}
		for i := 0; i < len(locals); i += size {
			run := runs[part]
			runs[part]++
			lo, en := fb.Store(indexer.Device, run, 0, parent, size)
			copy(lo, locals[i:])
			copy(en, engines[i:])
			parent = indexer.Parent{Kind: indexer.ParentName, Run: run, Pos: uint32(size - 1)}
		}
		t.arm.lane.Apply(fb.Frame())
	}
}

// clear clears a slot in every partition, as its translator does: a frame for each.
func (t *bigTree) clear(slot int) {
	var fb indexer.FrameBuilder
	for p := range indexer.PartitionID(256) {
		fb.Reset(indexer.Header{Partition: p, Slot: indexer.Slot(slot), Life: 1, Tenure: 1})
		fb.Clear(indexer.AllTiers)
		t.arm.lane.Apply(fb.Frame())
	}
}

// collections puts the tree under full load for some CPU seconds, while another
// goroutine makes garbage at a rate in bytes a CPU second, and returns how many
// collections there were in a CPU second.
func (t *bigTree) collections(b *bencher, garbage int) (float64, error) {
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(2)
	go func() {
		defer wg.Done()
		makeGarbage(garbage, stop)
	}()
	go func() {
		defer wg.Done()
		t.ask(stop)
	}()
	total := time.Duration(b.choose(2000, 200)) * time.Millisecond
	cpu, gc := processCPU(), gcCycles()
	var err error
	var buf bigChainBuffer
	for s := 0; processCPU()-cpu < total; s = (s + 1) % t.slots {
		// Every block of the slot goes and comes back.
		for c := range (bigBlocks + bigChain - 1) / bigChain {
			locals, engines := buf.of(s, c)
			t.arm.remove(uint32(s), engines)
			t.arm.store(uint32(s), false, 0, locals, engines)
		}
		if err = b.ctx.Err(); err != nil {
			break
		}
	}
	close(stop)
	wg.Wait()
	return float64(gcCycles()-gc) / (processCPU() - cpu).Seconds(), err
}

// ask keeps a reader busy.
func (t *bigTree) ask(stop <-chan struct{}) {
	reader := t.arm.lane.NewReader()
	defer reader.Close()
	var scores indexer.Scores
	var buf bigChainBuffer
	for i := 0; ; i++ {
		select {
		case <-stop:
			return
		default:
		}
		locals, _ := buf.of(i%t.slots, i%700)
		reader.Match(queryOf(locals), &scores)
	}
}

// makeGarbage allocates so many bytes for each CPU second of the process, in pieces of
// the size of a request.
func makeGarbage(rate int, stop <-chan struct{}) {
	const piece = 4096
	var kept [256][]byte // what is in flight
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	from, made := processCPU(), 0
	for i := 0; ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		for due := int((processCPU() - from).Seconds() * float64(rate)); made < due; made += piece {
			kept[i%len(kept)] = make([]byte, piece)
			i++
		}
	}
}
