package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"runtime/pprof"
)

// Row is one measurement: what one process does, and the figures that come of it.
type Row struct {
	Name  string // in --only and in file names
	Title string
	// Arms, if any, are measured in turn, each in its own process; QuickArms are those
	// of the short form, if it has fewer.
	Arms, QuickArms []string
	Measures        []Measure
	// Repeat bounds the repetitions of a row that takes long; 0 = no bound.
	Repeat int
	run    func(*bencher) error
	// derive makes the figures of one repetition from the results of all arms; nil =
	// those of the only arm.
	derive func(arms map[string]Result) map[string]float64
}

// Measure is one figure of a row.
type Measure struct {
	Key   string `json:"key"`
	Title string `json:"title"`
	Unit  string `json:"unit"`
	// HigherIsBetter, AtLeast and Aim judge it; both limits 0 = shown only.
	HigherIsBetter bool    `json:"higher_is_better"`
	AtLeast        float64 `json:"target,omitempty"`
	Aim            float64 `json:"aim,omitempty"`
	// Scale is what the figure is divided by for people, 0 = 1.
	Scale float64 `json:"-"`
	// Prototype is what the design was measured with, in words.
	Prototype string `json:"prototype,omitempty"`
}

// Verdicts of a measure.
const (
	VerdictAim    = "aim"
	VerdictMet    = "met"
	VerdictMissed = "MISSED"
	VerdictNone   = "-" // no target
)

// Verdict judges a value.
func (m *Measure) Verdict(v float64) string {
	reaches := func(limit float64) bool {
		if m.HigherIsBetter {
			return v >= limit
		}
		return v <= limit
	}
	switch {
	case m.AtLeast == 0 && m.Aim == 0 || math.IsNaN(v):
		return VerdictNone
	case m.Aim != 0 && reaches(m.Aim):
		return VerdictAim
	case reaches(m.AtLeast):
		return VerdictMet
	}
	return VerdictMissed
}

// Result is what one process found.
type Result struct {
	Figures map[string]float64 `json:"figures"`
	// Inputs says what was measured, in words.
	Inputs string `json:"inputs"`
	// Invalid, if not empty, says why this repetition does not count.
	Invalid string `json:"invalid,omitempty"`
	// Run is set by the op list row.
	Run *Run `json:"run,omitempty"`
}

// bencher is what a row measures with. It belongs to one goroutine.
type bencher struct {
	ctx    context.Context
	job    Job
	clock  tickClock
	result Result
	traced bool // the profile has been written
}

func newBencher(ctx context.Context, j Job) *bencher {
	return &bencher{ctx: ctx, job: j, clock: newTickClock(), result: Result{Figures: map[string]float64{}}}
}

func (b *bencher) inputs(format string, args ...any) { b.result.Inputs = fmt.Sprintf(format, args...) }

func (b *bencher) set(key string, v float64) { b.result.Figures[key] = v }

// latencies sets key.p50 and key.p99, in ns, of samples in ticks.
func (b *bencher) latencies(key string, samples []uint32) {
	p := b.clock.percentiles(samples, 50, 99)
	b.set(key+".p50", p[0])
	b.set(key+".p99", p[1])
}

// choose returns full, or short in the quick form.
func (b *bencher) choose(full, short int) int {
	if b.job.Quick {
		return short
	}
	return full
}

// profiled does what is measured, under the profiler if the job asks for it; of
// several parts of a row the first is the one in the profile.
func (b *bencher) profiled(f func() error) (err error) {
	if b.job.CPUProfile == "" || b.traced {
		return f()
	}
	b.traced = true
	w, err := os.Create(b.job.CPUProfile)
	if err != nil {
		return fmt.Errorf("cpu profile: %w", err)
	}
	defer func() {
		if cerr := w.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("cpu profile: %w", cerr)
		}
	}()
	if err := pprof.StartCPUProfile(w); err != nil {
		return fmt.Errorf("cpu profile: %w", err)
	}
	defer pprof.StopCPUProfile()
	return f()
}

// Rows returns all rows, in the order in which they are shown.
func Rows() []Row {
	return []Row{
		oplistRow(), laneRow(), contentionRow(), holesRow(), decodeRow(), pageRow(),
		bigRow(), stalledRow(), shallowRow(), wideRow(), lanesRow(), replayRow(),
	}
}

// findRow returns the row of a name.
func findRow(name string) (Row, error) {
	for _, r := range Rows() {
		if r.Name == name {
			return r, nil
		}
	}
	return Row{}, fmt.Errorf("%w: row %q", ErrJob, name)
}
