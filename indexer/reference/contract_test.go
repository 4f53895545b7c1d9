package reference_test

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/contract"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

func open(*testing.T) indexer.Index { return reference.New(reference.Config{}) }

func TestContract(t *testing.T) { contract.Run(t, open) }
