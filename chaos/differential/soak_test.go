package differential

import (
	"flag"
	"testing"
	"time"
)

var soakFor = flag.Duration("differential.soak", 2*time.Second, "how long each soak runs")

func TestSoakReference(t *testing.T) { soakAll(t, references()) }

// soakAll runs 8 writers of 8 ranks and 4 readers, on the device alone and with all
// tiers, with slot numbers across 256.
func soakAll(t *testing.T, setup Setup) {
	setup.FirstSlot = 230
	for _, m := range []Mode{
		{Name: "device", Shape: SoakShape(), Workers: 4, Ranks: 2},
		{Name: "tiers", Shape: SoakShape(), Workers: 8, Ranks: 1, Tiers: true},
		{Name: "few blocks", Shape: Shape{2, 2, 2, 3, 2, 2}, Workers: 8, Ranks: 1, OwnHashes: true},
	} {
		t.Run(m.Name, func(t *testing.T) {
			k := Soak{Setup: setup, Mode: m, Seed: 1, Rounds: int(*soakFor / (500 * time.Millisecond))}
			got, err := k.Do()
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%+v", got)
			if got.Batches < 100 || got.Ends == 0 || got.Moving == 0 || got.Rows == 0 {
				t.Errorf("the soak has seen too little: %+v", got)
			}
		})
	}
}
