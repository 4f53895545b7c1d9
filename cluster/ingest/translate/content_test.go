package translate

import (
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// A part of an event's content has the local hashes that the whole has there:
// plain, with overlapping pages, with images, or given as hashes.
func TestPartsOfContent(t *testing.T) {
	tokens := make([]uint32, 41)
	for i := range tokens {
		tokens[i] = uint32(i * i)
	}
	for name, c := range map[string]blockhash.Content{
		"plain":     {Tokens: tokens[:40], BlockSize: 4, Window: 4},
		"pairs":     {Tokens: tokens, BlockSize: 4, Window: 5},
		"images":    {Tokens: tokens[:40], BlockSize: 4, Window: 4, Multimodal: []blockhash.Item{{Block: 2, Hash: 9}, {Block: 2, Hash: 3}, {Block: 7, Hash: 1}}},
		"no images": {Tokens: tokens[:40], BlockSize: 4, Window: 4, Multimodal: []blockhash.Item{}},
		"locals":    {Locals: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}},
	} {
		whole := c.AppendLocals(nil, 77)
		for i := range 10 {
			for j := i + 1; j <= 10; j++ {
				if got := appendLocals(nil, c, i, j, 77); !slices.Equal(got, whole[i:j]) {
					t.Fatalf("%s: blocks %d to %d are %x, want %x", name, i, j, got, whole[i:j])
				}
				clone := cloneContent(subContent(c, i, j))
				if got := clone.AppendLocals(nil, 77); !slices.Equal(got, whole[i:j]) {
					t.Fatalf("%s: clone of %d to %d is %x, want %x", name, i, j, got, whole[i:j])
				}
			}
			if got := firstLocal(c, i, 77); got != whole[i] {
				t.Fatalf("%s: block %d is %x, want %x", name, i, got, whole[i])
			}
		}
	}
}

// Blocks that arrive before their parent, in any order and in several tiers, are
// stored as one event from the root would have stored them, under the namespace of
// the parent.
func TestOrphansTakeTheNamespaceOfTheirParent(t *testing.T) {
	o := newOwner()
	tr := New(Config{Lora: "base", Partition: one})
	defer tr.Close()
	whole := chain(0, 100, 12)
	whole.Salt = "s"
	tr.Begin(1)
	for _, part := range [][2]int{{9, 12}, {4, 6}, {6, 9}, {2, 4}} {
		s := chain(uint64(100+part[0]-1), uint64(100+part[0]), part[1]-part[0])
		if out := tr.Store(s); out.Orphaned != part[1]-part[0] {
			t.Fatalf("%+v", out)
		}
		s.Tier = indexer.Host
		tr.Store(s)
	}
	root := chain(0, 100, 2)
	root.Salt = "s"
	if out := tr.Store(root); out.Stored != 2 || out.Attached != 10 || out.Claimed != 10 {
		t.Fatalf("%+v", out)
	}
	if err := tr.End(o.apply); err != nil {
		t.Fatal(err)
	}
	path := ""
	for i, l := range whole.Content.AppendLocals(nil, blockhash.NamespaceSeed("base", "s")) {
		path = extend(path, l)
		want := indexer.Device.Mask()
		if i >= 2 {
			want |= indexer.Host.Mask()
		}
		if got := o.covered()[path]; got != want {
			t.Errorf("block %d: tiers %b, want %b", i, got, want)
		}
	}
	if n := tr.Stats().Runs; n != 1 {
		t.Errorf("%d runs, want one", n)
	}
	// Another namespace below the same parent contradicts.
	tr.Begin(2)
	s := chain(111, 112, 1)
	s.Lora = "other"
	if out := tr.Store(s); out.Err == nil || tr.Lookup(112) != HashTainted {
		t.Errorf("%+v", out)
	}
	if err := tr.End(o.apply); err != nil {
		t.Fatal(err)
	}
}
