package sim

import (
	"strings"
	"testing"
)

// mutants are rules that the simulation finds missing when they are switched off, with
// the number of schedules that it may take.
var mutants = map[string]int{
	"fanout.noHold":      60,
	"fanout.noClear":     60,
	"fanout.openFirst":   60,
	"fanout.early":       60,
	"fanout.keepOpen":    60,
	"fanout.sendClosed":  60,
	"fanout.uncounted":   60,
	"fanout.earlyDump":   60,
	"fanout.beside":      60,
	"fanout.localLate":   60,
	"owner.closedFrame":  60,
	"owner.oldTenure":    60,
	"owner.earlyAck":     60,
	"owner.lateDump":     60,
	"owner.keepCopies":   60,
	"owner.earlyResume":  60,
	"owner.noMark":       60,
	"owner.earlyOpen":    60,
	"owner.openFaulty":   60,
	"owner.reopen":       60,
	"owner.adoptNoWait":  60,
	"owner.fencedOpen":   60,
	"owner.purgeNoWait":  60,
	"owner.forgetBroken": 60,
	"link.duplicates":    60,
	"link.earlyAck":      60,
	"link.ignoreBoot":    60,
	"link.noResend":      60,
	"link.mixSessions":   60,
	"link.ownClock":      60,
	"search.leaseFirst":  60,
	"search.unreadable":  60,
	"search.lateMark":    60,
	"search.anyOwner":    60,
	"search.otherBoot":   60,
	"search.oldView":     60,
	"search.behind":      60,
}

// Each rule that is switched off is found missing.
func TestMutants(t *testing.T) {
	for name, schedules := range mutants {
		t.Run(strings.ReplaceAll(name, ".", "/"), func(t *testing.T) {
			for seed := uint64(1); seed <= uint64(schedules); seed++ {
				cfg, steps := Schedule(seed, 0)
				cfg.Broken = []string{name}
				if r := run(t, cfg, steps); len(r.Failures) > 0 {
					t.Logf("found in schedule %d: %.300s", seed, r.Failures[0])
					return
				}
			}
			t.Errorf("not found in %d schedules", schedules)
		})
	}
}
