package tree_test

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/contract"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

func open(t *testing.T) indexer.Index {
	x, err := tree.Open(tree.Config{Lanes: 2})
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func TestContract(t *testing.T) { contract.Run(t, open) }
