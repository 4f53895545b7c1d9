package copywire_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// packed is the first byte of a packed frame.
const packed = 8

// batch is a frame like those of engines: n blocks, some drops, perhaps a mark with a note.
func batch(r *rand.Rand, n int) indexer.Frame {
	var b indexer.FrameBuilder
	b.Reset(indexer.Header{
		Group: 1, Partition: indexer.PartitionID(r.IntN(256)), Slot: indexer.Slot(r.IntN(2000)),
		Life: uint64(r.IntN(5000)), Tenure: uint64(r.IntN(300)), Sequence: r.Uint64N(1 << 20),
	})
	parent := indexer.Parent{Kind: indexer.ParentName, Run: indexer.Run(r.IntN(40_000)), Pos: uint32(r.IntN(300))}
	start := uint32(0)
	if r.IntN(2) == 0 {
		parent = indexer.Parent{Kind: indexer.ParentRoot, Anchor: r.Uint64()}
	}
	if r.IntN(3) == 0 {
		start = uint32(r.IntN(1000))
	}
	l, e := b.Store(indexer.Tier(r.IntN(3)), indexer.Run(r.IntN(40_000)), start, parent, n)
	for i := range l {
		l[i], e[i] = r.Uint64(), r.Uint64()
	}
	if start == 0 {
		mark := indexer.Mark{Set: r.IntN(2) == 0, Tag: uint16(r.Uint32())}
		if r.IntN(2) == 0 {
			mark.Note = [2]uint64{r.Uint64(), uint64(r.IntN(100))}
		}
		b.Mark(mark)
	}
	for range r.IntN(4) {
		b.Drop(indexer.Device, indexer.MakeRange(indexer.Run(r.IntN(40_000)), r.IntN(300), 1+r.IntN(20)))
	}
	if r.IntN(5) == 0 {
		b.Clear(indexer.AllTiers)
	}
	return b.Frame()
}

// TestPacked: every frame comes back as it was, without an allocation, and what stands
// beside its hashes is small.
func TestPacked(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var d copywire.Decoder
	for range 5000 {
		f := batch(r, 1+r.IntN(60))
		b := copywire.AppendPacked([]byte("before"), f)
		if string(b[:6]) != "before" || b[6] != packed {
			t.Fatalf("frame %x is not packed behind what was there: %x", []uint64(f), b[:10])
		}
		m, err := d.Decode(b[6:])
		if err != nil {
			t.Fatalf("frame %x: %v", []uint64(f), err)
		}
		if !slices.Equal(m.Frame, f) || m.Kind != copywire.KindFrame || m.Sequence != f.Header().Sequence {
			t.Fatalf("frame %x came back as %x", []uint64(f), []uint64(m.Frame))
		}
		if len(b)-6 > 8*len(f)+copywire.FrameOverhead {
			t.Errorf("%d words take %d bytes", len(f), len(b)-6)
		}
	}
	var b indexer.FrameBuilder
	b.Reset(indexer.Header{Group: 1, Partition: 200, Slot: 31, Life: 900, Tenure: 40, Sequence: 70_000})
	l, e := b.Store(indexer.Device, 3000, 0, indexer.Parent{Kind: indexer.ParentName, Run: 2900, Pos: 17}, 30)
	for i := range l {
		l[i], e[i] = r.Uint64(), r.Uint64()
	}
	out := copywire.AppendPacked(nil, b.Frame())
	if beside := len(out) - 30*16; beside > 36 {
		t.Errorf("beside its hashes a frame with one store has %d bytes", beside)
	}
	if n := testing.AllocsPerRun(100, func() {
		if _, err := d.Decode(out); err != nil {
			t.Error(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations for a packed frame", n)
	}
}

// TestPackedSenseless: words that are no frame go as they are, or come back as they were.
func TestPackedSenseless(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		f := slices.Clone(batch(r, 1+r.IntN(5)))
		for range 1 + r.IntN(3) {
			f[r.IntN(len(f))] = r.Uint64() >> r.IntN(64)
		}
		f[2] = f[2]&0xffffffff | indexer.FrameVersion<<32
		if r.IntN(4) > 0 {
			f[0] = f[0]&^0xffffffff | uint64(len(f))
		}
		b := copywire.AppendPacked(nil, f)
		m, err := copywire.Decode(at(b, 0))
		switch {
		case err == nil && !slices.Equal(m.Frame, f):
			t.Fatalf("%x came back as %x", []uint64(f), []uint64(m.Frame))
		case err != nil && (!errors.Is(err, copywire.ErrMessage) || int(uint32(f[0])) == len(f)):
			t.Fatalf("%x: %v", []uint64(f), err)
		}
		for n := range b {
			if b[0] != packed {
				break
			}
			if m, err := copywire.Decode(at(b[:n], 0)); !errors.Is(err, copywire.ErrMessage) {
				t.Fatalf("%d bytes of %x are taken for %+v, %v", n, b, m, err)
			}
		}
	}
}
