package ingest

import (
	"fmt"
	"testing"

	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

func TestLiveStream(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(store("", "abc")))
		w.want("abc", 3, "abx", 2, "x", 0)
		e.publish(batch(remove("ab"), store("abc", "d")))
		w.want("abcd", 1)
		e.publish(batch(store("a", "b")))
		w.want("abcd", 4) // held, not only reachable
		e.publish(batch(cleared(), store("", "x")))
		w.want("abcd", 0, "x", 1)
		s := w.source("w1")
		equal(t, "state", s.Ranks[0].State, Active)
		equal(t, "sequence", s.Ranks[0].Sequence, 3)
		equal(t, "messages", s.Counters.Messages, 4)
		equal(t, "restarts", s.Counters.Restarts, 0)
		equal(t, "lives", w.asked, 0)
	})
}

// letters is the path "abc.." of n blocks, n at most 26.
func letters(n int) string { return "abcdefghijklmnopqrstuvwxyz"[:n] }

// grow publishes n batches, each one more block on one chain, and returns the path.
func grow(e *mockEngine, from, n int) string {
	all := letters(26)
	for i := from; i < from+n; i++ {
		e.publish(batch(store(all[:i], all[i:i+1])))
	}
	return all[:from+n]
}

// llm-d-router#1737: batch 7 of 20 is lost.
func TestGapIsReplayed(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 7)
		all := letters(20)
		e.record(batch(store(all[:7], "h")))
		grow(e, 8, 12)
		w.want(all, 20)
		s := w.source("w1")
		equal(t, "gaps", s.Counters.Gaps, 1)
		equal(t, "losses", s.Counters.Losses, 0)
		equal(t, "batches", s.Ranks[0].Counters.Batches, 20) // each applied once
		noReplayTraffic(t, e, 0, 6)                          // the join, then the cursor itself
		equal(t, "lives", w.asked, 0)
	})
}

// dynamo#7072: after a recovery the next batches are contiguous, not gaps again.
func TestOneRecoveryForOneGap(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		e.next = 40
		w.register("w1", e)
		grow(e, 0, 10)
		e.record(batch(store(letters(10), "k")))
		grow(e, 11, 1)
		w.want(letters(12), 12)
		grow(e, 12, 3)
		w.want(letters(15), 15)
		noReplayTraffic(t, e, 0, 0, 49) // at the join, again since the first live batch was not the first, the gap
	})
}

func TestGapWithoutReplay(t *testing.T) {
	lose := func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(store("", "abc")))
		e.record(batch(remove("b", "abc"))) // lost: nobody may be told that abc is held
		e.publish(batch(store("", "xy")))
	}
	t.Run("clear", func(t *testing.T) {
		run(t, nil, func(w *world) {
			lose(w)
			w.want("abc", 0) // at once, before any answer of the log
			before := w.life("w1", 0)
			w.settle()
			w.want("abc", 0, "xy", 2)
			s := w.source("w1")
			equal(t, "losses", s.Counters.Losses, 1)
			equal(t, "restarts", s.Counters.Restarts, 0)
			equal(t, "lives", w.lives, 1)
			equal(t, "fresh slot", s.Ranks[0].Slot, 1)
			equal(t, "purged", len(w.purged), 1)
			equal(t, "purged life", w.purged[0].Life, before)
			equal(t, "degraded", s.Ranks[0].Counters.Degraded, 1)
			equal(t, "state", s.Ranks[0].State, Active)
		})
	})
	t.Run("keep", func(t *testing.T) {
		run(t, []option{func(c *Config, _ *Deps) { c.OnLoss = KeepOnLoss }}, func(w *world) {
			lose(w)
			w.want("abc", 3, "xy", 2)
			s := w.source("w1")
			equal(t, "lives", w.asked, 0)
			equal(t, "losses", s.Counters.Losses, 1)
			if s.Ranks[0].Degraded == "" {
				t.Errorf("not flagged: %+v", s.Ranks[0])
			}
		})
	})
}

// A slot that holds nothing can lose nothing: no new life.
func TestGapBeforeAnyContent(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch())
		e.record(batch())
		e.publish(batch(store("", "a")))
		w.settle()
		w.want("a", 1)
		equal(t, "lives", w.asked, 0)
	})
}

func TestDuplicates(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		p := batch(store("", "ab"))
		q := batch(remove("ab"))
		e.publish(p)
		e.publish(q)
		e.send(0, p)
		e.send(1, q)
		e.send(0, p)
		w.want("ab", 1)
		s := w.source("w1")
		equal(t, "duplicates", s.Counters.Duplicates, 3)
		equal(t, "lives", w.asked, 0)
		// smg#946: the same store ten times holds two blocks.
		for range 10 {
			e.publish(batch(store("", "ab")))
		}
		s = w.source("w1")
		equal(t, "stored", s.Ranks[0].Counters.Stored, 3)
		equal(t, "held", s.Ranks[0].Translator.Mapped, 2)
	})
}

// llm-d-router#2853: the engine restarts in place, the sequence returns to 0.
func TestSequenceWentBack(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", replay), func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", replay)
				w.register("w1", e)
				for i := range 101 {
					e.publish(batch(store("", letters(1+i%20))))
				}
				w.want(letters(20), 20)
				e.next, e.buffer = 0, nil // the connection is not seen to break
				e.publish(batch(store("", "xy")))
				w.want(letters(20), 0)
				w.settle()
				w.want(letters(20), 0, "xy", 2)
				e.publish(batch(store("xy", "z")))
				w.want("xyz", 3)
				s := w.source("w1")
				equal(t, "restarts", s.Counters.Restarts, 1)
				equal(t, "lives", w.lives, 1)
				equal(t, "duplicates", s.Counters.Duplicates, uint64(b2i(replay))) // the held batch 0
			})
		})
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// SGLang clears at start-up, in batch 0.
func TestStartupClear(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 5)
		e.next, e.buffer = 0, nil
		e.publish(batch(cleared()))
		w.want(letters(5), 0)
		w.settle()
		grow(e, 0, 2)
		w.want(letters(5), 2)
		equal(t, "lives", w.lives, 1)
	})
}

// TensorRT-LLM numbers from its nanosecond clock: the first sequence is the baseline,
// and a restart jumps forward, beginning with a clear.
func TestNanosecondSequences(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", replay), func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", replay)
				e.next = 1757500000250000000
				w.register("w1", e)
				e.publish(batch(cleared()))
				grow(e, 0, 2)
				w.want("ab", 2)
				if replay {
					noReplayTraffic(t, e, 0, 0)
				}
				e.restart(1757500009000000000)
				w.settle()
				e.publish(batch(cleared()))
				e.publish(batch(store("", "x")))
				w.settle()
				w.want("ab", 0, "x", 1)
				equal(t, "lives", w.lives, 1)
			})
		})
	}
}

// Heartbeats are batches without events: they move the sequence.
func TestHeartbeats(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 1)
		for range 5 {
			e.publish(batch())
		}
		grow(e, 1, 1)
		w.want("ab", 2)
		equal(t, "gaps", w.source("w1").Counters.Gaps, 0)
	})
}

// Mooncake's master numbers from 1, says no more than hashes, and never clears.
func TestMooncake(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		e.next = 1
		w.register("w1", e)
		w.settle()
		e.publish(encode.Append(nil, encode.Mooncake, &encode.Batch{Time: 1757500000.25, Events: []encode.Event{
			{Kind: engine.Stored, Hashes: []uint64{255}, Medium: "cpu", Group: -1},
		}}))
		w.settle()
		s := w.source("w1")
		equal(t, "sequence", s.Ranks[0].Sequence, 1)
		equal(t, "gaps", s.Counters.Gaps, 0)
		equal(t, "unknown", s.Ranks[0].Counters.Unknown, 1)
		equal(t, "stored", s.Ranks[0].Counters.Stored, 0)
	})
}

// llm-d/llm-d-router: the buffer has rolled past 0.
func TestLateStartOfTheBuffer(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		e.next, e.size = 15_000-13, 10
		all := letters(14)
		for i := range 14 { // 14,987 to 15,000; kept from 14,991 on
			e.record(batch(store(all[:i], all[i:i+1])))
		}
		w.register("w1", e)
		w.settle()
		w.want(all, 0) // its first blocks were announced too long ago
		e.publish(batch(store("", all[:4])))
		w.want(all, 14)
		s := w.source("w1")
		equal(t, "state", s.Ranks[0].State, Active)
		equal(t, "replayed", s.Counters.ReplayedBatches, 10)
		noReplayTraffic(t, e, 0)
	})
}

// llm-d-kv-cache#372: the indexer starts when the engine has already announced parents.
func TestJoinInMidChain(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", replay), func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", replay)
				e.record(batch(store("", "a")))
				e.record(batch(store("a", "b")))
				w.register("w1", e)
				w.settle()
				e.publish(batch(store("a", "c")))
				e.publish(batch(store("ac", "d")))
				w.settle()
				if replay {
					w.want("acd", 3, "ab", 2)
					return
				}
				w.want("acd", 0, "ab", 0, "cd", 0, "d", 0) // never as roots
				equal(t, "orphans", w.source("w1").Ranks[0].Translator.Orphans, 2)
				e.publish(batch(store("", "a")))
				w.want("acd", 3)
			})
		})
	}
}

// dynamo#7863: no cursor survives a registration.
func TestRegisterAgain(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", replay), func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", replay)
				w.register("w1", e)
				for i := range 100 {
					e.publish(batch(store(letters(i%20), letters(20)[i%20:i%20+1])))
				}
				w.want(letters(20), 20)
				w.unregister("w1", nil)
				w.settle()
				equal(t, "purged", len(w.purged), 1)
				w.register("w1", e)
				w.settle()
				e.publish(batch(store(letters(20), "u")))
				w.settle()
				want := 0
				if replay {
					want = 21
				}
				w.want(letters(21), want)
			})
		})
	}
}

// The first batches of a stream can be lost like any others: the engine had published
// nothing when it was asked at the join, and the first batch that arrives is not the
// first. It is asked once more; what it kept comes before what arrived.
func TestFirstBatchesLost(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		w.settle()
		e.record(batch(store("", "a")))
		e.record(batch(store("a", "b")))
		grow(e, 2, 1)
		w.want(letters(3), 3)
		noReplayTraffic(t, e, 0, 0)
	})
}
