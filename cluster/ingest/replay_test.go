package ingest

import (
	"testing"
	"time"
)

// The matrix of what a replay endpoint can do to a join, a gap and a reconnection.
// full says that nothing is lost; otherwise the old claims must be gone.
type replayFault struct {
	name string
	set  func(e *mockEngine)
	// outcome after a gap, and after a reconnection of the same engine
	gapFull, reconnectFull bool
	end                    ReplayEnd // counted reason, if not full
}

var replayFaults = []replayFault{
	{name: "four frames", set: func(*mockEngine) {}, gapFull: true, reconnectFull: true},
	{name: "three frames", set: func(e *mockEngine) { e.threeFrames = true }, gapFull: true, reconnectFull: true},
	{name: "no end marker", set: func(e *mockEngine) { e.noMarker = true }, gapFull: true, reconnectFull: true},
	{name: "hangs", set: func(e *mockEngine) { e.hang = true }, end: ReplaySilent},
	{name: "repeats the cursor for ever", set: func(e *mockEngine) { e.drip = []uint64{6} }, end: ReplayEndedEarly},
	{name: "repeats older ones for ever", set: func(e *mockEngine) { e.drip = []uint64{0, 3} }, end: ReplaySilent},
	{name: "cut after three", set: func(e *mockEngine) { e.stopAfter = 3 }, gapFull: true, reconnectFull: true},
	{name: "reply lost once", set: func(e *mockEngine) {
		e.dropReplies = map[int]bool{3: true}
		e.onRequest = func(uint64) {
			if len(e.requests) > 2 {
				e.dropReplies = nil
			}
		}
	}, gapFull: true, reconnectFull: true},
	{name: "hole", set: func(e *mockEngine) { e.buffer = append(e.buffer[:8:8], e.buffer[9:]...) }, end: ReplayHole},
	{name: "rolled past the cursor", set: func(e *mockEngine) { e.buffer = e.buffer[8:] }, end: ReplayStartedLate},
	{name: "empty", set: func(e *mockEngine) {
		e.onRequest = func(uint64) {
			if len(e.requests) == 2 {
				e.buffer = nil
			}
		}
	}, end: ReplayEmpty},
	{name: "other content at the cursor", set: func(e *mockEngine) {
		e.buffer = e.buffer[6:]
		e.buffer[0].payload = batch(store("", "q"))
	}, end: ReplayOtherContent},
	{name: "unreachable", set: func(e *mockEngine) { delete(e.net.replays, e.replay) }, end: ReplayUnreachable},
}

func TestReplayAfterGap(t *testing.T) {
	for _, f := range replayFaults {
		t.Run(f.name, func(t *testing.T) {
			run(t, nil, func(w *world) {
				e, other := w.engine("e1", true), w.engine("e2", false)
				w.register("w1", e)
				w.register("w2", other)
				grow(e, 0, 7) // cursor 6
				all := letters(15)
				e.record(batch(store(all[:7], "h")))
				e.record(batch(remove(all[:3]), store(all[:8], "i")))
				for i := 9; i < 12; i++ {
					e.record(batch(store(all[:i], all[i:i+1])))
				}
				f.set(e)
				e.publish(batch(store(all[:12], "m")))
				e.publish(batch(store(all[:2], "c"), store("", "xy")))
				other.publish(batch(store("", "pq")))
				equal(t, "the neighbour", w.score("pq", "w2"), 2) // while this one is replaying
				w.wait(40 * time.Second)
				e.publish(batch(store(all[:13], "n")))
				w.settle()
				s := w.source("w1")
				if f.gapFull {
					w.want(all[:14], 14, "xy", 2)
					equal(t, "lives", w.asked, 0)
					equal(t, "losses", s.Counters.Losses, 0)
				} else {
					if got := w.score(all); got > 0 {
						t.Errorf("score %d: nothing of the old chain may be credited", got)
					}
					w.want("xy", 2)
					equal(t, "lives", w.lives, 1)
					if s.Counters.ReplayFailed[f.end] == 0 {
						t.Errorf("reason %v is not counted: %v", f.end, s.Counters.ReplayFailed)
					}
				}
				equal(t, "gaps", s.Counters.Gaps, 1)
				equal(t, "state", s.Ranks[0].State, Active)
			})
		})
	}
}

// A connection is lost and comes back to the same engine run, with batches missed.
func TestReplayAfterReconnect(t *testing.T) {
	for _, f := range replayFaults {
		t.Run(f.name, func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", true)
				w.register("w1", e)
				grow(e, 0, 7)
				all := letters(15)
				e.disconnect()
				w.settle()
				w.want(all[:7], 7) // nothing says that it is gone
				for i := 7; i < 12; i++ {
					e.publish(batch(store(all[:i], all[i:i+1])))
				}
				f.set(e)
				e.connect()
				w.wait(40 * time.Second)
				e.publish(batch(store("", "xy")))
				w.wait(20 * time.Second) // the new batch may open the question again
				s := w.source("w1")
				if f.reconnectFull {
					w.want(all[:12], 12, "xy", 2)
					equal(t, "lives", w.asked, 0)
					equal(t, "restarts", s.Counters.Restarts, 0)
				} else {
					if got := w.score(all); got > 0 {
						t.Errorf("score %d: nothing of the old chain may be credited", got)
					}
					w.want("xy", 2)
					equal(t, "lives", w.lives, 1)
				}
				equal(t, "state", s.Ranks[0].State, Active)
			})
		})
	}
}

func TestReplayAtJoin(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(e *mockEngine)
		want int // of 12 blocks announced before, plus two live
	}{
		{"whole", func(*mockEngine) {}, 14},
		{"three frames", func(e *mockEngine) { e.threeFrames = true }, 14},
		{"no end marker", func(e *mockEngine) { e.noMarker = true }, 14},
		{"cut", func(e *mockEngine) { e.stopAfter = 5 }, 14},
		{"hangs", func(e *mockEngine) { e.hang = true }, 0},
		{"hangs for two minutes", func(e *mockEngine) {
			e.hang = true
			time.AfterFunc(2*time.Minute, func() {
				e.net.mu.Lock()
				defer e.net.mu.Unlock()
				e.hang = false
			})
		}, 14},
		{"empty", func(e *mockEngine) { e.buffer = nil }, 0},
		{"unreachable", func(e *mockEngine) { delete(e.net.replays, e.replay) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", true)
				all := letters(14)
				for i := range 12 {
					e.record(batch(store(all[:i], all[i:i+1])))
				}
				c.set(e)
				w.register("w1", e)
				grow(e, 12, 1)
				w.wait(time.Minute)
				grow(e, 13, 1)
				e.publish(batch(store("", "xy")))
				w.wait(3 * time.Minute)
				w.want(all, c.want, "xy", 2)
				s := w.source("w1")
				equal(t, "lives", w.asked, int(s.Counters.Refills))
				equal(t, "losses and restarts", s.Counters.Losses+s.Counters.Restarts, 0)
				equal(t, "state", s.Ranks[0].State, Active)
			})
		})
	}
}

// A batch is missing in the engine's buffer, and the stream breaks twice in short time, so
// that it begins live. When the engine is asked again for what came before, the stream goes
// back to the batch behind the hole, once: the hole does not end that life as well.
func TestRefillBehindAHole(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 3)
		w.wait(time.Minute)
		e.disconnect()
		e.next, e.buffer = 0, nil // another run
		e.record(batch(store("", "ab")))
		e.next++ // nobody will ever see this one
		e.record(batch(store("", "xyz")))
		e.connect()
		e.publish(batch(store("", "pq")))
		w.wait(10 * time.Second)
		e.publish(batch(store("", "mn")))
		w.wait(10 * time.Minute)
		w.want("ab", 0, "xyz", 3, "pq", 2, "mn", 2)
		s := w.source("w1")
		equal(t, "refills", s.Counters.Refills, 1)
		equal(t, "losses", s.Counters.Losses, 1)
		equal(t, "short", s.Ranks[0].Short, false)
		if w.lives > 3 {
			t.Errorf("%d lives", w.lives)
		}
	})
}

// Live batches arrive while a long replay runs, faster than they are held.
func TestBacklogOverflowsIntoTheReplay(t *testing.T) {
	run(t, []option{func(c *Config, _ *Deps) { c.BufferBatches = 4 }}, func(w *world) {
		e := w.engine("e1", true)
		e.record(batch(store("", "a")))
		e.hang = true
		w.register("w1", e)
		grow(e, 1, 19) // held back, and dropped four times
		w.settle()
		e.hang = false
		w.wait(5 * time.Second) // the first attempt times out
		w.want(letters(20), 20)
		s := w.source("w1")
		equal(t, "lives", w.asked, 0)
		if s.Counters.Overflow == 0 {
			t.Error("no overflow: the test shows nothing")
		}
		equal(t, "batches", s.Ranks[0].Counters.Batches, 20)
	})
}

// A replay overtakes live batches that are still on their way.
func TestReplayOvertakesLive(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		all := letters(20)
		for i := range 18 {
			e.record(batch(store(all[:i], all[i:i+1])))
		}
		w.register("w1", e)
		w.settle()
		w.want(all, 18)
		for _, b := range e.buffer[10:] { // they come late
			e.send(b.seq, b.payload)
		}
		grow(e, 18, 2)
		w.want(all, 20)
		s := w.source("w1")
		equal(t, "duplicates", s.Counters.Duplicates, 8)
		equal(t, "batches", s.Ranks[0].Counters.Batches, 20)
		equal(t, "restarts", s.Counters.Restarts, 0)
	})
}

// What a replay brings can be longer than the digests remembered.
func TestLongOverlapIsNoRestart(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		for range 3 * digestWindow {
			e.record(batch())
		}
		e.record(batch(store("", "ab")))
		w.register("w1", e)
		w.settle()
		for _, b := range e.buffer {
			e.send(b.seq, b.payload)
		}
		e.publish(batch(store("ab", "c")))
		w.want("abc", 3)
		equal(t, "lives", w.asked, 0)
	})
}

// Rule T5: the last batches of a stream are lost, and nothing follows.
func TestProbeFindsTrailingLoss(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		e.publish(batch(store("", "abc")))
		e.record(batch(remove("ab")))
		e.record(batch(store("abc", "d")))
		w.want("abcd", 3)
		w.wait(8 * time.Second)
		w.want("abcd", 1)
		s := w.source("w1")
		equal(t, "gaps", s.Counters.Gaps, 0)
		equal(t, "lives", w.asked, 0)
		if s.Counters.Probes == 0 {
			t.Error("no probe counted")
		}
		e.publish(batch(store("a", "b")))
		w.want("abcd", 4)
	})
}

// Rule T5: the engine restarts, and neither a number nor a connection shows it.
func TestProbeFindsSilentRestart(t *testing.T) {
	for _, c := range []struct {
		name  string
		start uint64
		n     int
	}{{"with an empty buffer", 0, 0}, {"below the cursor", 0, 2}, {"at the cursor", 0, 5}, {"above the cursor", 0, 9}, {"far above", 1 << 50, 2}} {
		t.Run(c.name, func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", true)
				w.register("w1", e)
				grow(e, 0, 5)
				e.next, e.buffer = c.start, nil
				for i := range c.n {
					e.record(batch(store("xyzuvwrst"[:i], "xyzuvwrst"[i:i+1])))
				}
				w.wait(10 * time.Second)
				w.want("abcde", 0, "xyzuvwrst", c.n)
				equal(t, "lives", w.lives, 1)
			})
		})
	}
}

// Probes of a silent source that has lost nothing become rare; one that hangs is no loss.
func TestProbesBackOff(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 3)
		w.wait(10 * time.Minute)
		if n := w.source("w1").Counters.Probes; n < 10 || n > 20 {
			t.Errorf("%d probes in ten minutes", n)
		}
		e.hang = true
		w.wait(5 * time.Minute)
		w.want("abc", 3)
		s := w.source("w1")
		equal(t, "lives", w.asked, 0)
		if s.Counters.ProbesSilent == 0 {
			t.Error("a hung probe is not counted")
		}
		grow(e, 3, 1)
		w.want("abcd", 4)
	})
}
