//go:build !race

package tree_test

import (
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/contract"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

// Not for the race detector: a reader that lost its pin reads memory that is in use
// for something else, notices, and throws away what it read. The detector would be
// right to call that a race.

func extreme(t *testing.T) indexer.Index {
	x, err := tree.Open(tree.Config{Lanes: 3, RingWords: 64, LimboLimit: 1, Reserve: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// TestContractAtTheExtremes has rings that hardly any frame fits into, and readers
// that lose their pins whenever something waits for them.
func TestContractAtTheExtremes(t *testing.T) { contract.Run(t, extreme) }

func TestSoakAtTheExtremes(t *testing.T) { contract.Race(t, extreme, 3*time.Second) }
