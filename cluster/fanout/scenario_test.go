package fanout

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// readers asks all nodes until stop is called.
func (w *world) readers() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i, n := range w.all() {
		all.Go(func() { n.reader(ctx, uint64(i)) })
	}
	return func() {
		cancel()
		all.Wait()
	}
}

// life returns the present life of an instance.
func (w *world) life(instance string) copywire.SlotLife {
	wk, _ := w.view().Catalog.Worker(instance)
	return copywire.SlotLife{Group: indexer.GroupID(wk.Group.ID), Slot: indexer.Slot(wk.Ranks[0].Slot), Life: wk.Ranks[0].Life}
}

// tenureOf returns under which tenure it is read.
func (w *world) tenureOf(instance string) uint64 {
	v := w.view()
	for _, src := range v.Catalog.Sources() {
		if src.Instance == instance {
			return v.Assignments[src.ID].Tenure
		}
	}
	return 0
}

// spoil has an index refuse a frame of a copy, which closes it.
func (n *node) spoil(instance string, p indexer.PartitionID) {
	l := n.w.life(instance)
	var b indexer.FrameBuilder
	b.Reset(indexer.Header{Group: l.Group, Partition: p, Slot: l.Slot, Life: l.Life, Tenure: n.w.tenureOf(instance)})
	b.Drop(indexer.Device, indexer.MakeRange(1<<20, 0, 1))
	n.w.injected++
	w := n.index.NewWriter()
	_ = w.Write(b.Frame())
	w.Close()
}

// A copy that had to be closed is filled again, at a peer and here.
func TestClosedCopyIsFilled(t *testing.T) {
	for _, where := range []string{"a", "b"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := threeNodes(t, mutant{}, nil)
				time.Sleep(time.Second)
				stop := w.readers()
				for i := range 8 {
					w.node(where).spoil(fmt.Sprint("i", i%4), indexer.PartitionID(i%int(w.partitions)))
					time.Sleep(300 * time.Millisecond)
				}
				stop()
				if st := w.node("a").fan.Stats(); st.Refills < 8 || st.Peers[where].Fills < 8 || st.Renewals > 0 {
					t.Errorf("8 copies were closed: %+v", st)
				}
				w.endLenient(10 * time.Second)
			})
		})
	}
}

// A partition whose only copy is lost is empty for good: the slot begins a new life.
func TestOnlyCopyLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, mutant{}, nil)
		for _, name := range []string{"a", "b"} {
			w.start(name)
		}
		w.begin(state.Move{Partition: 0, To: "b"}, state.Move{Partition: 1, To: "a"})
		w.register("i0", "a")
		w.register("i1", "a")
		w.node("a").startFeed(1, 2*time.Millisecond)
		time.Sleep(time.Second)
		w.node("b").stop()
		time.Sleep(500 * time.Millisecond)
		if w.mu.renewals > 0 {
			t.Error("renewed before anybody could take the new life")
		}
		stop := w.readers()
		w.start("b")
		w.begin(state.Move{Partition: 0, To: "b"})
		time.Sleep(3 * time.Second)
		stop()
		if w.mu.renewals == 0 || !w.view().Ready(0, "b") {
			t.Errorf("%d renewals, b ready: %v", w.mu.renewals, w.view().Ready(0, "b"))
		}
		w.end(20 * time.Second)
	})
}

// Frames that come before any receiver can be reached are kept for the first.
func TestPending(t *testing.T) {
	for name, hold := range map[string]int64{"room": 0, "too many": 2 << 10} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 4, mutant{}, func(c *Config) { c.HoldBytes = hold })
				names := []string{"a", "b", "c"}
				for _, n := range names[1:] {
					w.net.CutMesh("a", n)
					w.net.CutMesh(n, "a")
				}
				for _, n := range names {
					w.start(n)
				}
				for p := range w.partitions {
					w.begin(state.Move{Partition: p, To: "b"})
					w.begin(state.Move{Partition: p, To: "c"})
				}
				w.register("i0", "a")
				w.register("i1", "a")
				w.node("a").startFeed(1, 5*time.Millisecond)
				time.Sleep(400 * time.Millisecond)
				stop := w.readers()
				for _, n := range names[1:] {
					w.net.HealMesh("a", n)
					w.net.HealMesh(n, "a")
				}
				time.Sleep(3 * time.Second)
				stop()
				st := w.node("a").fan.Stats()
				if renewed := w.mu.renewals > 0; renewed != (hold > 0) || st.HeldBytes != 0 {
					t.Errorf("%d renewals: %+v", w.mu.renewals, st)
				}
				w.end(10 * time.Second)
			})
		})
	}
}

// A node that stands still costs its own copies and nothing else: frames go on, and are
// acknowledged as soon as it certainly does not answer any more.
func TestSlowNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeNodes(t, mutant{}, nil)
		time.Sleep(time.Second)
		stop := w.readers()
		w.net.PauseMesh("b", true)
		w.net.CutMesh("b", "a")
		time.Sleep(1500 * time.Millisecond) // Timeout, Margin, ticks
		feed := w.node("a").feed()
		written := feed.w.Written()
		time.Sleep(50 * time.Millisecond)
		if applied := feed.w.Applied(); applied < written {
			t.Errorf("%d frames written, %d acknowledged without the node that stands still", written, applied)
		}
		if feed.w.Written() == written {
			t.Error("frames do not go on")
		}
		time.Sleep(6 * time.Second)
		w.net.PauseMesh("b", false)
		w.net.HealMesh("b", "a")
		time.Sleep(2 * time.Second)
		stop()
		if st := w.node("a").fan.Stats(); st.Peers["b"].Fills == 0 || st.Renewals > 0 {
			t.Errorf("b was not filled again: %+v", st)
		}
		w.end(10 * time.Second)
	})
}

// slowTarget begins a change whose target hears of everything late.
func slowTarget(t *testing.T, broken mutant) *world {
	w := threeNodes(t, broken, nil)
	w.strict = true
	w.node("a").feed().slow(30 * time.Millisecond)
	time.Sleep(time.Second)
	w.net.SetMeshFault("a", "c", func([]byte) []time.Duration { return []time.Duration{300 * time.Millisecond} })
	for p := range w.partitions {
		w.begin(state.Move{Partition: p, To: "c", Drop: "b"})
	}
	time.Sleep(6 * time.Second)
	w.net.SetMeshFault("a", "c", nil)
	return w
}

// A change is reported when the targets can be read, not before.
func TestReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := slowTarget(t, mutant{})
		if jobs := w.view().Jobs; len(jobs) > 0 {
			t.Errorf("not committed: %+v", jobs)
		}
		w.end(10 * time.Second)
	})
	t.Run("mutant", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := slowTarget(t, mutant{early: true})
			if len(w.failed()) == 0 {
				t.Error("a report before the acknowledgement was not found")
			}
			w.stopAll()
			time.Sleep(time.Minute)
		})
	})
}

// lateOwner moves everything away from an owner that hears of it late, and reads there.
func lateOwner(t *testing.T, linger time.Duration) *world {
	w := threeNodes(t, mutant{}, func(c *Config) { c.Linger = linger })
	time.Sleep(time.Second)
	w.mu.Lock()
	w.mu.lag = func(name string) time.Duration {
		if name == "b" {
			return 1500 * time.Millisecond
		}
		return 0
	}
	w.mu.Unlock()
	stop := w.readers()
	var moves []state.Move
	for p := range w.partitions {
		moves = append(moves, state.Move{Partition: p, To: "c", Drop: "b"})
	}
	w.begin(moves...)
	time.Sleep(6 * time.Second)
	stop()
	return w
}

// An owner that was replaced gets frames, and is waited for, as long as it may be asked:
// a layout change leaves no moment without an answer. After that it holds nothing.
func TestLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lateOwner(t, 3500*time.Millisecond)
		if r := w.mu.read; r.unreadable > 0 || r.complete < 1000 {
			t.Errorf("reads: %+v", r)
		}
		time.Sleep(3 * time.Second)
		if held := w.node("b").index.Stats().Held; held != ([indexer.NumTiers]uint64{}) {
			t.Errorf("b is no owner and holds %v", held)
		}
		w.end(10 * time.Second)
	})
	t.Run("mutant", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := lateOwner(t, time.Nanosecond)
			if w.mu.read.unreadable == 0 {
				t.Error("that the old owner is closed too early was not found")
			}
			w.stopAll()
			time.Sleep(time.Minute)
		})
	})
}

// This node's own copies are freed, filled and freed again like those of peers.
func TestOwnCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeNodes(t, mutant{}, nil)
		time.Sleep(500 * time.Millisecond)
		stop := w.readers()
		for range 2 {
			for p := range w.partitions {
				w.begin(state.Move{Partition: p, To: "c", Drop: "a"})
			}
			time.Sleep(4 * time.Second)
			if held := w.node("a").index.Stats().Held; held != ([indexer.NumTiers]uint64{}) {
				t.Errorf("a is no owner and holds %v", held)
			}
			for p := range w.partitions {
				w.begin(state.Move{Partition: p, To: "a", Drop: "c"})
			}
			time.Sleep(4 * time.Second)
			if held := w.node("c").index.Stats().Held; held != ([indexer.NumTiers]uint64{}) {
				t.Errorf("c is no owner and holds %v", held)
			}
		}
		stop()
		if st := w.node("a").fan.Stats(); st.Peers["a"].Fills < 8 || st.Renewals > 0 {
			t.Errorf("own copies: %+v", st)
		}
		w.end(10 * time.Second)
	})
}

// Fills keep to their rate and say how far they are.
func TestThrottleAndProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 20_000
		w := threeNodes(t, mutant{}, func(c *Config) { c.Throttle = rate })
		time.Sleep(2 * time.Second)
		fan := w.node("a").fan
		w.node("a").feed().setQuiet(true)
		begin := time.Now()
		var moves []state.Move
		for p := range w.partitions {
			moves = append(moves, state.Move{Partition: p, To: "c", Drop: "b"})
		}
		w.begin(moves...)
		last, partly := Progress{}, false
		for len(w.view().Jobs) > 0 && time.Since(begin) < time.Minute {
			time.Sleep(100 * time.Millisecond)
			for _, p := range fan.Progress() {
				if p.Open < last.Open || p.Bytes < last.Bytes || p.Copies != 16 {
					t.Errorf("progress went from %+v to %+v", last, p)
				}
				partly = partly || p.Open > 0 && p.Open < p.Copies
				last = p
			}
		}
		took := time.Since(begin).Seconds()
		bytes := fan.Stats().Peers["c"].FillBytes
		if got := float64(bytes) / took; got > 1.5*rate || !partly {
			t.Errorf("%d bytes in %.1f s, %.0f a second; seen in the middle: %v; last %+v", bytes, took, got, partly, last)
		}
		w.end(20 * time.Second)
	})
}

// A frame that is too long for a link is sent in pieces, as a fill.
func TestLongFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeNodes(t, mutant{}, nil)
		time.Sleep(200 * time.Millisecond)
		feed := w.node("a").feed()
		feed.setQuiet(true)
		time.Sleep(100 * time.Millisecond)
		l := w.life("i0")
		var b indexer.FrameBuilder
		b.Reset(indexer.Header{Group: l.Group, Partition: 2, Slot: l.Slot, Life: l.Life, Tenure: w.tenureOf("i0"), Sequence: 1 << 40})
		locals, engines := b.Store(indexer.Device, 1<<16, 0, indexer.Parent{}, 20_000)
		for i := range locals {
			locals[i], engines[i] = uint64(i), uint64(i)
		}
		feed.stop()
		w.node("a").fed.Store(nil)
		before := w.node("a").fan.Stats().Peers["b"]
		_ = feed.truth.Write(b.Frame())
		if err := feed.w.Write(b.Frame()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		st := w.node("a").fan.Stats()
		if st.Peers["b"].SendErrors != 1 || st.Peers["b"].Fills != before.Fills+1 || st.Peers["b"].Sessions != 1 {
			t.Errorf("%+v", st)
		}
		w.end(10 * time.Second)
	})
}

// newOwner moves copies to a node to which the way is long, and which knows that it owns
// them before their ingest node does.
func newOwner(t *testing.T, broken mutant) *world {
	w := threeNodes(t, broken, nil)
	w.node("a").feed().slow(20 * time.Millisecond)
	time.Sleep(time.Second)
	w.mu.Lock()
	w.mu.lag = func(name string) time.Duration {
		if name == "a" {
			return 400 * time.Millisecond
		}
		return 0
	}
	w.mu.Unlock()
	w.net.SetMeshFault("a", "c", func([]byte) []time.Duration { return []time.Duration{150 * time.Millisecond} })
	stop := w.readers()
	for p := range w.partitions {
		w.begin(state.Move{Partition: p, To: "c", Drop: "b"})
		time.Sleep(2 * time.Second)
	}
	stop()
	w.net.SetMeshFault("a", "c", nil)
	return w
}

// Nothing is acknowledged without the target of a change: it may be read as soon as the
// log says so, whatever the ingest node knows.
func TestTargetsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newOwner(t, mutant{})
		if jobs := w.view().Jobs; len(jobs) > 0 {
			t.Errorf("not committed: %+v", jobs)
		}
		w.end(10 * time.Second)
	})
	t.Run("mutant", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w := newOwner(t, mutant{uncounted: true})
			if len(w.failed()) == 0 {
				t.Error("that nobody waits for the target was not found")
			}
			w.stopAll()
			time.Sleep(time.Minute)
		})
	})
}

// A fill that outlives the change it was for opens nothing: frames are no longer sent
// there when it ends.
func TestFillOutlivesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeNodes(t, mutant{}, func(c *Config) {
			c.Throttle = 3_000
			c.Linger = time.Second
		})
		w.node("a").feed().slow(20 * time.Millisecond)
		time.Sleep(3 * time.Second)
		var moves []state.Move
		for p := range w.partitions {
			moves = append(moves, state.Move{Partition: p, To: "c", Drop: "b"})
		}
		r := w.begin(moves...)
		time.Sleep(time.Second)
		w.must(state.Command{Abort: &r.Job})
		filling := w.node("a").fan.Stats().Peers["c"].Fills < 4
		time.Sleep(30 * time.Second)
		if !filling {
			t.Error("all fills were done when the change was aborted")
		}
		if held := w.node("c").index.Stats().Held; held != ([indexer.NumTiers]uint64{}) {
			t.Errorf("c holds %v", held)
		}
		w.begin(moves...)
		w.node("a").feed().setQuiet(true)
		time.Sleep(90 * time.Second)
		w.end(10 * time.Second)
	})
}

// Targets that take nothing do not keep the others from being filled.
func TestStuckTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeNodes(t, mutant{}, nil)
		w.start("d")
		for i := range 12 {
			w.register(fmt.Sprint("j", i), "a")
		}
		time.Sleep(5 * time.Second)
		w.node("a").feed().slow(50 * time.Millisecond)
		w.begin(state.Move{Partition: 0, To: "c", Drop: "b"}, state.Move{Partition: 1, To: "c", Drop: "b"})
		w.net.PauseMesh("c", true) // the session stands until the link gives it up
		r := w.begin(state.Move{Partition: 2, To: "d", Drop: "b"}, state.Move{Partition: 3, To: "d", Drop: "b"})
		begin := time.Now()
		open := func(id uint64) bool {
			for _, j := range w.view().Jobs {
				if j.ID == id {
					return true
				}
			}
			return false
		}
		for open(r.Job) && time.Since(begin) < 20*time.Second {
			time.Sleep(10 * time.Millisecond)
		}
		if d := time.Since(begin); d > 800*time.Millisecond {
			t.Errorf("d waited for %v", d)
		}
		if n := w.node("a").fan.peers.get("c").filling.Load(); n != 3 {
			t.Errorf("%d fills of c are under way", n)
		}
		w.net.PauseMesh("c", false)
		time.Sleep(5 * time.Second)
		w.end(20 * time.Second)
	})
}

// An owner that knows of a takeover of which the reader does not know yet refuses its
// frames, and has a whole copy that is older than what the reader said. Another owner must
// not be filled from it as if it were current.
func TestSourceIsBehind(t *testing.T) {
	for _, broken := range []mutant{{}, {anyLabel: true}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 1, broken, nil)
			for _, name := range []string{"a", "b", "c"} {
				w.start(name)
			}
			w.begin(state.Move{Partition: 0, To: "b"})
			w.begin(state.Move{Partition: 0, To: "c"})
			w.register("i0", "a")
			w.node("a").startFeed(1, 5*time.Millisecond)
			time.Sleep(time.Second)
			stop := w.readers()
			l := w.life("i0")
			w.node("b").owner.Fence(l, w.tenureOf("i0")+1)
			time.Sleep(time.Second) // frames that b refuses
			w.node("c").spoil("i0", 0)
			time.Sleep(2 * time.Second)
			stop()
			wrong := w.failed()
			if found := len(wrong) > 0; found != broken.anyLabel {
				t.Errorf("%+v: wrong %v", broken, wrong)
			}
			if st := w.node("a").fan.Stats(); !broken.anyLabel && (w.mu.renewals == 0 || w.life("i0") == l) {
				t.Errorf("%d renewals: %+v", w.mu.renewals, st)
			}
			w.stopAll()
		})
	}
}
