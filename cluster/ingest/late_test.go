package ingest

import (
	"testing"
	"time"
)

// Messages of a connection may still come when its loss is known already. They are not
// the first of the next one: a new run of the engine must not begin with them.
func TestMessagesAfterTheLossOfTheirConnection(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 5)
		old := e.subscription()
		e.disconnect()
		e.next, e.buffer, e.down = 0, nil, false // the next run answers replays before it is connected
		old.do(func() { old.h.OnMessage([][]byte{nil, seqFrame(5), batch(store("", "q"))}) })
		w.settle()
		w.want("q", 0)
		e.connect()
		w.settle()
		w.want("abcde", 0, "q", 0)
		e.publish(batch(store("", "x")))
		w.want("abcde", 0, "q", 0, "x", 1)
		s := w.source("w1")
		equal(t, "restarts", s.Counters.Restarts, 1)
		equal(t, "connects", s.Counters.Connects, 3) // the third with nothing of the old run in it
	})
}

// If it is the same run, nothing of them is lost: they are asked for.
func TestMessagesAfterTheLossComeByReplay(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 5)
		old := e.subscription()
		e.disconnect()
		late := batch(remove("abcde"))
		seq := e.record(late)
		old.do(func() { old.h.OnMessage([][]byte{nil, seqFrame(seq), late}) })
		w.wait(2 * time.Second)
		e.connect()
		w.settle()
		w.want("abcde", 4)
		e.publish(batch(store("abcd", "e")))
		w.want("abcde", 5)
		s := w.source("w1")
		equal(t, "restarts", s.Counters.Restarts, 0)
		equal(t, "lives", w.lives, 0)
	})
}

// A stream that cannot be had says so, and what it said before does not hide it.
func TestPendingStreamsSayWhy(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		e.down = true
		w.register("w1", e)
		w.settle()
		equal(t, "error while it is awaited", w.source("w1").Ranks[0].LastError, "")
		w.wait(10 * time.Second)
		st := w.source("w1").Ranks[0]
		equal(t, "state", st.State, Pending)
		equal(t, "error", st.LastError, "no publisher answers at tcp://e1:5557")
		e.connect()
		e.publish(batch(store("", "abc")))
		st = w.source("w1").Ranks[0]
		equal(t, "state", st.State, Active)
		equal(t, "error when it is there", st.LastError, "")
		e.disconnect()
		w.wait(10 * time.Second)
		equal(t, "error when it is gone", w.source("w1").Ranks[0].LastError, "the publisher at tcp://e1:5557 is gone")
	})
}
