package translate

import (
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// A removal event that empties whole chunks of the map and then names some of its
// hashes again, and hashes that were never there: all probes of the event were made
// while the chunks still existed.
func TestRemovalRepeatsHashesOfFreedChunks(t *testing.T) {
	for n := 1; n <= 2048; n = n*2 + 1 {
		tr := New(Config{BlockSize: 16, Partition: func(uint64) indexer.PartitionID { return 0 }})
		engines := make([]uint64, n)
		for i := range engines {
			engines[i] = uint64(i+1) * 0x9e3779b97f4a7c15
		}
		tr.Begin(1)
		if out := tr.Store(Store{Engines: engines, Content: blockhash.Content{Locals: engines}}); out.Stored != n {
			t.Fatalf("%d blocks: %+v", n, out)
		}
		again := slices.Concat(engines, engines[:n/2+1], []uint64{1, 2, 3})
		for i := range 64 { // hashes that share tags with removed ones, sooner or later
			again = append(again, uint64(n+i)*0x2545f4914f6cdd1d)
		}
		out := tr.Remove(indexer.Device, again)
		if out.Dropped != n || out.Unknown != len(again)-n {
			t.Errorf("%d blocks: dropped %d, unknown %d of %d", n, out.Dropped, out.Unknown, len(again))
		}
		if err := tr.End(func(f indexer.Frame) error { return f.Validate() }); err != nil {
			t.Error(err)
		}
		if s := tr.Stats(); s.Mapped != 0 || s.Held[0] != 0 {
			t.Errorf("%d blocks: %d still mapped", n, s.Mapped)
		}
		tr.Close()
	}
}
