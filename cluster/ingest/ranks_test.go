package ingest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// dynamo#5936: two ranks on one port share one sequence; each holds its own blocks, and
// a clear is for the rank that sent it.
func TestRanksOnOnePort(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e, 0, 1)
		e.publish(rankBatch(0, store("", "abc")))
		e.publish(rankBatch(1, store("", "abx")))
		e.publish(rankBatch(0, store("", "p")))
		e.publish(rankBatch(1, remove("abx")))
		equal(t, "rank 0", w.score("abc", 0), 3)
		equal(t, "rank 1", w.score("abx", 1), 2)
		equal(t, "rank 0 of abx", w.score("abx", 0), 2)
		e.publish(rankBatch(1, cleared()))
		equal(t, "rank 0 after the clear", w.score("abc", 0), 3)
		equal(t, "rank 1 after the clear", w.score("abx", 1), 0)
		s := w.source("w1")
		equal(t, "gaps", s.Counters.Gaps, 0)
		equal(t, "batches of rank 0", s.Ranks[0].Counters.Batches, 2)
		equal(t, "batches of rank 1", s.Ranks[1].Counters.Batches, 3)
		// A restart of the process ends the lives of both.
		e.publish(rankBatch(1, store("", "z")))
		e.restart(0)
		e.publish(rankBatch(0, store("", "q")))
		w.settle()
		equal(t, "lives", w.lives, 2)
		equal(t, "rank 0", w.score("q", 0), 1)
		equal(t, "rank 1", w.score("z", 1), 0)
	})
}

// A gap loses content of an unknown rank: all of them are restarted (rule T6).
func TestGapRestartsAllRanks(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e, 0, 1, 2)
		e.publish(rankBatch(0, store("", "a")))
		e.publish(rankBatch(1, store("", "b")))
		e.record(rankBatch(0, remove("a")))
		e.publish(rankBatch(1, store("", "c")))
		w.settle()
		equal(t, "lives", w.lives, 2) // rank 2 has never held anything
		equal(t, "rank 0", w.score("a", 0), 0)
		equal(t, "rank 1", w.score("b", 1), 0)
		equal(t, "rank 1 afterwards", w.score("c", 1), 1)
	})
}

// A rank that nobody registered gets a slot of its own, and loses nothing meanwhile.
func TestDiscoveredRank(t *testing.T) {
	run(t, nil, func(w *world) {
		w.delay = 3 * time.Second
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(rankBatch(0, store("", "a")))
		e.publish(rankBatch(7, store("", "xyz")))
		e.publish(rankBatch(7, remove("xyz")))
		e.publish(rankBatch(0, store("a", "b")))
		w.want("ab", 2) // rank 0 does not wait for it
		equal(t, "state", w.source("w1").Ranks[0].State, Active)
		w.wait(5 * time.Second)
		equal(t, "rank 7", w.score("xyz", 7), 2)
		s := w.source("w1")
		equal(t, "ranks", len(s.Ranks), 2)
		equal(t, "discovered", s.Ranks[1].Discovered, true)
		if !slices.Contains(s.Ranks[1].Warnings, "rank is not registered") {
			t.Errorf("no warning: %q", s.Ranks[1].Warnings)
		}
		// Registering it afterwards keeps what it holds.
		w.register("w1", e, 7)
		w.settle()
		equal(t, "rank 7", w.score("xyz", 7), 2)
		equal(t, "discovered", w.rank("w1", 7).Discovered, false)
	})
}

func TestTooManyRanks(t *testing.T) {
	run(t, []option{func(c *Config, _ *Deps) { c.MaxRanks = 4 }}, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		for r := range int64(50) {
			e.publish(rankBatch(r*1_000_000, store("", "a")))
		}
		w.settle()
		s := w.source("w1")
		equal(t, "ranks", len(s.Ranks), 4)
		w.want("a", 1)
	})
}

// The log has no slot for a discovered rank: the others go on, and it is tried again.
func TestDiscoveryRefused(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		w.refuse = fmt.Errorf("rank 3: %w", catalog.ErrExhausted)
		e.publish(rankBatch(3, store("", "xy")))
		e.publish(rankBatch(0, store("", "ab")))
		w.wait(2 * time.Second)
		w.want("ab", 2)
		if r := w.source("w1").Ranks[1]; r.State != Buffering || r.LastError == "" || r.Life != 0 {
			t.Errorf("rank 3 is shown as %+v", r)
		}
		w.refuse = nil
		w.wait(10 * time.Second)
		equal(t, "rank 3", w.score("xy", 3), 2)
	})
}

// The rank in the batch wins; a batch without one belongs to the only registered rank.
func TestRankOfBatch(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e, 5)
		e.publish(rankBatch(-1, store("", "a")))
		e.publish(rankBatch(2, store("", "b")))
		w.settle()
		e.publish(rankBatch(-1, store("a", "c"))) // rank 2 is discovered, not registered
		w.settle()
		equal(t, "rank 5", w.score("ac", 5), 2)
		equal(t, "rank 2", w.score("b", 2), 1)
	})
}

func TestBatchWithoutRankAmongSeveral(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e, 0, 1)
		for range 3 {
			e.publish(rankBatch(-1, store("", "a")))
			e.publish(rankBatch(-1, remove("a")))
		}
		s := w.source("w1")
		equal(t, "without a rank", s.Counters.NoRank, 6)
		equal(t, "lives", w.asked, 0)
		if s.LastError == "" {
			t.Error("not shown")
		}
		// Once something is held, a removal of nobody's cannot be ignored.
		e.publish(rankBatch(0, store("", "a")))
		e.publish(rankBatch(-1, store("", "b")))
		w.settle()
		w.want("a", 1)
		e.publish(rankBatch(-1, remove("a")))
		w.want("a", 0)
		e.publish(rankBatch(-1)) // a heartbeat is nobody's in particular
		e.publish(rankBatch(0, store("", "c")))
		w.settle()
		w.want("c", 1)
		equal(t, "lives", w.lives, 1)
	})
}

// A rank of the instance that another port feeds must not be fed by two sequences.
func TestRankOfAnotherPort(t *testing.T) {
	run(t, nil, func(w *world) {
		e0, e1 := w.engine("e1", false), w.engine("e2", false)
		w.register("w1", e0, 0)
		w.register("w1", e1, 1)
		e0.publish(rankBatch(0, store("", "ab")))
		e1.publish(rankBatch(0, remove("ab"), store("", "x")))
		e1.publish(rankBatch(1, store("", "y")))
		w.settle()
		w.want("ab", 2, "x", 0)
		equal(t, "rank 1", w.score("y", 1), 1)
		for _, s := range w.m.Status() {
			equal(t, "ranks of a source", len(s.Ranks), 1)
		}
	})
}

// A rank that was unregistered does not come back by itself.
func TestUnregisteredRankStaysAway(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e, 0, 1)
		e.publish(rankBatch(0, store("", "a")))
		e.publish(rankBatch(1, store("", "b")))
		one := uint32(1)
		w.unregister("w1", &one)
		e.publish(rankBatch(1, store("b", "c")))
		w.settle()
		equal(t, "rank 1", w.score("b", 1), 0)
		equal(t, "ranks", len(w.source("w1").Ranks), 1)
		w.register("w1", e, 1)
		e.publish(rankBatch(1, store("", "d")))
		w.settle()
		equal(t, "rank 1", w.score("d", 1), 1)
		equal(t, "rank 1 before", w.score("b", 1), 0)
		w.want("a", 1)
		equal(t, "gaps", w.source("w1").Counters.Gaps, 0)
	})
}

// Mooncake's master writes rank 0 whatever it was registered for.
func TestMooncakeRank(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.registerAs(catalog.Registration{Instance: "w1", Rank: 3, Endpoint: e.endpoint, EngineType: "Mooncake"})
		e.publish(encode.Append(nil, encode.Mooncake, &encode.Batch{Time: 1, Events: []encode.Event{on("cpu", store("", "a"))}}))
		w.settle()
		s := w.source("w1")
		equal(t, "ranks", len(s.Ranks), 1)
		equal(t, "batches", s.Ranks[0].Counters.Batches, 1)
	})
}
