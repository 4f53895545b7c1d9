package router

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

// drop ends what the only run of a rank names of a path, from one block to another.
func (c *indexedCluster) drop(t *testing.T, instance string, path []uint64, from, to int) {
	t.Helper()
	g, s := c.rank(instance, 0)
	c.frame.Reset(indexer.Header{Group: indexer.GroupID(g.ID), Slot: indexer.Slot(s), Life: 1, Tenure: 1,
		Partition: indexer.PartitionID(c.layout.Partition(g.ID, path[0], s))})
	c.frame.Drop(indexer.Device, indexer.MakeRange(0, from, to-from))
	if err := c.writer.Write(c.frame.Frame()); err != nil {
		t.Fatal(err)
	}
	if err := c.writer.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A worker that was the only one with a block and removed it is told so, and only it.
func TestExplainEvictedByTheOnlyHolder(t *testing.T) {
	for name, open := range map[string]func() (indexer.Index, error){
		"reference": func() (indexer.Index, error) { return reference.New(reference.Config{}), nil },
		"tree":      func() (indexer.Index, error) { return tree.Open(tree.Config{Lanes: 2}) },
	} {
		t.Run(name, func(t *testing.T) {
			x, err := open()
			if err != nil {
				t.Fatal(err)
			}
			explainEvicted(t, x)
		})
	}
}

func explainEvicted(t *testing.T, x indexer.Index) {
	c := &indexedCluster{fakeCluster: newFake(), index: x, writer: x.NewWriter(), runs: map[indexer.Slot]indexer.Run{}}
	f := &fixture{t: t, fake: c.fakeCluster, router: New(Config{}, c, slog.New(slog.NewTextHandler(io.Discard, nil)))}
	defer func() {
		if err := f.router.Close(); err != nil {
			t.Error(err)
		}
		c.writer.Close()
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, instance := range []string{"1", "2"} {
		f.register(instance, 0)
		f.fake.stream(instance, 0)
	}
	list, _, p := tokens(22)
	ask := func(when, instance, want string) {
		t.Helper()
		a := f.post("/explain", `{"model_name":"m","token_ids":[`+list+`],"instance_id":`+instance+`}`)
		if got := fmt.Sprint(stopsOf(t, a)); got != want {
			t.Errorf("%s, instance %s: %s, want %s", when, instance, got, want)
		}
	}
	ask("before", "1", "[all tiers@0 never_announced]")
	c.store(t, "1", 0, p, indexer.Device)
	c.drop(t, "1", p, 3, 5)
	ask("without its tail", "1", "[all tiers@3 evicted]")
	ask("without its tail", "2", "[all tiers@0 never_announced]")
	c.drop(t, "1", p, 0, 3)
	ask("gone", "1", "[all tiers@0 evicted]")
	ask("gone", "2", "[all tiers@0 never_announced]")
	a := f.get("/explain?format=text&model_name=m&instance_id=1&token_ids=" + list)
	for _, part := range []string{"evicted", "stored the block and removed it again"} {
		if !strings.Contains(a.body, part) {
			t.Errorf("text lacks %q:\n%s", part, a.body)
		}
	}
	for _, part := range []string{"never_announced", "not held by anyone"} {
		if strings.Contains(a.body, part) {
			t.Errorf("text has %q:\n%s", part, a.body)
		}
	}
	c.store(t, "2", 0, p[:4], indexer.Device)
	if err := c.writer.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	ask("held by another", "1", "[all tiers@0 evicted]")
	ask("held by another", "2", "[all tiers@4 never_announced]")
}
