package differential

import (
	"flag"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/contract"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

var frameSeeds = flag.Int("differential.frames", 4, "seeds of random frame streams in each mix")

// trees is the translator in front of the real index with so many lanes.
func trees(t *testing.T, lanes int) Setup {
	return Setup{
		Open: func() indexer.Index {
			x, err := tree.Open(tree.Config{Lanes: lanes})
			if err != nil {
				t.Fatal(err)
			}
			return x
		},
		Translate:  func(c translate.Config) translate.Interface { return translate.New(c) },
		Partitions: uint32(3 * lanes),
	}
}

// Half of the seeds each, and not the same: they wait for lanes after every step.
func TestTreeOneLane(t *testing.T) { compareSeeds(t, trees(t, 1), *firstSeed, (*seeds+1)/2) }
func TestTreeFourLanes(t *testing.T) {
	compareSeeds(t, trees(t, 4), *firstSeed+int64(*seeds+1)/2, (*seeds+1)/2)
}
func TestSoakTree(t *testing.T)   { soakAll(t, trees(t, 4)) }
func TestOpListTree(t *testing.T) { opListAll(t, trees(t, 2)) }

// Frames alone, without a translator: aliases, forks at any offset, anchors, faults.
func TestFrameStreamsTree(t *testing.T) {
	s := trees(t, 2)
	contract.Differential(t, func(*testing.T) indexer.Index { return s.Open() }, 3000, *frameSeeds, 300)
}

func TestKnownFaultsTree(t *testing.T) {
	knownFaultsAll(t, trees(t, 1))
}
