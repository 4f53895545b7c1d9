package ingest

import (
	"fmt"
	"testing"

	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// A message that is no batch costs nothing but a counter.
func TestMalformedMessages(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 2)
		e.sendRaw(batch(store("", "x")))
		e.sendRaw([]byte("topic"), batch(store("", "x")))
		e.sendRaw(nil, []byte{0, 0, 0, 0, 0, 0, 2}, batch(store("", "x")))
		e.sendRaw(nil, seqFrame(^uint64(0)), batch(store("", "x")))
		e.sendRaw()
		grow(e, 2, 1)
		w.want(letters(3), 3, "x", 0)
		s := w.source("w1")
		equal(t, "malformed", s.Counters.Malformed, 5)
		if s.LastError == "" {
			t.Error("the publisher is not flagged")
		}
		equal(t, "gaps", s.Counters.Gaps, 0)
	})
}

// What an undecodable batch said is lost, whatever it was.
func TestUndecodable(t *testing.T) {
	t.Run("no replay", func(t *testing.T) {
		run(t, nil, func(w *world) {
			e := w.engine("e1", false)
			w.register("w1", e)
			grow(e, 0, 3)
			e.publish([]byte{0xc1})
			w.want("abc", 0)
			w.settle()
			e.publish(batch(store("", "xy")))
			w.want("abc", 0, "xy", 2)
			s := w.source("w1")
			equal(t, "undecodable", s.Counters.Undecodable, 1)
			equal(t, "losses", s.Counters.Losses, 1)
			equal(t, "gaps", s.Counters.Gaps, 0)
		})
	})
	t.Run("the replay has the same", func(t *testing.T) {
		run(t, nil, func(w *world) {
			e := w.engine("e1", true)
			w.register("w1", e)
			grow(e, 0, 3)
			e.publish([]byte{0xc1})
			e.publish(batch(store("", "xy")))
			w.settle()
			w.want("abc", 0, "xy", 2)
			equal(t, "undecodable", w.source("w1").Counters.Undecodable, 1)
			equal(t, "lives", w.lives, 1)
		})
	})
	t.Run("the replay has it right", func(t *testing.T) {
		run(t, nil, func(w *world) {
			e := w.engine("e1", true)
			w.register("w1", e)
			grow(e, 0, 3)
			e.send(e.record(batch(remove("ab"))), []byte{0xc1}) // damaged on the way
			e.publish(batch(store("abc", "d")))
			w.settle()
			w.want("abcd", 1)
			equal(t, "lives", w.asked, 0)
			equal(t, "undecodable", w.source("w1").Counters.Undecodable, 0)
		})
	})
	t.Run("as the first", func(t *testing.T) {
		run(t, nil, func(w *world) {
			e := w.engine("e1", true)
			e.record([]byte{0xc1})
			w.register("w1", e)
			grow(e, 0, 2)
			w.settle()
			w.want("ab", 2)
			equal(t, "lives", w.asked, 0)
		})
	})
}

// A malformed store costs its blocks; a malformed removal could leave a score too high.
func TestUnreadableEvents(t *testing.T) {
	badStore := encode.Event{Raw: []byte("\x82\xa4type\xabBlockStored\xacblock_hashes\xa3abc")}
	badRemove := encode.Event{Raw: []byte("\x82\xa4type\xacBlockRemoved\xacblock_hashes\xa3abc")}
	unknown := encode.Event{Raw: []byte("\x81\xa4type\xadBlockInactive")}
	noTag := encode.Event{Raw: []byte("\x92\x05\x91\x01")}

	for _, c := range []struct {
		name string
		ev   encode.Event
		lost bool
	}{{"store", badStore, false}, {"unknown tag", unknown, false}, {"removal", badRemove, true}, {"no tag", noTag, true}} {
		t.Run(c.name, func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", true)
				w.register("w1", e)
				e.publish(batch(store("", "abc")))
				e.publish(batch(store("abc", "d"), c.ev, store("abcd", "e")))
				if !c.lost {
					w.want("abcde", 5)
					equal(t, "lives", w.asked, 0)
				} else {
					w.want("abcde", 0)
					w.settle()
					equal(t, "lives", w.lives, 1)
				}
				e.publish(batch(store("", "xy")))
				w.settle()
				w.want("xy", 2)
				n := w.source("w1").Ranks[0].Counters
				equal(t, "skipped", n.Skipped[engine.SkipMalformed]+n.Skipped[engine.SkipUnknownTag], 1)
				equal(t, "lost removals", n.LostRemoval, uint64(b2i(c.lost)))
			})
		})
	}
}

// A publisher that sends nothing but garbage harms nobody and floods no log.
func TestGarbagePublisher(t *testing.T) {
	run(t, nil, func(w *world) {
		bad, good := w.engine("bad", true), w.engine("good", false)
		w.register("w1", good)
		w.register("w2", bad)
		for i := range 500 {
			bad.publish([]byte(fmt.Sprintf("garbage %d", i)))
			bad.sendRaw([]byte{byte(i)})
			if i%25 == 0 {
				grow(good, i/25, 1)
			}
			if i%50 == 0 {
				w.settle()
			}
		}
		w.settle()
		w.want(letters(20), 20)
		equal(t, "lives", w.asked, 0)
		equal(t, "good losses", w.source("w1").Counters.Losses, 0)
		if n := len(bad.requests); n > 40 {
			t.Errorf("%d replays were asked for", n)
		}
	})
}
