package differential

import (
	"testing"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

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

func TestTreeOneLane(t *testing.T)   { compare(t, trees(t, 1)) }
func TestTreeFourLanes(t *testing.T) { compare(t, trees(t, 4)) }
func TestSoakTree(t *testing.T)      { soakAll(t, trees(t, 4)) }
func TestOpListTree(t *testing.T)    { opListAll(t, trees(t, 2)) }
func TestKnownFaultsTree(t *testing.T) {
	knownFaultsAll(t, trees(t, 1))
}
