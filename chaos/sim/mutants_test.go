package sim

import (
	"strings"
	"testing"
)

// mutants are rules that the simulation finds missing when they are switched off. Most are
// found in the first ten schedules; the rarest, noHold, in one of thirty. Others of the packages need moments that do not come
// here: the index applies at once, so that nothing can be asked too early (package fanout
// and owner have scenarios for those), or no query is halfway when a node stands still.
var mutants = []string{
	"fanout.noHold", "fanout.noClear", "fanout.keepOpen", "fanout.sendClosed", "link.ignoreBoot", "link.noResend", "search.unreadable",
	"search.whole",
}

// mutantSchedules is how many schedules each of them may take.
const mutantSchedules = 300

// Each rule that is switched off is found missing.
func TestMutants(t *testing.T) {
	for _, name := range mutants {
		t.Run(strings.ReplaceAll(name, ".", "/"), func(t *testing.T) {
			for seed := uint64(1); seed <= mutantSchedules; seed++ {
				cfg, steps := Schedule(seed, 0)
				cfg.Broken = []string{name}
				if r := run(t, cfg, steps); len(r.Failures) > 0 {
					t.Logf("found in schedule %d: %.300s", seed, r.Failures[0])
					return
				}
			}
			t.Errorf("not found in %d schedules", mutantSchedules)
		})
	}
}
