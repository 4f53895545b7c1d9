package snapshot

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

// FuzzLoad puts any bytes into a file as the dump of a slot, with checksums that are
// right: the file is refused, and nothing of it is left, or each of its copies is the one
// that the bytes say, or was refused by the index.
func FuzzLoad(f *testing.F) {
	for _, s := range testSlots(2, 2, 6) {
		f.Add(s.Dump, uint32(s.Copies))
	}
	f.Fuzz(loadAny)
}

// TestLoadChangedDumps does the same with some changes of good dumps.
func TestLoadChangedDumps(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 400 {
		s := testSlots(rng.Uint64N(9), 1, 6)[0]
		for range 1 + rng.IntN(3) {
			switch i := rng.IntN(len(s.Dump)); rng.IntN(4) {
			case 0:
				s.Dump[i] = byte(rng.Uint64())
			case 1:
				s.Dump = s.Dump[:i&^(word-1)]
			case 2:
				s.Dump = append(s.Dump, s.Dump[i&^(word-1):]...)
			default:
				s.Dump[i] ^= 1 << rng.IntN(8)
			}
			if len(s.Dump) == 0 {
				break
			}
		}
		loadAny(t, s.Dump, uint32(s.Copies))
	}
}

func loadAny(t *testing.T, dump []byte, copies uint32) {
	if len(dump)%word != 0 {
		return
	}
	refused := map[indexer.PartitionID]bool{}
	x := reference.New(reference.Config{OnFault: func(h indexer.Header, _ error) { refused[h.Partition] = true }})
	s := Slot{SlotLife: copywire.SlotLife{Group: 1, Slot: 2, Life: 3}, Copies: int(copies), Dump: dump}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, FileName), file(t, header, []Slot{s}), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Load(context.Background(), dir, header, x, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for p := range indexer.PartitionID(header.Partitions) {
		got := dumpOf(t, x, s.SlotLife, p)
		switch {
		case len(l.Slots) == 0 && got != "":
			t.Fatalf("refused, and partition %d has %s", p, got)
		case len(l.Slots) > 0 && !refused[p] && got != wanted(t, s, p):
			t.Fatalf("partition %d has\n%s, want\n%s", p, got, wanted(t, s, p))
		}
	}
	l.Close()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}
