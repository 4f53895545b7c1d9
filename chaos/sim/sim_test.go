package sim

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
)

var (
	flagSeed      = flag.Uint64("sim.seed", 0, "run the schedule of this seed alone; 0 = many")
	flagFirst     = flag.Uint64("sim.first", 1, "first seed of many")
	flagSteps     = flag.Int("sim.steps", 0, "steps of each schedule; 0 = what the seed says")
	flagSchedules = flag.Int("sim.schedules", 60, "how many schedules")
	flagLog       = flag.Bool("sim.log", false, "print what the nodes say")
	flagShrink    = flag.Int("sim.shrink", 60, "how many runs may be spent on a shorter schedule that fails")
	flagOnly      = flag.String("sim.only", "", "kinds of steps to keep, separated by commas; \"\" = all")
)

// run carries a schedule out in a bubble of its own.
func run(t *testing.T, cfg Config, steps []Step) (r Report) {
	synctest.Test(t, func(*testing.T) { r = Run(cfg, steps) })
	return r
}

// A cluster in which nothing goes wrong.
func TestCalm(t *testing.T) {
	r := run(t, Config{Seed: 1, Nodes: 3, Engines: 1, Partitions: 4, Replicas: 2}, []Step{{Kind: "calm", For: 3e9, Seed: 1}})
	for _, f := range r.Failures {
		t.Error(f)
	}
	t.Logf("%+v", r.Counts)
}

func TestSchedules(t *testing.T) {
	first, n := *flagFirst, *flagSchedules
	if *flagSeed != 0 {
		first, n = *flagSeed, 1
	}
	for seed := first; seed < first+uint64(n); seed++ {
		cfg, steps := Schedule(seed, *flagSteps)
		if *flagOnly != "" {
			var kept []Step
			for _, s := range steps {
				for _, k := range strings.Split(*flagOnly, ",") {
					if s.Kind == k {
						kept = append(kept, s)
					}
				}
			}
			steps = kept
		}
		if *flagLog {
			cfg.Log = func(line string) { fmt.Fprintln(os.Stderr, line) }
		}
		r := run(t, cfg, steps)
		if len(r.Failures) > 0 {
			t.Error(explain(t, seed, cfg, steps, r))
		}
		if n == 1 {
			t.Logf("%+v", r.Counts)
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
	return fmt.Sprintf("seed %d fails:\n  %s\nshortest schedule found, %+v:\n  %s\n%sagain: go test ./chaos/sim -run '^TestSchedules$' -sim.seed=%d -sim.steps=%d",
		seed, strings.Join(r.Failures, "\n  "), cfg, strings.Join(r.Lines, "\n  "), text.String(), seed, *flagSteps)
}
