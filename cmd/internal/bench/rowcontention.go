package bench

import (
	"runtime"
	"sync/atomic"
	"time"

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
			{Key: "overlap", Title: "share of the overloaded time in which the lane had a core", Unit: ""},
		},
	}
}

// contentionWindows is into how many pieces the second half of the op list is cut.
const contentionWindows = 16

// runContention cuts the second half of the op list into windows. At both ends of each
// the lane stands still and the queries of the window are asked; between, a second
// thread applies the frames of the window as fast as it can while they are asked over
// and over.
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
	b.inputs("op list from op %d on in %d windows; lane and reader on a core each where there are two", half, contentionWindows)
	var idle, busy []uint32
	done := make(chan error, 1)
	go func() { // a thread of its own, pinned, that ends with the goroutine
		runtime.LockOSThread()
		done <- func() error {
			pinThread(1)
			reader := lane.NewReader()
			defer reader.Close()
			var windows [][][]uint64
			for w := range contentionWindows {
				windows = append(windows, queriesBetween(tape, half+w*half/contentionWindows, half+(w+1)*half/contentionWindows))
			}
			return b.profiled(func() error {
				for w, queries := range windows {
					idle = askAll(reader, queries, idle)
					to := marks[half+(w+1)*half/contentionWindows-1]
					feeder.start(to)
					for !feeder.idle.Load() {
						busy = askUntil(reader, queries, busy, &feeder.idle)
					}
					idle = askAll(reader, queries, idle)
					if b.ctx.Err() != nil {
						return b.ctx.Err()
					}
				}
				return nil
			})
		}()
	}()
	err = <-done
	b.set("overlap", feeder.stop())
	if err != nil {
		return err
	}
	b.latencies("idle", idle)
	b.latencies("busy", busy)
	f := b.result.Figures
	b.set("p50.ratio", f["busy.p50"]/f["idle.p50"])
	b.set("p99.ratio", f["busy.p99"]/f["idle.p99"])
	return lane.end()
}

func queriesBetween(tape *Tape, from, to int) [][]uint64 {
	var out [][]uint64
	var op oplist.Op
	for i := from; i < to; i++ {
		if tape.At(i, &op); op.Kind == oplist.Query && len(op.Contents) > 0 {
			out = append(out, op.Contents)
		}
	}
	return out
}

func askAll(reader *tree.Reader, queries [][]uint64, samples []uint32) []uint32 {
	return askUntil(reader, queries, samples, new(atomic.Bool))
}

// askUntil asks the queries in turn until the end or until stop.
func askUntil(reader *tree.Reader, queries [][]uint64, samples []uint32, stop *atomic.Bool) []uint32 {
	var scores indexer.Scores
	for _, locals := range queries {
		if stop.Load() {
			break
		}
		q := queryOf(locals)
		t := ticks()
		reader.Match(q, &scores)
		samples = append(samples, since(t))
	}
	return samples
}

// feeder is a thread that applies the frames of a log, up to where it is told.
type feeder struct {
	idle  atomic.Bool
	to    chan int
	share chan float64
}

// newFeeder starts the thread; the next frame is number at.
func newFeeder(lane *tree.Lane, log *frameLog, at int) *feeder {
	f := &feeder{to: make(chan int), share: make(chan float64, 1)}
	f.idle.Store(true)
	go f.run(lane, log, at)
	return f
}

// start has the frames before number to applied; idle tells when they are.
func (f *feeder) start(to int) {
	f.idle.Store(false)
	f.to <- to
}

// stop ends the thread and returns which share of its busy time it had a core.
func (f *feeder) stop() float64 {
	close(f.to)
	return <-f.share
}

func (f *feeder) run(lane *tree.Lane, log *frameLog, at int) {
	runtime.LockOSThread() // ends with the goroutine
	pinThread(0)
	var wall, cpu time.Duration
	for to := range f.to {
		w, c := time.Now(), threadCPU()
		for ; at < to; at++ {
			lane.Apply(log.frame(at))
		}
		wall += time.Since(w)
		cpu += threadCPU() - c
		f.idle.Store(true)
	}
	f.share <- float64(cpu) / float64(max(wall, 1))
}
