package router

import (
	"fmt"
	"testing"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// Names follow the view, and a query that still has an older view gets that one's.
func TestNamesFollowTheView(t *testing.T) {
	f := newFake()
	reg := func(instance string, rank uint32) *catalog.View {
		err := f.Register(t.Context(), catalog.Registration{
			Instance: instance, Rank: rank, Group: catalog.GroupKey{Model: "m"}, BlockSize: 4, Endpoint: "tcp://h:1",
		})
		if err != nil {
			t.Fatal(err)
		}
		return f.View()
	}
	var n nameCache
	names := func(v *catalog.View) (out []string) {
		for _, r := range n.of(v, v.Groups()[0]).ranks {
			out = append(out, fmt.Sprintf("%s/%d", r.instance, r.rank))
		}
		return out
	}
	check := func(what string, v *catalog.View, want string) {
		t.Helper()
		if got := fmt.Sprint(names(v)); got != want {
			t.Errorf("%s: %s, want %s", what, got, want)
		}
	}
	first := reg("b", 3)
	check("first", first, "[b/3]")
	second := reg("a", 0)
	third := reg("b", 1)
	check("third", third, "[a/0 b/1 b/3]")
	check("old view", second, "[a/0 b/3]")
	check("third again", third, "[a/0 b/1 b/3]")
	if a, b := n.of(third, third.Groups()[0]), n.of(third, third.Groups()[0]); a != b {
		t.Error("names of one view were built twice")
	}
	// Slots and places agree.
	g := n.of(third, third.Groups()[0])
	for slot, p := range g.places {
		if h, ok := g.group.Holder(uint32(slot)); !ok || p < 0 || g.ranks[p].instance != h.Instance || g.ranks[p].rank != h.Rank {
			t.Errorf("slot %d: %+v, place %d", slot, h, p)
		}
	}
}

// Pruning with an old view keeps what newer lives have counted.
func TestPruneKeepsNewerLives(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	old := f.fake.View()
	f.register("2", 0)
	f.post("/query_by_hash", `{"block_hashes":[1],"model_name":"m"}`)
	count := func() (n int) {
		f.router.names.lives.Range(func(_, _ any) bool { n++; return true })
		return n
	}
	f.router.names.prune(old)
	if n := count(); n != 2 {
		t.Errorf("%d lives after pruning with an old view, want 2", n)
	}
	if err := f.fake.Unregister(t.Context(), catalog.Unregistration{Instance: "2", Model: "m"}); err != nil {
		t.Fatal(err)
	}
	f.router.names.prune(f.fake.View())
	if n := count(); n != 1 {
		t.Errorf("%d lives after one was unregistered, want 1", n)
	}
}
