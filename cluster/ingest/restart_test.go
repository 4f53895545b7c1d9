package ingest

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// Without a replay endpoint a lost connection proves nothing about what comes next:
// also not when the numbers happen to fit (rule T3).
func TestReconnectWithoutReplay(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 5)
		e.disconnect()
		w.settle()
		w.want(letters(5), 5)
		equal(t, "state", w.source("w1").Ranks[0].State, Pending)
		e.connect()
		w.want(letters(5), 0) // before it says anything
		w.settle()
		e.publish(batch(store("", "xy"))) // sequence 5, as if nothing had happened
		w.want(letters(5), 0, "xy", 2)
		s := w.source("w1")
		equal(t, "restarts", s.Counters.Restarts, 1)
		equal(t, "losses", s.Counters.Losses, 0)
		equal(t, "lives", w.lives, 1)
		equal(t, "state", s.Ranks[0].State, Active)
	})
}

// An engine restarts while connected, anywhere relative to the cursor. Promise 6.
func TestRestart(t *testing.T) {
	for _, c := range []struct {
		name  string
		start uint64
		n     int // batches that the new run publishes before it is connected
	}{{"nothing yet", 0, 0}, {"below the cursor", 0, 2}, {"exactly at the cursor", 0, 5}, {"next to the cursor", 5, 1}, {"above the cursor", 0, 9}, {"clock", 1 << 60, 3}} {
		for _, replay := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/replay=%v", c.name, replay), func(t *testing.T) {
				run(t, nil, func(w *world) {
					e := w.engine("e1", replay)
					w.register("w1", e)
					grow(e, 0, 5)
					w.want("abcde", 5)
					e.disconnect()
					e.next, e.buffer = c.start, nil
					for i := range c.n {
						e.record(batch(store("xyzuvwrst"[:i], "xyzuvwrst"[i:i+1])))
					}
					e.connect()
					e.publish(batch(store("", "p")))
					w.settle()
					want := 0
					if replay {
						want = c.n
					}
					w.want("abcde", 0, "xyzuvwrst", want, "p", 1)
					s := w.source("w1")
					equal(t, "lives", w.lives, 1)
					equal(t, "restarts", s.Counters.Restarts, 1)
					equal(t, "purged", len(w.purged), 1)
					equal(t, "slot", s.Ranks[0].Slot, 1)
					// The number is free again for the next life.
					e.restart(0)
					e.publish(batch(store("", "q")))
					w.wait(3 * time.Second)
					w.want("p", 0, "q", 1)
					equal(t, "slot", w.source("w1").Ranks[0].Slot, 0)
				})
			})
		}
	}
}

// The log cannot give a slot for a while: the old claims are gone at once, what comes is
// held back, and nothing of it is lost.
func TestNewLifeWaitsForTheLog(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 5)
		w.refuse = errNoLeader
		e.restart(0)
		e.publish(batch(store("", "xy")))
		w.wait(3 * time.Second)
		e.publish(batch(store("xy", "z")))
		w.want("abcde", 0, "xyz", 0)
		s := w.source("w1")
		equal(t, "state", s.Ranks[0].State, Buffering)
		equal(t, "waiting", s.Ranks[0].Waiting, 2)
		equal(t, "error", s.Ranks[0].LastError, "new life: no leader")
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		w.wait(10 * time.Second)
		w.want("xyz", 3)
		equal(t, "state", w.source("w1").Ranks[0].State, Active)
	})
}

// What does not fit while a slot is awaited is dropped: the slot is empty and may begin
// at any batch, but never with a hole.
func TestWaitingOverflows(t *testing.T) {
	run(t, []option{func(c *Config, _ *Deps) { c.BufferBatches = 3 }}, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 5)
		w.delay = 5 * time.Second
		e.restart(0)
		w.wait(time.Millisecond)
		e.publish(batch(store("", "abc")))
		e.publish(batch(store("", "xyz")))
		e.publish(batch(remove("xyz")))
		e.publish(batch(store("", "pq"))) // the fourth: three are dropped
		e.publish(batch(remove("abc")))
		w.wait(20 * time.Second)
		w.want("abc", 0, "xyz", 0, "pq", 2)
		equal(t, "dropped", w.source("w1").Ranks[0].Counters.DroppedWait, 3)
	})
}

// An engine that restarts all the time does not flood the log, and never shows old claims.
func TestRestartStorm(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		for i := range 200 {
			e.restart(0)
			e.publish(batch(store("", fmt.Sprintf("%c%c", 'a'+i%20, 'b'+i%20))))
			if i > 0 {
				if got := w.score(fmt.Sprintf("%c", 'a'+(i-1)%20)); got != 0 {
					t.Fatalf("restart %d: score %d of the life before", i, got)
				}
			}
			w.wait(100 * time.Millisecond)
		}
		if w.asked > 10 {
			t.Errorf("%d new lives asked for in 20 s", w.asked)
		}
		w.wait(time.Minute)
		w.want("tu", 2)
	})
}

// An engine restarts twice in a hurry, the second time found by a probe, and then falls
// silent: it is not asked at once, and what it has said is found all the same without
// another word of it.
func TestRestartsInAHurryAndSilence(t *testing.T) {
	run(t, []option{func(c *Config, _ *Deps) { c.ProbeAfter = 200 * time.Millisecond }}, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 5)
		e.restart(0)
		e.publish(batch(store("", "p")))
		w.wait(100 * time.Millisecond)
		e.next, e.buffer = 0, nil
		e.record(batch(store("", "x"))) // lost on the way
		e.record(batch(store("x", "y")))
		w.wait(2 * time.Minute)
		w.want("abcde", 0, "p", 0, "xy", 2)
	})
}

// Another life from elsewhere (an operator's reset) empties the slot and goes on.
func TestLifeFromElsewhere(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 5)
		life := w.life("w1", 0)
		w.NewLife("w1", 0, life, func(error) {})
		w.settle()
		w.want("abcde", 0)
		equal(t, "purged", len(w.purged), 1)
		e.publish(batch(store("", "xy")))
		w.want("xy", 2)
		equal(t, "gaps", w.source("w1").Counters.Gaps, 0)
	})
}

// Unregistering clears what the worker held, and its slot is free after the clear.
func TestUnregister(t *testing.T) {
	run(t, nil, func(w *world) {
		e, o := w.engine("e1", false), w.engine("e2", false)
		w.register("w1", e)
		w.register("w2", o)
		grow(e, 0, 3)
		grow(o, 0, 2)
		life := w.life("w1", 0)
		w.unregister("w1", nil)
		e.publish(batch(store("abc", "d")))
		w.settle()
		equal(t, "purged", len(w.purged), 1)
		equal(t, "purged slot", w.purged[0], catalog.Retired{Group: 1, Slot: 0, Life: life})
		equal(t, "held", w.index.Stats().Held[0], 2)
		equal(t, "w2", w.score("ab", "w2"), 2)
		equal(t, "sources", len(w.m.Status()), 1)
	})
}

// A source that is given to another node is left as it is: the other one writes now.
func TestSourceGivenAway(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 3)
		w.mu.Lock()
		w.at++
		view := w.catalog.View().WithSources(func(catalog.Source) bool { return false })
		w.m.Reconcile(view)
		w.mu.Unlock()
		w.settle()
		equal(t, "purged", len(w.purged), 0)
		w.want("abc", 3)
		equal(t, "sources", len(w.m.Status()), 0)
	})
}

// A replay finds out first that the engine has restarted. The live batches that follow
// have lower numbers than those of the old run; that is the same restart, not another.
func TestRestartFoundByReplayCountsOnce(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 5)
		e.next, e.buffer = 0, nil
		e.record(batch(store("", "x")))
		e.record(batch(store("x", "y")))
		w.wait(20 * time.Second) // a probe
		w.want("abcde", 0, "xy", 2)
		e.publish(batch(store("xy", "z")))
		w.want("xyz", 3) // at once: nothing is begun again
		s := w.source("w1")
		equal(t, "restarts", s.Counters.Restarts, 1)
		equal(t, "lives", w.lives, 1)
		e.restart(0) // and a real one is found as before
		e.publish(batch(store("", "q")))
		w.wait(3 * time.Second)
		w.want("xyz", 0, "q", 1)
		equal(t, "lives", w.lives, 2)
	})
}

// A run that begins right after a replay, unseen: its low numbers are not batches that
// the replay has overtaken, once those can no longer be on their way.
func TestRestartBehindAReplay(t *testing.T) {
	run(t, []option{func(c *Config, _ *Deps) { c.ProbeAfter = -1 }}, func(w *world) {
		e := w.engine("e1", true)
		e.next = 1000
		e.record(batch(store("", "abc")))
		w.register("w1", e)
		w.settle()
		w.want("abc", 3)
		e.next, e.buffer = 5, nil
		w.wait(20 * time.Second)
		e.publish(batch(store("", "xy")))
		w.settle()
		w.want("abc", 0, "xy", 2)
		equal(t, "lives", w.lives, 1)
	})
}

// The batch that showed a restart is dropped from a full queue; the restart is not.
func TestRestartIsRememberedAcrossOverflow(t *testing.T) {
	run(t, []option{func(c *Config, _ *Deps) { c.BufferBatches = 1 }}, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		e.publish(batch(store("", "abc")))
		e.publish(batch(store("abc", "d")))
		e.hang = true
		e.record(batch())
		e.publish(batch()) // 3: a gap, and the replay hangs
		e.next, e.buffer = 0, nil
		e.publish(batch(store("", "p"))) // 0, 1, 2: a new run
		e.publish(batch(store("", "q")))
		e.publish(batch(store("", "r"))) // 2, which follows the cursor
		w.wait(20 * time.Second)
		e.hang = false
		w.settle()
		w.want("abcd", 0, "r", 1)
		equal(t, "restarts", w.source("w1").Counters.Restarts, 1)
	})
}
