package snapshot

import (
	"context"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// BenchmarkSnapshot writes and loads 2^20 held blocks in runs of one to six blocks, which
// is what decoding engines make; longer runs cost less.
func BenchmarkSnapshot(b *testing.B) {
	slots := testSlots(7, 64, 5461) // three partitions with content each
	held := 0
	for range b.N {
		dir := b.TempDir()
		begin := time.Now()
		res, err := Save(context.Background(), dir, header, each(slots))
		if err != nil {
			b.Fatal(err)
		}
		saved := time.Since(begin)
		x := openTree(b)
		begin = time.Now()
		l, err := Load(context.Background(), dir, header, x, quiet)
		if err != nil || len(l.Slots) != len(slots) {
			b.Fatal(err)
		}
		loaded := time.Since(begin)
		if _, err := l.Keep(context.Background(), nobody, nil); err != nil {
			b.Fatal(err)
		}
		held = int(l.Result.Blocks)
		million := 1e6 / float64(held)
		b.ReportMetric(float64(res.Bytes)/float64(held), "bytes/block")
		b.ReportMetric(saved.Seconds()*million, "s-written/M")
		b.ReportMetric(loaded.Seconds()*million, "s-loaded/M")
	}
}

func nobody(copywire.SlotLife) (bool, func(indexer.PartitionID) bool) { return false, nil }
