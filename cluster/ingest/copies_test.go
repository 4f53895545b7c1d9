package ingest

import (
	"fmt"
	"testing"

	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// vllm#55092: an engine that keeps two physical copies of a block removes it twice.
func TestPhysicalCopies(t *testing.T) {
	for _, count := range []bool{false, true} {
		t.Run(fmt.Sprintf("count=%v", count), func(t *testing.T) {
			runWith(t, nil, func(w *world) {
				e := w.engine("e1", false)
				w.registerAs(catalog.Registration{Instance: "w1", Endpoint: e.endpoint, CountCopies: count})
				e.publish(batch(store("", "abc")))
				e.publish(batch(store("", "abcdefg")))
				w.want("abcdefg", 7)
				e.publish(batch(remove("abc")))
				if count {
					w.want("abcdefg", 7)
				} else {
					w.want("abcdefg", 2)
				}
				e.publish(batch(remove("abc")))
				w.want("abcdefg", 2)
				e.publish(batch(store("ab", "c")))
				w.want("abcdefg", 7)
			})
		})
	}
}

// sglang#14934: a store below a block that was just removed, and was never stored again.
// trtllm#16335: an evicted ancestor hides the removals of what is below it.
func TestStoresBelowHoles(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(store("", "abc")))
		e.publish(batch(remove("a", "ab", "abc")))
		e.publish(batch(store("abc", "d")))
		w.want("abcd", 0, "d", 0)
		equal(t, "shown", w.source("w1").Ranks[0].Counters.Events[engine.Stored][Orphaned], 1)
		e.publish(batch(store("", letters(20))))
		e.publish(batch(remove("ab")))
		w.want(letters(20), 1)
	})
}

// A hash that does not name a prefix: nothing below it is credited for the life of the
// slot, and the rest of the stream is (rule N2).
func TestContentOnlyHashes(t *testing.T) {
	runWith(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(store("", "ab"), store("", "xy")))
		again := store("x", "b") // the page b again, with the hash it has everywhere
		again.Hashes[0] = hash("ab")
		e.publish(batch(again))
		below := store("", "c")
		below.HasParent, below.Parent = true, hash("ab")
		e.publish(batch(below, store("xy", "z")))
		w.want("abc", 2, "xbc", 1, "xyz", 3)
		r := w.source("w1").Ranks[0]
		equal(t, "rejected", r.Counters.Events[engine.Stored][Rejected], 1)
		if r.Translator.Tainted == 0 {
			t.Error("no taint is shown")
		}
	})
}
