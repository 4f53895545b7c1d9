package reference_test

import (
	"flag"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/contract"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

func open(*testing.T) indexer.Index { return reference.New(reference.Config{}) }

func TestContract(t *testing.T) { contract.Run(t, open) }

var seeds = flag.Int("reference.seeds", 4, "seeds of random frame streams in each mix")

func TestDifferential(t *testing.T) { contract.Differential(t, open, 1000, *seeds, 400) }
