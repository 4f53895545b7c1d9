package differential

import (
	"flag"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

var (
	seeds     = flag.Int("differential.seeds", 40, "seeds of each mode")
	firstSeed = flag.Int64("differential.first", 1, "first seed")
)

// references is the translator in front of the reference index.
func references() Setup {
	return Setup{
		Open:      func() indexer.Index { return reference.New(reference.Config{}) },
		Translate: func(c translate.Config) translate.Interface { return translate.New(c) },
	}
}

func TestTranslatorAndReference(t *testing.T) { compare(t, references()) }

func compare(t *testing.T, setup Setup) { compareSeeds(t, setup, *firstSeed, *seeds) }

// compareSeeds runs all modes over the seeds: half of them compare after every
// operation, the others at quiet points, with one writer and with four. A failure
// says its seed, mode and lanes: go test -differential.first=SEED -differential.seeds=2.
func compareSeeds(t *testing.T, setup Setup, first int64, n int) {
	if testing.Short() {
		n = min(n, 4)
	}
	for _, m := range Modes() {
		t.Run(m.Name, func(t *testing.T) {
			for seed := first; seed < first+int64(n); seed++ {
				r := Run{Setup: setup, Mode: m, Seed: seed, Quiet: 1}
				if seed%2 == 0 {
					r.Quiet = 100
					r.Setup.Writers = int(1 + seed%4/2*3)
				}
				if seed%3 == 0 {
					r.Setup.FirstSlot = 254
				}
				if f := r.Do(); f != nil {
					t.Fatal(f)
				}
			}
		})
	}
}
