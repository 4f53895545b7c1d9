package fanout

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// FlushLocal waits for the index, whoever else has acknowledged or not.
func TestFlushLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaper(t, func(c *Config) { c.Index = newLateIndex(nil) })
		p.fan.OnPeer(sessionTo("b", 1), true) // it never acknowledges
		l := p.register("i0")
		w := p.fan.NewWriter().(*writer)
		for seq := range uint64(40) {
			must(t, w.Write(frame(l, indexer.PartitionID(seq%2), seq)))
		}
		mark := w.mark(nil)
		if w.passed(mark) {
			t.Fatal("the index is not late")
		}
		must(t, p.fan.FlushLocal(t.Context(), l.Group, l.Slot))
		if !w.passed(mark) {
			t.Error("not flushed")
		}
		w.Close()
		must(t, p.fan.FlushLocal(t.Context(), l.Group, l.Slot)) // a closed writer is no obstacle
		must(t, p.fan.cfg.Index.Close())
	})
}

// A fill of this node's own copy ends before somebody else writes it.
func TestFlushLocalEndsFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, mutant{}, func(c *Config) { c.Throttle = 2_000 })
		w.open = newLateIndex
		for _, name := range []string{"a", "b"} {
			w.start(name)
		}
		w.begin(state.Move{Partition: 0, To: "b"})
		w.register("i0", "a")
		w.node("a").startFeed(1, 5*time.Millisecond)
		time.Sleep(3 * time.Second)
		w.begin(state.Move{Partition: 0, To: "a"})
		fan, l := w.node("a").fan, w.life("i0")
		filling := func() *fill {
			fan.selfFills.mu.Lock()
			defer fan.selfFills.mu.Unlock()
			return fan.selfFills.all[keyOf(l.Group, l.Slot)]
		}
		for deadline := time.Now().Add(5 * time.Second); filling() == nil && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		before := filling()
		if before == nil {
			t.Fatal("no fill")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Microsecond)
		if err := fan.FlushLocal(short, l.Group, l.Slot); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("flush without time: %v", err)
		}
		cancel()
		begin := time.Now()
		must(t, fan.FlushLocal(t.Context(), l.Group, l.Slot))
		if d := time.Since(begin); d > time.Second {
			t.Errorf("the fill was waited for, %v", d)
		}
		select {
		case <-before.ended:
		default:
			t.Error("the fill goes on")
		}
		if st := fan.Stats(); st.Peers["a"].FailedFills != 1 {
			t.Errorf("%+v", st)
		}
		time.Sleep(30 * time.Second)
		w.end(30 * time.Second)
	})
}
