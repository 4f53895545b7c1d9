package fanout

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

// The same with the real index, whose lanes apply frames in their own time, on a real
// clock: copies go round, here and elsewhere, while frames come and answers are judged.
func TestTree(t *testing.T) {
	w := newWorld(t, 4, mutant{}, nil)
	w.open = func(h indexer.FaultHandler) indexer.Index {
		x, err := tree.Open(tree.Config{Lanes: 2, OnFault: h})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	names := []string{"a", "b", "c"}
	for _, name := range names {
		w.start(name)
	}
	for p := range w.partitions {
		w.begin(state.Move{Partition: p, To: names[p%3]})
		w.begin(state.Move{Partition: p, To: names[(p+1)%3]})
	}
	for _, instance := range []string{"i0", "i1", "i2", "i3"} {
		w.register(instance, "a")
	}
	w.node("a").startFeed(1, time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	for i, n := range w.all() {
		readers.Go(func() { n.reader(ctx, uint64(i)) })
	}
	time.Sleep(500 * time.Millisecond)
	moved := 0
	for round := range uint32(6) {
		for p := range w.partitions {
			// Who does not own it gets it from who comes first.
			owners := w.view().Owners[p]
			for _, name := range names {
				if len(owners) == 2 && owners[0].Name != name && owners[1].Name != name {
					w.begin(state.Move{Partition: p, To: name, Drop: owners[(round+p)%2].Name})
					moved++
				}
			}
		}
		for deadline := time.Now().Add(20 * time.Second); len(w.view().Jobs) > 0 && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(200 * time.Millisecond)
	}
	if st := w.node("a").fan.Stats(); st.Peers["a"].Fills == 0 || st.Peers["b"].Fills == 0 || st.Peers["c"].Fills == 0 {
		t.Errorf("not every node was filled: %+v", st)
	}
	cancel()
	readers.Wait()
	if moved < 20 {
		t.Errorf("%d moves", moved)
	}
	w.node("a").feed().setQuiet(true)
	if err := w.settled(20 * time.Second); err != nil {
		t.Error(err)
	}
	if copies, errs := w.compare(); len(errs) > 0 || copies != 32 {
		t.Errorf("%d copies compared, %d differences; the first: %s", copies, len(errs), first(errs))
	}
	for _, e := range append(w.odd(), w.failed()...) {
		t.Error(e)
	}
	t.Logf("%d moves, reads %+v, %+v", moved, w.mu.read, w.node("a").fan.Stats())
	w.stopAll()
}
