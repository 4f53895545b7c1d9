package fanout

import (
	"testing"
	"testing/synctest"
)

// Each rule that is switched off is found missing. Others are in the scenarios that
// they matter in.
func TestMutants(t *testing.T) {
	for name, broken := range map[string]mutant{
		"no hold-back":                       {noHold: true},
		"fill without clear":                 {noClear: true},
		"frames to copies that are not open": {sendClosed: true},
		"open copies survive the session":    {keepOpen: true},
		"open before the held frames":        {openFirst: true},
		"dump before the frames are applied": {earlyDump: true},
		"a fill beside other frames":         {beside: true},
		"local index not waited for":         {localLate: true},
	} {
		t.Run(name, func(t *testing.T) {
			const worlds = 60 // one in five or so shows the rarest, by chance of scheduling
			for seed := int64(1); seed <= worlds; seed++ {
				var wrong []string
				synctest.Test(t, func(t *testing.T) { _, wrong = random(t, seed, broken) })
				if len(wrong) > 0 {
					t.Logf("found in world %d: %.300s", seed, wrong[0])
					return
				}
			}
			t.Errorf("not found in %d worlds", worlds)
		})
	}
}
