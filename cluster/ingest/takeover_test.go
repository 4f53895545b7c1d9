package ingest

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// assigned is a log that says which node reads a source, and since when.
type assigned struct {
	w      *world
	tenure uint64
}

func (a *assigned) option(c *Config, _ *Deps) {
	c.Tenure = func(s catalog.Source) uint64 {
		if a.tenure == 0 {
			return s.ID
		}
		return a.tenure
	}
}

// give makes the log give the sources to this node again, or take them away.
func (a *assigned) give(here bool) {
	a.w.mu.Lock()
	defer a.w.mu.Unlock()
	a.w.at++
	a.tenure = a.w.at
	a.w.away = !here
	for _, s := range a.w.catalog.View().Sources() {
		a.w.catalog.TakenOver(a.w.at, s.ID)
	}
	a.w.m.Reconcile(a.w.view())
}

func runAssigned(t *testing.T, opts []option, test func(w *world, a *assigned)) {
	a := &assigned{}
	run(t, append([]option{a.option}, opts...), func(w *world) {
		a.w, a.tenure = w, 0
		test(w, a)
	})
}

// elsewhere stands for another node that read the engine of w1 before: what it stored
// is in the index of this node.
func (w *world) elsewhere(e *mockEngine, path string) {
	w.t.Helper()
	w.mu.Lock()
	w.away = true
	w.mu.Unlock()
	w.register("w1", e)
	life := w.life("w1", 0)
	var b indexer.FrameBuilder
	b.Reset(indexer.Header{Group: 1, Partition: w.partition(path), Life: life, Tenure: life, Sequence: 1})
	locals, engines := b.Store(indexer.Device, 0, 0, indexer.Parent{}, len(path))
	copy(locals, w.locals(path))
	copy(engines, hashes("", path))
	if err := w.index.NewWriter().Write(b.Frame()); err != nil {
		w.t.Fatal(err)
	}
	w.want(path, len(path))
}

// The engine's buffer is replayed into a new life; of the one that another node fed
// nothing counts any more, not even what the engine still holds and does not replay.
func TestTakeover(t *testing.T) {
	runAssigned(t, nil, func(w *world, a *assigned) {
		e := w.engine("e1", true)
		e.next = 70
		e.record(batch(store("", "abc")))
		e.record(batch(store("abc", "d"), store("", "xyz")))
		e.record(batch(remove("xyz")))
		w.elsewhere(e, "abcq")
		life := w.life("w1", 0)
		w.delay = 5 * time.Second
		a.give(true)
		w.settle()
		st := w.source("w1")
		equal(t, "state", st.Ranks[0].State, Buffering)
		noReplayTraffic(t, e) // it would have to be held back
		e.publish(batch(store("abcd", "e")))
		w.wait(10 * time.Second)
		w.want("abcde", 5, "abcq", 3, "xyz", 2)
		equal(t, "first replay from", e.requests[0], 0)
		st = w.source("w1")
		equal(t, "state", st.Ranks[0].State, Active)
		equal(t, "lives", w.lives, 1)
		if w.life("w1", 0) <= life {
			t.Error("the life is the old one")
		}
		const note = "taken over from another node: started over, 3 batches replayed"
		if !slices.Contains(st.Ranks[0].Warnings, note) {
			t.Errorf("warnings %q", st.Ranks[0].Warnings)
		}
		equal(t, "purged by ingest", len(w.purged), 0) // it wrote nothing of the old life
		w.wait(takeoverNote)
		if w := w.source("w1").Ranks[0].Warnings; len(w) > 0 {
			t.Errorf("warnings %q", w)
		}
	})
}

// Without a replay it goes on with what comes, and what came while the life was asked for.
func TestTakeoverWithoutReplay(t *testing.T) {
	runAssigned(t, nil, func(w *world, a *assigned) {
		e := w.engine("e1", false)
		e.next = 70
		w.elsewhere(e, "abc")
		w.delay = 5 * time.Second
		a.give(true)
		w.settle()
		e.publish(batch(store("", "xy")))
		e.publish(batch(store("xy", "z"), store("abc", "d")))
		w.want("xyz", 0)
		w.wait(10 * time.Second)
		w.want("xyz", 3, "abc", 0, "abcd", 0)
		equal(t, "lives", w.lives, 1)
		equal(t, "gaps", w.source("w1").Counters.Gaps, 0)
	})
}

// The log refuses a rank's new life for a while: its siblings, which it gave one, go on.
func TestTakeoverOfOneRankRefused(t *testing.T) {
	runAssigned(t, nil, func(w *world, a *assigned) {
		e := w.engine("e1", true)
		e.record(rankBatch(0, store("", "abc")))
		e.record(rankBatch(1, store("", "xyz")))
		w.mu.Lock()
		w.away = true
		w.mu.Unlock()
		w.register("w1", e, 0, 1)
		w.refuseRank = func(rank uint32) error {
			if rank == 0 {
				return catalog.ErrExhausted
			}
			return nil
		}
		a.give(true)
		w.wait(3 * time.Second)
		equal(t, "rank 1", w.score("xyz", 1), 3)
		equal(t, "rank 0", w.score("abc"), 0)
		equal(t, "waiting", w.source("w1").Ranks[0].Waiting, 1)
		w.mu.Lock()
		w.refuseRank = nil
		w.mu.Unlock()
		w.wait(time.Minute)
		equal(t, "rank 1", w.score("xyz", 1), 3)
		equal(t, "rank 0", w.score("abc"), 3)
		equal(t, "lives", w.lives, 2)
	})
}

// A source goes away and comes back: others may have written in between. The slot that
// this process wrote before is reported when it ends, and no other.
func TestTakenAwayAndGivenBack(t *testing.T) {
	for _, seen := range []bool{true, false} {
		runAssigned(t, nil, func(w *world, a *assigned) {
			e := w.engine("e1", true)
			w.register("w1", e)
			grow(e, 0, 3)
			first := catalog.Retired{Group: 1, Slot: 0, Life: w.life("w1", 0)}
			if seen { // otherwise both changes are in one view
				a.give(false)
				w.settle()
				equal(t, "sources", len(w.m.Status()), 0)
				w.want("abc", 3)
				grow(e, 3, 2)
				w.want("abcde", 3)
			} else {
				grow(e, 3, 2)
			}
			if !w.m.Reports(first) {
				t.Error("a slot that was written here is nobody's to report")
			}
			a.give(true)
			w.settle()
			w.want("abcde", 5)
			equal(t, "lives", w.lives, 1)
			equal(t, "sources", len(w.m.Status()), 1)
			if !slices.Equal(w.purged, []catalog.Retired{first}) {
				t.Errorf("purged %v, want %v", w.purged, first)
			}
			if w.m.Reports(first) {
				t.Error("it is to be reported again")
			}
			e.publish(batch(remove("abcde")))
			w.want("abcde", 4)
			equal(t, "losses", w.source("w1").Counters.Losses, 0)
		})
	}
}

// The other node begins a new life: the old one's slot is reported from here as well,
// once, and nothing of it is cleared before that.
func TestSlotOfAGivenSourceIsReported(t *testing.T) {
	runAssigned(t, nil, func(w *world, a *assigned) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 3)
		first := catalog.Retired{Group: 1, Slot: 0, Life: w.life("w1", 0)}
		a.give(false)
		w.settle()
		equal(t, "held", w.index.Stats().Held[0], 3)
		if err := w.commit(func(at uint64) error {
			_, err := w.catalog.NewLife(at, "w1", 0, first.Life)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		second := w.life("w1", 0)
		w.settle()
		if !slices.Equal(w.purged, []catalog.Retired{first}) {
			t.Errorf("purged %v, want %v", w.purged, first)
		}
		w.unregister("w1", nil)
		w.settle()
		equal(t, "purged", len(w.purged), 1)
		if w.m.Reports(catalog.Retired{Group: 1, Slot: 1, Life: second}) {
			t.Error("a life of another node is this node's to report")
		}
	})
}

// A rank that comes to a source later began under its tenure: nothing starts over.
func TestLaterRankIsNoTakeover(t *testing.T) {
	runAssigned(t, nil, func(w *world, a *assigned) {
		e := w.engine("e1", true)
		w.elsewhere(e, "abc")
		a.give(true)
		w.settle()
		w.register("w1", e, 1)
		e.publish(rankBatch(1, store("", "xyz")))
		w.settle()
		equal(t, "rank 1", w.score("xyz", 1), 3)
		equal(t, "lives", w.lives, 1)
		if w := w.source("w1").Ranks[1].Warnings; len(w) > 0 {
			t.Errorf("warnings %q", w)
		}
	})
}

// The tenure is gone from a newer view than the one at hand: nothing is begun or ended
// because of that.
func TestTenureUnknown(t *testing.T) {
	runAssigned(t, nil, func(w *world, a *assigned) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 3)
		w.m.cfg.Tenure = func(catalog.Source) uint64 { return 0 }
		w.mu.Lock()
		w.m.Reconcile(w.view())
		w.mu.Unlock()
		synctest.Wait()
		grow(e, 3, 2)
		w.want("abcde", 5)
		equal(t, "lives", w.lives, 0)
	})
}

// An engine that restarts in place is found by a probe (rule T5) while a batch of the
// old run is still unread: nothing of that may become the beginning of the new life.
func TestOldBatchBehindAProbe(t *testing.T) {
	for _, c := range []struct {
		name string
		n    int // batches of the new run by then
	}{{"nothing yet", 0}, {"fewer", 2}, {"exactly as many", 3}, {"more", 6}} {
		t.Run(c.name, func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", true)
				w.register("w1", e)
				grow(e, 0, 3)
				old := e.subscription()
				late := batch(store("", "pq"), store("abc", "d"))
				asked := 0
				e.onRequest = func(uint64) {
					switch asked++; asked {
					case 1:
						e.next, e.buffer = 0, nil
						for i := range c.n {
							e.record(batch(store("xyzuvw"[:i], "xyzuvw"[i:i+1])))
						}
					case 2: // before the answer
						old.do(func() { old.h.OnMessage([][]byte{nil, seqFrame(3), late}) })
					}
				}
				w.wait(7 * time.Second) // not yet the next probe
				w.want("abcd", 0, "pq", 0, "xyzuvw", c.n)
				equal(t, "lives", w.lives, 1)
				e.publish(batch(store("", "m")))
				w.want("abcd", 0, "pq", 0, "xyzuvw", c.n, "m", 1)
				st := w.source("w1")
				equal(t, "restarts", st.Counters.Restarts, 1)
				equal(t, "state", st.Ranks[0].State, Active)
			})
		})
	}
}

func digestOf(payload []byte) uint64 { return xxh3.Hash(payload) &^ 0xffff }
