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
			{Key: "control.p99.ratio", Title: "p99, the other core at work on another tree, over idle", Unit: "x"},
			{Key: "control.p50.ratio", Title: "p50, the other core at work on another tree, over idle", Unit: "x"},
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
//
// The control does the same while the thread works on another tree of the same size:
// what is slower then is slower by the machine, which the two cores share, and not by
// readers and lane meeting in one tree.
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
	other, err := openLane()
	if err != nil {
		return err
	}
	for i := range marks[half] {
		other.Apply(log.frame(i))
	}
	var ends []int
	for w := range contentionWindows {
		ends = append(ends, marks[half+(w+1)*half/contentionWindows-1])
	}
	b.inputs("op list from op %d on in %d windows; its queries in random order; lane and reader on a core each where there are two", half, contentionWindows)
	var same, foreign contention
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // pinned: ends with the goroutine
		pinThread(1)
		a := &asker{queries: shuffledQueries(tape), reader: lane.NewReader()}
		defer a.reader.Close()
		done <- b.profiled(func() error {
			same.measure(a, newFeeder(lane.Lane, log, marks[half]), ends)
			foreign.measure(a, newFeeder(other.Lane, log, marks[half]), ends)
			return b.ctx.Err()
		})
	}()
	if err := <-done; err != nil {
		return err
	}
	if n := min(len(same.busy), len(foreign.busy)); n < contentionEnough && !b.job.Quick {
		b.result.Invalid = fmt.Sprintf("the lane was at work during %d queries only", n)
	}
	b.set("overlap", float64(len(same.busy))/float64(max(same.asked, 1)))
	b.latencies("idle", same.idle)
	b.latencies("busy", same.busy)
	b.latencies("control.idle", foreign.idle)
	b.latencies("control.busy", foreign.busy)
	f := b.result.Figures
	for _, p := range []string{"p50", "p99"} {
		b.set(p+".ratio", f["busy."+p]/f["idle."+p])
		b.set("control."+p+".ratio", f["control.busy."+p]/f["control.idle."+p])
	}
	if err := lane.end(); err != nil {
		return err
	}
	return other.end()
}

// contention is the samples of one reader beside one feeder.
type contention struct {
	idle, busy []uint32
	asked      int // while there were frames to apply
}

// measure takes the feeder through the windows that end before the given frames.
func (c *contention) measure(a *asker, f *feeder, ends []int) {
	defer f.stop()
	n := 1000
	for _, to := range ends {
		c.idle = a.ask(c.idle, n/2)
		f.start(to)
		before := len(c.busy)
		for !f.idle.Load() {
			// While the lane waits for its core, the tree is idle: these samples are not
			// kept.
			at, kept := f.applied.Load(), len(c.busy)
			c.busy = a.ask(c.busy, contentionBatch)
			c.asked += contentionBatch
			if f.applied.Load() == at {
				c.busy = c.busy[:kept]
			}
		}
		n = len(c.busy) - before
		c.idle = a.ask(c.idle, (n+1)/2)
	}
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
