package reference

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// feed builds one frame of slot 1 and writes it.
func feed(t *testing.T, w indexer.Writer, build func(b *indexer.FrameBuilder)) {
	t.Helper()
	var b indexer.FrameBuilder
	b.Reset(indexer.Header{Group: 3, Partition: 5, Slot: 1})
	build(&b)
	if err := w.Write(b.Frame()); err != nil {
		t.Fatal(err)
	}
}

func store(b *indexer.FrameBuilder, run indexer.Run, start uint32, parent indexer.Parent, locals ...uint64) {
	l, e := b.Store(indexer.Device, run, start, parent, len(locals))
	copy(l, locals)
	copy(e, locals)
}

func below(run indexer.Run, pos uint32) indexer.Parent {
	return indexer.Parent{Kind: indexer.ParentName, Run: run, Pos: pos}
}

// The worked table of the held score: holes end a prefix, a refill brings back all
// that is still held below.
func TestHeldTable(t *testing.T) {
	x := New(Config{})
	w, r := x.NewWriter(), x.NewReader()
	for _, step := range []struct {
		name  string
		build func(b *indexer.FrameBuilder)
		want  uint32
	}{
		{"store 1 2 3 4", func(b *indexer.FrameBuilder) { store(b, 0, 0, indexer.Parent{}, 1, 2, 3, 4) }, 4},
		{"remove 2", func(b *indexer.FrameBuilder) { b.Drop(indexer.Device, indexer.MakeRange(0, 1, 1)) }, 1},
		{"store 2 under 1", func(b *indexer.FrameBuilder) { store(b, 1, 0, below(0, 0), 2) }, 4},
		{"store 5 under 4", func(b *indexer.FrameBuilder) { store(b, 0, 4, indexer.Parent{}, 5) }, 5},
		{"clear", func(b *indexer.FrameBuilder) { b.Clear(indexer.AllTiers) }, 0},
	} {
		feed(t, w, step.build)
		var out indexer.Scores
		r.Match(indexer.Query{Group: 3, Partition: 5, Locals: []uint64{1, 2, 3, 4, 5}}, &out)
		var got uint32
		if len(out.Rows) > 0 {
			got = out.Rows[0].Depth
		}
		if got != step.want || len(out.Rows) > 1 || len(out.Tiers) > 0 {
			t.Errorf("%s: depth %d, want %d (%+v)", step.name, got, step.want, out)
		}
	}
	if s := x.Stats(); s.Stored != 0 || s.Distinct != 0 || s.Held != [4]uint64{} || len(x.mu.trees) != 0 {
		t.Errorf("after the clear something is left: %+v", s)
	}
}

// The eviction log is bounded and forgets the oldest.
func TestEvictionLogBound(t *testing.T) {
	x := New(Config{EvictionLog: 2})
	w, r := x.NewWriter(), x.NewReader()
	feed(t, w, func(b *indexer.FrameBuilder) { store(b, 0, 0, indexer.Parent{}, 1, 2, 3, 4) })
	for pos := 3; pos > 0; pos-- {
		feed(t, w, func(b *indexer.FrameBuilder) { b.Drop(indexer.Device, indexer.MakeRange(0, pos, 1)) })
	}
	states := r.Explain(indexer.Query{Group: 3, Partition: 5, Locals: []uint64{1, 2, 3, 4}}, 1, nil)
	want := []indexer.BlockState{
		{Tiers: 1, Known: true}, {Known: true, Evicted: true}, {Known: true, Evicted: true}, {Known: true},
	}
	for i, s := range states {
		if s != want[i] {
			t.Errorf("block %d: %+v, want %+v", i, s, want[i])
		}
	}
	if n := len(x.mu.evictions.ring); n != 2 {
		t.Errorf("the log has %d entries", n)
	}
}
