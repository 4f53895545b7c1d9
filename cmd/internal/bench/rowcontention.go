package bench

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

func contentionRow() Row {
	return Row{
		Name: "contention", Title: "lookups while a lane is overloaded, over the same lookups while it is idle", run: runContention,
		Measures: []Measure{
			{Key: "p99.ratio", Title: "lookup p99, overloaded over idle", Unit: "x", AtLeast: 1.5, Aim: 1.1, Prototype: "0.9-1.3"},
			{Key: "p50.ratio", Title: "lookup p50, overloaded over idle", Unit: "x"},
			{Key: "idle.p50", Title: "idle p50", Unit: "ns"},
			{Key: "idle.p99", Title: "idle p99", Unit: "ns"},
			{Key: "busy.p50", Title: "overloaded p50", Unit: "ns"},
			{Key: "busy.p99", Title: "overloaded p99", Unit: "ns"},
			{Key: "overlap", Title: "queries asked while the lane really had a core", Unit: ""},
		},
	}
}

const (
	// contentionWindows is into how many pieces the second half of the op list is cut.
	contentionWindows = 16
	// contentionBatch is how many queries are asked between two looks at whether the
	// lane is at work: some 20 us, several frames.
	contentionBatch = 64
	// contentionEnough is how many samples a p99 needs at least.
	contentionEnough = 5000
)

// runContention cuts the second half of the op list into windows. In each, a second
// thread applies the frames of the window as fast as it can while queries are asked;
// before and after, the lane stands still while as many are asked. All queries of the
// list are asked in one random order, so that both kinds see the same mix, and none
// twice in a row with a warm cache.
func runContention(b *bencher) error {
	tape, err := OpenTape(b.job.Tape)
	if err != nil {
		return err
	}
	log, marks, err := recordFrames(tape)
	if err != nil {
		return err
	}
	lane, err := openLane()
	if err != nil {
		return err
	}
	half := tape.Len() / 2
	for i := range marks[half] {
		lane.Apply(log.frame(i))
	}
	feeder := newFeeder(lane.Lane, log, marks[half])
	b.inputs("op list from op %d on in %d windows; its queries in random order; lane and reader on a core each where there are two", half, contentionWindows)
	asker := &asker{queries: shuffledQueries(tape)}
	var idle, busy []uint32
	asked := 0 // while there were frames to apply
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // pinned: ends with the goroutine
		pinThread(1)
		asker.reader = lane.NewReader()
		defer asker.reader.Close()
		done <- b.profiled(func() error {
			n := 1000
			for w := range contentionWindows {
				idle = asker.ask(idle, n/2)
				feeder.start(marks[half+(w+1)*half/contentionWindows-1])
				before := len(busy)
				for !feeder.idle.Load() {
					// While the lane waits for its core, the tree is idle: these
					// samples are not kept.
					at, kept := feeder.applied.Load(), len(busy)
					busy = asker.ask(busy, contentionBatch)
					asked += contentionBatch
					if feeder.applied.Load() == at {
						busy = busy[:kept]
					}
				}
				n = len(busy) - before
				idle = asker.ask(idle, (n+1)/2)
				if b.ctx.Err() != nil {
					return b.ctx.Err()
				}
			}
			return nil
		})
	}()
	err = <-done
	feeder.stop()
	if err != nil {
		return err
	}
	if len(busy) < contentionEnough && !b.job.Quick {
		b.result.Invalid = fmt.Sprintf("the lane was at work during %d queries only", len(busy))
	}
	b.set("overlap", float64(len(busy))/float64(max(asked, 1)))
	b.latencies("idle", idle)
	b.latencies("busy", busy)
	f := b.result.Figures
	b.set("samples", float64(len(busy)))
	b.set("p50.ratio", f["busy.p50"]/f["idle.p50"])
	b.set("p99.ratio", f["busy.p99"]/f["idle.p99"])
	return lane.end()
}

// shuffledQueries returns all queries of a tape in random order.
func shuffledQueries(tape *Tape) [][]uint64 {
	var out [][]uint64
	var op oplist.Op
	for i := range tape.Len() {
		if tape.At(i, &op); op.Kind == oplist.Query && len(op.Contents) > 0 {
			out = append(out, op.Contents)
		}
	}
	rand.New(rand.NewPCG(42, 1)).Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// asker asks queries in turn.
type asker struct {
	reader  *tree.Reader
	queries [][]uint64
	next    int
	scores  indexer.Scores
}

// ask times the next n queries.
func (a *asker) ask(samples []uint32, n int) []uint32 {
	for range n {
		q := queryOf(a.queries[a.next])
		a.next = (a.next + 1) % len(a.queries)
		t := ticks()
		a.reader.Match(q, &a.scores)
		samples = append(samples, since(t))
	}
	return samples
}

// feeder is a thread that applies the frames of a log, up to where it is told.
type feeder struct {
	idle    atomic.Bool
	applied atomic.Uint64 // frames
	to      chan int
	ended   chan struct{}
}

// newFeeder starts the thread; the next frame is number at.
func newFeeder(lane *tree.Lane, log *frameLog, at int) *feeder {
	f := &feeder{to: make(chan int), ended: make(chan struct{})}
	f.idle.Store(true)
	go f.run(lane, log, at)
	return f
}

// start has the frames before number to applied; idle tells when they are.
func (f *feeder) start(to int) {
	f.idle.Store(false)
	f.to <- to
}

// stop ends the thread.
func (f *feeder) stop() {
	close(f.to)
	<-f.ended
}

func (f *feeder) run(lane *tree.Lane, log *frameLog, at int) {
	defer close(f.ended)
	runtime.LockOSThread() // pinned: ends with the goroutine
	pinThread(0)
	for to := range f.to {
		for ; at < to; at++ {
			lane.Apply(log.frame(at))
			f.applied.Store(uint64(at))
		}
		f.idle.Store(true)
	}
}
