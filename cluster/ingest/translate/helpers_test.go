package translate

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

func one(uint64) indexer.PartitionID { return 0 }

// must ends a batch whose frames must be valid.
func must(t *testing.T, tr *Translator) {
	t.Helper()
	if err := tr.End(indexer.Frame.Validate); err != nil {
		t.Fatal(err)
	}
}
