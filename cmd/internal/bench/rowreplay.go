package bench

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
)

// replayWindows are the windows in ms into which the op list is pressed.
func replayWindows(quick bool) []string {
	if quick {
		return []string{"1500", "375"}
	}
	return []string{"6000", "3000", "1500", "750", "375"}
}

func replayRow() Row {
	r := Row{
		Name: "replay", Title: "open-loop replay by deadlines: ingest and lane on one core, issuer and reader on the other", Repeat: 5,
		Arms: replayWindows(false), QuickArms: replayWindows(true), run: runReplay, derive: deriveReplay,
		Measures: []Measure{
			{Key: "keepup.rate", Title: "highest offered rate kept up with", Unit: "M block ops/s", HigherIsBetter: true, Scale: 1e6},
			{Key: "overload.rate", Title: "achieved at the shortest window, drain included", Unit: "M block ops/s", HigherIsBetter: true, Scale: 1e6},
		},
	}
	for _, w := range r.Arms {
		r.Measures = append(r.Measures,
			Measure{Key: w + ".kept", Title: w + " ms: share of repetitions that kept up", Unit: "", HigherIsBetter: true},
			Measure{Key: w + ".achieved", Title: w + " ms: achieved", Unit: "M block ops/s", HigherIsBetter: true, Scale: 1e6},
			Measure{Key: w + ".service.p50", Title: w + " ms: query service p50", Unit: "ns"},
			Measure{Key: w + ".service.p99", Title: w + " ms: query service p99", Unit: "ns"},
			Measure{Key: w + ".query.p99", Title: w + " ms: query from its intended time, p99", Unit: "us", Scale: 1e3},
			Measure{Key: w + ".update.p50", Title: w + " ms: update visible after its intended time, p50", Unit: "us", Scale: 1e3},
			Measure{Key: w + ".update.p99", Title: w + " ms: update visible after its intended time, p99", Unit: "us", Scale: 1e3},
			Measure{Key: w + ".cpu", Title: w + " ms: CPU of the index for 1,000 block ops", Unit: "us"},
		)
	}
	return r
}

// deriveReplay names the figures of each window by it, and finds the shortest window
// that was kept up with.
func deriveReplay(arms map[string]Result) map[string]float64 {
	out := map[string]float64{"keepup.rate": 0}
	var windows []int
	for w, r := range arms {
		for k, v := range r.Figures {
			out[w+"."+k] = v
		}
		n, _ := strconv.Atoi(w) // made by replayWindows
		windows = append(windows, n)
	}
	slices.Sort(windows)
	for i, n := range windows {
		f := arms[strconv.Itoa(n)].Figures
		if i == 0 {
			out["overload.rate"] = f["achieved"]
		}
		if f["kept"] == 1 {
			out["keepup.rate"] = f["offered"]
			break
		}
	}
	return out
}

func runReplay(b *bencher) error {
	window, err := strconv.Atoi(b.job.Arm)
	if err != nil || window < 1 {
		return fmt.Errorf("%w: window %q ms", ErrJob, b.job.Arm)
	}
	tape, err := OpenTape(b.job.Tape)
	if err != nil {
		return err
	}
	p, err := newReplay(tape, int64(window)*1e6, b.clock)
	if err != nil {
		return err
	}
	runtime.GC()
	debug.FreeOSMemory()
	if err := b.profiled(func() error { return p.run(b.ctx) }); err != nil {
		return err
	}
	b.inputs("op list by the arrivals of its trace, each worker's timeline stretched over the window; %d queries, %d events, %d block ops", tape.Queries(), p.events, tape.BlockOps())
	p.report(b)
	return p.close()
}
