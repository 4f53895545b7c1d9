package ingest

import "testing"

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
