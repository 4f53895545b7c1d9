package sim

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var (
	flagSeed      = flag.Uint64("sim.seed", 0, "run the schedule of this seed alone; 0 = many")
	flagFirst     = flag.Uint64("sim.first", 1, "first seed of many")
	flagSteps     = flag.Int("sim.steps", 0, "steps of each schedule; 0 = what the seed says")
	flagSchedules = flag.Int("sim.schedules", 12, "how many schedules; with -short a half")
	flagLog       = flag.Bool("sim.log", false, "print what the nodes say")
	flagShrink    = flag.Int("sim.shrink", 60, "how many runs may be spent on a shorter schedule that fails")
)

// run carries a schedule out in a bubble of its own.
func run(t *testing.T, cfg Config, steps []Step) (r Report) {
	synctest.Test(t, func(*testing.T) { r = Run(cfg, steps) })
	return r
}

// A cluster in which nothing goes wrong. Answers are complete from the
// first acknowledged batch on; before it, an engine is registered and its copies are opened.
func TestCalm(t *testing.T) {
	for _, tree := range []bool{false, true} {
		r := run(t, Config{Seed: 1, Nodes: 3, Engines: 1, Partitions: 4, Replicas: 2, Tree: tree}, []Step{{Kind: "calm", For: 3 * time.Second, Seed: 1}})
		for _, f := range r.Failures {
			t.Error(f)
		}
		if c := r.Counts; c.Judged == 0 || c.PartialLate+c.Stale+c.None > 0 || c.Acknowledged == 0 {
			t.Errorf("%+v", c)
		}
	}
}

// progressEvery is how often a long run says how far it is.
const progressEvery = 500

func TestSchedules(t *testing.T) {
	total, n := schedules(t, Schedule, *flagSchedules)
	if n >= 50 {
		vacuous(t, &total)
	}
}

// Members come and go all the time.
func TestChurn(t *testing.T) {
	schedules(t, Churn, *flagSchedules/2)
}

// schedules carries out what seeds decide, and returns what happened in how many.
func schedules(t *testing.T, schedule func(seed uint64, steps int) (Config, []Step), n int) (total Counts, _ int) {
	first := *flagFirst
	if *flagSeed != 0 {
		first, n = *flagSeed, 1
	} else if testing.Short() {
		n = max(1, n/2)
	}
	failed := 0
	for i := range n {
		seed := first + uint64(i)
		cfg, steps := schedule(seed, *flagSteps)
		if *flagLog {
			cfg.Log = func(line string) { fmt.Fprintln(os.Stderr, line) }
		}
		r := run(t, cfg, steps)
		total.Add(r.Counts)
		if len(r.Failures) > 0 {
			failed++
			t.Error(explain(t, seed, cfg, steps, r))
		}
		if (i+1)%progressEvery == 0 {
			fmt.Fprintf(os.Stderr, "%d schedules, %d failed\n", i+1, failed)
		}
	}
	t.Logf("%d schedules: %+v", n, total)
	return total, n
}

// vacuous finds out whether the judges had nothing to judge.
func vacuous(t *testing.T, c *Counts) {
	for what, n := range map[string]int64{
		"batches": int64(c.Batches) / 1000, "acknowledged states": int64(c.Acknowledged) / 100, "new lives": int64(c.Lives) / 10,
		"layout changes": int64(c.Jobs) / 50, "readers that changed": int64(c.Takeovers) / 20,
		"answers judged": c.Judged / 2000, "answers under way": c.Moving / 1000, "scores under way": c.Rows / 500,
		"scores with a lower bound": c.Full / 1000, "partial answers": c.Partial / 100, "stale answers": c.Stale / 20,
	} {
		if n == 0 {
			t.Errorf("too few %s: %+v", what, *c)
		}
	}
	for _, k := range Kinds() {
		if c.Steps[k] == 0 {
			t.Errorf("there was no step %q", k)
		}
	}
}

// explain makes a failure short and says how to see it again.
func explain(t *testing.T, seed uint64, cfg Config, steps []Step, r Report) string {
	cfg.Log = nil
	Shrink(steps, *flagShrink, func(less []Step) bool {
		s := run(t, cfg, less)
		if len(s.Failures) == 0 {
			return false
		}
		steps, r = less, s
		return true
	})
	var text strings.Builder
	for _, s := range steps {
		fmt.Fprintf(&text, "  %#v,\n", s)
	}
	return fmt.Sprintf("seed %d fails:\n  %s\nshortest schedule found, %+v:\n  %s\n%sagain: go test ./chaos/sim -run '^%s$' -sim.seed=%d -sim.steps=%d",
		seed, strings.Join(r.Failures, "\n  "), cfg, strings.Join(r.Lines, "\n  "), text.String(), t.Name(), seed, *flagSteps)
}

// A seed decides its schedule, and any part of one can be carried out.
func TestScheduleIsDecidedBySeed(t *testing.T) {
	for seed := range uint64(50) {
		a, first := Schedule(seed, 0)
		b, second := Schedule(seed, 0)
		if fmt.Sprint(a) != fmt.Sprint(b) || !slices.Equal(first, second) || len(first) < 10 {
			t.Fatalf("seed %d: %v and %v", seed, first, second)
		}
	}
}

func TestShrink(t *testing.T) {
	var steps []Step
	for i := range 20 {
		steps = append(steps, Step{A: i})
	}
	has := func(steps []Step, a int) bool {
		return slices.ContainsFunc(steps, func(s Step) bool { return s.A == a })
	}
	short := Shrink(steps, 1000, func(s []Step) bool { return has(s, 3) && has(s, 17) })
	if len(short) != 2 {
		t.Errorf("%v", short)
	}
	if again := Shrink(steps, 3, func([]Step) bool { return true }); len(again) >= len(steps) {
		t.Errorf("%v", again)
	}
}
