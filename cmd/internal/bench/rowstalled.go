package bench

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"golang.org/x/sys/unix"
)

func stalledRow() Row {
	return Row{
		Name: "stalled", Title: "a reader that loses its core in mid-query while the lane churns", run: runStalled,
		Measures: []Measure{
			{Key: "stall", Title: "longest query, that is how long the pin was held", Unit: "ms"},
			{Key: "limbo", Title: "most memory waiting for readers (Stats.Limbo)", Unit: "MiB", AtLeast: 80 << 20, Scale: 1 << 20, Prototype: "unbounded"},
			{Key: "reserved", Title: "growth of memory taken from the system", Unit: "MiB", Scale: 1 << 20},
			{Key: "churn", Title: "blocks churned in the time", Unit: "M", Scale: 1e6},
			{Key: "after", Title: "waiting for readers after the reader went on", Unit: "MiB", Scale: 1 << 20},
		},
	}
}

// stalledRivals is how many threads share the core with the lane: the more, the rarer
// the reader's turn. With three it comes about once a second.
const stalledRivals = 3

// runStalled puts the reader on the lane's core at the lowest priority there is: the
// lane and some threads that only take time have the core, and the reader stands still
// wherever it was, which is nearly always inside a query. The default limit of a lane is
// 64 MiB of limbo.
func runStalled(b *bencher) error {
	// A thread that waits for its core keeps its place in the scheduler of Go.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(stalledRivals + 4))
	lane, err := openLane()
	if err != nil {
		return err
	}
	const slots, chains = 16, 64
	var fb indexer.FrameBuilder
	for s := range slots {
		lane.churn(&fb, s, chains, 0)
	}
	// A prompt of which all is held takes so long to compare that the reader is hardly
	// ever outside a query.
	locals, engines := chainHashes(9, 0, indexer.MaxRunLength)
	fb.Reset(indexer.Header{Slot: slots, Life: 1, Tenure: 1})
	lo, en := fb.Store(indexer.Device, 0, 0, indexer.Parent{}, len(locals))
	copy(lo, locals)
	copy(en, engines)
	lane.Apply(fb.Frame())
	q := indexer.Query{Locals: locals}
	var stop atomic.Bool
	longest := make(chan uint64, 1)
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread() // ends with the goroutine
		pinThread(0)
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
		reader := lane.NewReader()
		defer reader.Close()
		var scores indexer.Scores
		worst := uint64(0)
		for i := 0; !stop.Load(); i++ {
			if i == 10 {
				close(started)
			}
			t := ticks()
			reader.Match(q, &scores)
			worst = max(worst, ticks()-t)
		}
		longest <- worst
	}()
	<-started
	ended := make(chan error, 1)
	for range stalledRivals {
		go func() {
			runtime.LockOSThread() // ends with the goroutine
			pinThread(0)
			for !stop.Load() {
			}
		}()
	}
	go func() {
		runtime.LockOSThread()
		pinThread(0)
		ended <- b.profiled(func() error { return stall(b, lane, &fb, slots, chains) })
	}()
	err = <-ended
	stop.Store(true)
	stalled := time.Duration(float64(<-longest) * b.clock.nsPerTick)
	b.set("stall", stalled.Seconds()*1e3)
	if err != nil {
		return err
	}
	if span := b.stallSpan(); stalled < span/4 {
		b.result.Invalid = fmt.Sprintf("the reader stood still for %v only, of %v", stalled, span)
	}
	// The lane goes on with little work, as it does when it has nothing to do.
	for i := range 10_000 {
		lane.churn(&fb, i%slots, 1, i)
	}
	b.set("after", float64(lane.Stats().Limbo))
	return lane.end()
}

func (b *bencher) stallSpan() time.Duration {
	return time.Duration(b.choose(2000, 200)) * time.Millisecond
}

// stall churns and watches what waits for readers.
func stall(b *bencher, lane *laneUnderTest, fb *indexer.FrameBuilder, slots, chains int) error {
	span := b.stallSpan()
	before := lane.Stats().Reserved
	limbo, reserved, churned := uint64(0), uint64(0), 0
	from := time.Now()
	i := 1
	for ; time.Since(from) < span; i++ {
		lane.churn(fb, i%slots, chains, i/slots)
		churned += chains * churnBlocks
		now := lane.Stats()
		limbo, reserved = max(limbo, now.Limbo), max(reserved, now.Reserved)
	}
	b.set("limbo", float64(limbo))
	b.set("reserved", float64(reserved)-float64(before))
	b.set("churn", float64(churned))
	b.inputs("lane, reader and %d threads that spin on one core, the reader at idle priority; %d slots replace their content of %d blocks over and over for %v", stalledRivals, slots, chains*churnBlocks, span)
	return b.ctx.Err()
}

const churnBlocks = 256

// churn drops what a slot holds and stores other chains instead, so that storage is
// retired all the time.
func (l *laneUnderTest) churn(fb *indexer.FrameBuilder, slot, chains, version int) {
	for c := range chains {
		fb.Reset(indexer.Header{Slot: indexer.Slot(slot), Life: 1, Tenure: 1})
		if c == 0 {
			fb.Clear(indexer.AllTiers)
		}
		locals, engines := fb.Store(indexer.Device, indexer.Run(c), 0, indexer.Parent{}, churnBlocks)
		fillChain(uint64(1024+slot)<<8|uint64(version&255), c, locals, engines)
		l.Apply(fb.Frame())
	}
}
