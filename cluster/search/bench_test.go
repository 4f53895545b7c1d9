package search

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/owner"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

// open is an owner whose copies are all readable.
type open struct{}

func (open) Mark() uint64 { return 0 }
func (open) Unreadable(dst []indexer.Slot, _, _ uint64, _ indexer.GroupID, _ indexer.PartitionID, _ iter.Seq2[indexer.Slot, uint64]) []indexer.Slot {
	return dst
}

// pair is an owner of everything and a node that owns nothing, with nothing between them:
// what is left is the cost of both ends.
func pair(t testing.TB, workers, blocks int) (owner, other *Searcher, q indexer.Query) {
	st := state.New()
	index := uint64(0)
	apply := func(c state.Command) {
		index++
		r := st.Apply(index, c)
		if err := r.Err(); err != nil {
			t.Fatal(err)
		}
	}
	apply(state.Command{Found: &state.Founding{ClusterID: "test", Partitions: testParts, Replicas: 1}})
	apply(state.Command{Introduce: &state.Member{Name: "a", ServerID: "a", Boot: 1}})
	apply(state.Command{Introduce: &state.Member{Name: "b", ServerID: "b", Boot: 2}})
	for p := range uint32(testParts) {
		apply(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: p, To: "a"}}}})
	}
	x, err := tree.Open(tree.Config{Lanes: 1})
	if err != nil {
		t.Fatal(err)
	}
	q = indexer.Query{Group: 1, Partition: 2}
	for i := range blocks {
		q.Locals = append(q.Locals, uint64(i)*0x9e3779b97f4a7c15+1)
	}
	w := x.NewWriter()
	var f indexer.FrameBuilder
	for i := range workers {
		apply(state.Command{Register: &state.Registration{Registration: catalog.Registration{
			Instance: fmt.Sprint(i), Group: testGroup, BlockSize: 16, Endpoint: fmt.Sprintf("tcp://w%d:1", i),
		}}})
		depth := blocks // one in eight has less
		if i%8 == 0 {
			depth = 1 + i%blocks
		}
		f.Reset(indexer.Header{Group: 1, Partition: 2, Slot: indexer.Slot(i), Life: 1, Tenure: 1, Sequence: 1})
		locals, engines := f.Store(indexer.Device, 0, 0, indexer.Parent{}, depth)
		copy(locals, q.Locals)
		copy(engines, q.Locals)
		if err := w.Write(f.Frame()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	w.Close()
	view := st.View()
	handlers := map[string]func(context.Context, string, []byte) ([]byte, error){}
	node := func(name string, boot uint64) *Search {
		s, err := New(Config{Name: name, Boot: boot, Deadline: time.Minute, Hedge: -1}, Deps{
			View: func() *state.View { return view }, Index: x, Owner: open{},
			Call: func(ctx context.Context, peer, method string, req []byte) ([]byte, error) {
				return handlers[peer](ctx, "b", req)
			},
			Handle:      func(_ string, fn func(context.Context, string, []byte) ([]byte, error)) { handlers[name] = fn },
			Alive:       func(string) bool { return true },
			ReadIndex:   func(context.Context) (uint64, error) { return index, nil },
			WaitApplied: func(context.Context, uint64) error { return nil },
			Peek: func(context.Context, string, indexer.GroupID, indexer.Slot, uint64, []indexer.PartitionID, func(indexer.PartitionID, indexer.Stretch) error) error {
				return nil
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.proveLease(context.Background(), s.lease.now()); err != nil {
			t.Fatal(err)
		}
		s.lease.tserve = time.Hour
		return s
	}
	a, b := node("a", 1), node("b", 2)
	owner, other = a.NewSearcher(), b.NewSearcher()
	t.Cleanup(func() {
		owner.Close()
		other.Close()
		a.Close()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return owner, other, q
}

// match is one request with one question.
func match(t testing.TB, x *Searcher, q indexer.Query, out *indexer.Scores, want int) {
	x.Begin(context.Background())
	x.Match(q, out)
	if c, err := x.Completeness(); c.Partial || c.Stale || err != nil || len(out.Rows) != want {
		t.Fatalf("%d rows, %+v, %v", len(out.Rows), c, err)
	}
}

// An owner's own reads allocate nothing.
func TestLocalAllocatesNothing(t *testing.T) {
	owner, other, q := pair(t, 100, 50)
	var out indexer.Scores
	match(t, owner, q, &out, 100)
	if n := testing.AllocsPerRun(100, func() { match(t, owner, q, &out, 100) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	match(t, other, q, &out, 100)
	if n := testing.AllocsPerRun(100, func() { match(t, other, q, &out, 100) }); n > 25 {
		t.Errorf("%v allocations of a call", n)
	}
}

type noLinks struct{}

func (noLinks) Ack(link.Session, uint64)  {}
func (noLinks) Current(link.Session) bool { return true }

// withCopies returns a searcher of the same node with a real table of copies.
func (x *Searcher) withCopies(t testing.TB, p indexer.PartitionID, workers int) *Searcher {
	o, err := owner.New(owner.Config{
		Name: "a", Index: x.s.deps.Index, Links: noLinks{}, Broken: func(context.Context, string, indexer.Header) error { return nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	g, _ := x.s.deps.View().Catalog.GroupByID(1)
	for slot := range uint32(workers) {
		h, _ := g.Holder(slot)
		o.OpenLocal(copywire.SlotLife{Group: 1, Slot: indexer.Slot(slot), Life: h.Life}, 1, []indexer.PartitionID{p})
	}
	deps := x.s.deps
	deps.Owner = o
	s, err := New(x.s.cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	s.lease = x.s.lease
	out := s.NewSearcher()
	t.Cleanup(func() {
		out.Close()
		s.Close()
	})
	return out
}

func BenchmarkMatch(b *testing.B) {
	for _, workers := range []int{16, 2000} {
		owner, other, q := pair(b, workers, 500)
		withCopies := owner.withCopies(b, q.Partition, workers)
		var out indexer.Scores
		for _, c := range []struct {
			name string
			ask  func()
		}{
			{"index", func() { owner.reader.Match(q, &out) }},
			{"owner", func() { match(b, owner, q, &out, workers) }},
			{"owner with copies", func() { match(b, withCopies, q, &out, workers) }},
			{"call", func() { match(b, other, q, &out, workers) }},
		} {
			b.Run(fmt.Sprintf("workers=%d/%s", workers, c.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					c.ask()
				}
			})
		}
	}
}
