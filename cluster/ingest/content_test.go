package ingest

import (
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// of puts an event into a cache group.
func of(group int64, kind string, ev encode.Event) encode.Event {
	ev.Group, ev.SpecKind = group, kind
	return ev
}

// resized gives a store another block size: the same tokens in fewer or more blocks.
func resized(size uint32, ev encode.Event) encode.Event {
	ev.BlockSize = size
	for n := len(ev.Tokens) / int(size); len(ev.Hashes) != n; {
		if len(ev.Hashes) > n {
			ev.Hashes = ev.Hashes[:n]
		} else {
			ev.Hashes = append(ev.Hashes, ev.Hashes[0]+uint64(len(ev.Hashes)))
		}
	}
	return ev
}

// AMD-AGI/Infera#98: the same hash in a mamba group and in the group that is indexed.
func TestHashInTwoGroups(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		mamba := store("", "abcde")
		mamba.Hashes = []uint64{hash("abcde")} // many tokens, one hash
		mamba.BlockSize = 20
		e.publish(batch(
			of(0, "mamba", mamba), of(1, "mamba", mamba), of(2, "mamba", mamba),
			of(3, "mla_attention", store("", "abcde")),
		))
		w.want("abcde", 5)
		e.publish(batch(of(0, "", remove("abcde")), of(1, "", remove("abcde"))))
		w.want("abcde", 5)
		e.publish(batch(of(3, "", remove("abcde"))))
		w.want("abcde", 4)
		n := w.source("w1").Ranks[0].Counters
		equal(t, "stores of other groups", n.Events[engine.Stored][OtherGroup], 3)
		equal(t, "removals of other groups", n.Events[engine.Removed][OtherGroup], 2)
		equal(t, "blocks of another size", n.WrongSizeBlocks, 0)
	})
}

// llm-d-router#2362: one dense group among sliding windows of other block sizes.
func TestFiveGroups(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(
			of(0, "full_attention", store("", "abcd")),
			of(1, "sliding_window", resized(2, store("", "ab"))), of(2, "sliding_window", store("", "xyz")),
			of(3, "sliding_window_mla", store("", "xyz")), of(4, "chunked_local_attention", store("", "xyz")),
		))
		w.want("abcd", 4, "xyz", 0)
		e.publish(batch(of(2, "", remove("ab")), of(1, "", remove("a"))))
		w.want("abcd", 4)
	})
}

// The kinds of groups, when they are said late or never.
func TestGroupKinds(t *testing.T) {
	for _, c := range []struct {
		name string
		evs  []encode.Event
		want []any
	}{
		{"no group", []encode.Event{store("", "ab")}, []any{"ab", 2}},
		{"group 0 without a kind", []encode.Event{of(0, "", store("", "ab"))}, []any{"ab", 2}},
		{"group 1 without a kind", []encode.Event{of(1, "", store("", "ab"))}, []any{"ab", 0}},
		{"group 1 with a kind", []encode.Event{of(1, "full_attention", store("", "ab"))}, []any{"ab", 2}},
		{"learned, then not said", []encode.Event{of(1, "sink_full_attention", store("", "ab")), of(1, "", store("ab", "c"))}, []any{"abc", 3}},
		{"learned as windowed", []encode.Event{of(0, "sliding_window", store("", "ab")), of(0, "", store("", "xy"))}, []any{"ab", 0, "xy", 0}},
		{"group 0 turns out windowed", []encode.Event{of(0, "", store("", "ab")), of(0, "sliding_window", store("ab", "c"))}, []any{"abc", 0}},
		{"offload without a group", []encode.Event{of(0, "full_attention", store("", "ab")), on("CPU", store("", "ab")), of(0, "", remove("a", "ab"))}, []any{"ab", 0}},
		{"second dense group", []encode.Event{of(0, "full_attention", store("", "ab")), of(1, "full_attention", store("", "xy")), of(1, "", remove("ab"))}, []any{"ab", 2, "xy", 0}},
		{"the dense group with the registered size", []encode.Event{of(0, "full_attention", resized(2, store("", "ab"))), of(1, "full_attention", store("", "xy"))}, []any{"ab", 0, "xy", 2}},
		{"windowed without a group", []encode.Event{of(-1, "sliding_window", store("", "ab"))}, []any{"ab", 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", false)
				w.register("w1", e)
				for _, ev := range c.evs {
					e.publish(batch(ev))
				}
				w.want(c.want...)
			})
		})
	}
}

// dynamo#1232: another block size is nowhere silent.
func TestBlockSizeMismatch(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(resized(8, store("", "abcd")), resized(2, store("", "xy"))))
		w.want("abcd", 0, "xy", 0)
		r := w.source("w1").Ranks[0]
		equal(t, "blocks", r.Counters.WrongSizeBlocks, 6)
		equal(t, "events", r.Counters.Events[engine.Stored][WrongBlockSize], 2)
		equal(t, "size seen", r.WrongBlockSize, 2)
		// llm-d-router#2889: one large host block is not four small hits.
		e.publish(batch(store("", "ab"), on("CPU", resized(16, store("", "abcd")))))
		w.want("ab", 2)
		equal(t, "host", w.tier("abcd", indexer.Host), 2)
	})
}

// sglang#39108: tiers are independent claims.
func TestTiers(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(store("", "abc"), on("CPU_PINNED", store("", "abc"))))
		e.publish(batch(remove("a", "ab", "abc")))
		w.want("abc", 0)
		equal(t, "host", w.tier("abc", indexer.Host), 3)
		e.publish(batch(store("", "ab"), on("cpu", remove("abc"))))
		w.want("abc", 2)
		equal(t, "host", w.tier("abc", indexer.Host), 2)
		// dynamo#14796: a move between tiers that nobody announced.
		e.publish(batch(on("DISK", store("ab", "c")), on("CPU_PINNED", remove("abc"))))
		equal(t, "disk", w.tier("abc", indexer.Disk), 3)
		e.publish(batch(on("EXTERNAL", store("abc", "d"))))
		w.want("abcd", 2)
		equal(t, "disk of abcd", w.tier("abcd", indexer.Disk), 3)
		equal(t, "external", w.tier("abcd", indexer.External), 4)
		// A clear that names a tier, then one that does not.
		e.publish(batch(on("GPU", cleared())))
		w.want("abcd", 0)
		equal(t, "host", w.tier("abcd", indexer.External), 4)
		e.publish(batch(cleared()))
		equal(t, "external after the clear", w.tier("abcd", indexer.External), 0)
		equal(t, "held", w.source("w1").Ranks[0].Translator.Mapped, 0)
	})
}

// vllm#43468, E9: a hash-only announcement says where a block is, not what it is.
func TestPlaceholders(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		hashOnly := encode.Event{Kind: engine.Stored, Hashes: []uint64{hash("a"), hash("q")}, Medium: "CPU", Group: -1}
		e.publish(batch(store("", "ab"), hashOnly, remove("a", "ab")))
		w.want("ab", 0)
		equal(t, "host", w.tier("ab", indexer.Host), 1)
		n := w.source("w1").Ranks[0].Counters
		equal(t, "claimed", n.Claimed, 1)
		equal(t, "unknown", n.Unknown, 1)
		equal(t, "lost", w.asked, 0)
	})
}

// Remote and foreign copies are not this worker's.
func TestNotLocal(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		remote, foreign, odd := store("", "ab"), store("", "cd"), on("TAPE", store("", "ef"))
		remote.Locality, foreign.Ownership = "REMOTE", "kvcr"
		e.publish(batch(remote, foreign, odd, store("", "x")))
		w.want("ab", 0, "cd", 0, "ef", 0, "x", 1)
		n := w.source("w1").Ranks[0].Counters
		equal(t, "not local", n.Skipped[engine.SkipNotLocal], 1)
		equal(t, "foreign", n.Skipped[engine.SkipForeign], 1)
		equal(t, "medium", n.Skipped[engine.SkipMedium], 1)
	})
}

// sglang#24568, trtllm#18156: one prompt under several namespaces.
func TestNamespaces(t *testing.T) {
	h := catalog.Holder{Instance: "w1"}
	ns := func(hashes []uint64, ev encode.Event, change func(*encode.Event)) encode.Event {
		ev.Hashes = hashes
		change(&ev)
		return ev
	}
	child := store("a", "b")
	for _, c := range []struct {
		name       string
		root       func(*encode.Event)
		lora, salt string
	}{
		{"none", func(*encode.Event) {}, "", ""},
		{"lora", func(ev *encode.Event) { ev.LoraName = "adapter-a" }, "adapter-a", ""},
		{"untagged salt", func(ev *encode.Event) { ev.ExtraKeys = [][]encode.Key{{{Text: "tenant-a"}}} }, "", "tenant-a"},
		{"tagged salt", func(ev *encode.Event) { ev.ExtraKeys = [][]encode.Key{{{Text: "dynamo-cache-salt:tenant-a"}}} }, "", "tenant-a"},
		{"lora and salt", func(ev *encode.Event) {
			ev.LoraName = "adapter-a"
			ev.ExtraKeys = [][]encode.Key{{{Text: "adapter-a"}, {Text: "tenant-a"}}}
		}, "adapter-a", "tenant-a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, nil, func(w *world) {
				e := w.engine("e1", false)
				w.register("w1", e)
				e.publish(batch(ns([]uint64{1}, store("", "a"), c.root)))
				down := child
				down.Hashes, down.Parent = []uint64{2}, 1
				e.publish(batch(down)) // says nothing: inherited
				for _, q := range [][2]string{{"", ""}, {"adapter-a", ""}, {"", "tenant-a"}, {"adapter-a", "tenant-a"}, {"", "tenant-b"}} {
					want := 0
					if q == [2]string{c.lora, c.salt} {
						want = 2
					}
					if got := w.scores(tokens("ab"), q[0], q[1])[h]; got != want {
						t.Errorf("lora %q salt %q: %d, want %d", q[0], q[1], got, want)
					}
				}
			})
		})
	}
}

func TestSGLangSalt(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		ev := store("", "ab")
		ev.Salt = "tenant-a"
		for _, f := range []encode.Format{encode.SGLangArray, encode.SGLangMap} {
			e.publish(encode.Append(nil, f, &encode.Batch{Time: 1, Rank: -1, Events: []encode.Event{ev}}))
		}
		w.want("ab", 0)
		equal(t, "salted", w.scores(tokens("ab"), "", "tenant-a")[catalog.Holder{Instance: "w1"}], 2)
	})
}

// Registered defaults hold for events that say nothing.
func TestRegisteredNamespace(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.registerAs(catalog.Registration{Instance: "w1", Endpoint: e.endpoint, Lora: "l", Salt: "s"})
		named := store("", "x")
		named.LoraName = "other"
		e.publish(batch(store("", "ab"), named))
		h := catalog.Holder{Instance: "w1"}
		w.want("ab", 0)
		equal(t, "default", w.scores(tokens("ab"), "l", "s")[h], 2)
		equal(t, "named", w.scores(tokens("x"), "other", "s")[h], 1)
	})
}

// An adapter of which only the number is known must not be taken for the base model.
func TestLoraNumberOnly(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		ev := store("", "ab")
		ev.LoraID = 7
		e.publish(encode.Append(nil, encode.VLLM091, &encode.Batch{Time: 1, Events: []encode.Event{ev, store("", "x")}}))
		w.want("ab", 0, "x", 1)
		e.publish(encode.Append(nil, encode.VLLM091, &encode.Batch{Time: 1, Events: []encode.Event{remove("a", "ab")}}))
		equal(t, "held", w.source("w1").Ranks[0].Translator.Mapped, 1)
	})
}

// Images and prompt embeddings go into the hash of their block; the salt does not.
func TestMultimodalBlocks(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		ev := store("", "abc")
		ev.ExtraKeys = [][]encode.Key{
			{{Text: "img-0", HasOffset: true, Offset: -2}, {Text: "tenant-a"}},
			{{Text: "img-1", HasOffset: true}},
			{{Bytes: []byte{1, 2, 3, 4}}},
		}
		e.publish(batch(ev))
		seed := blockhash.NamespaceSeed("", "tenant-a")
		locals := blockhash.Content{
			Tokens: tokens("abc"), BlockSize: testBlock, Window: testBlock,
			Multimodal: []blockhash.Item{
				{Block: 0, Hash: blockhash.ItemHash([]byte("img-0"))}, {Block: 1, Hash: blockhash.ItemHash([]byte("img-1"))},
				{Block: 2, Hash: blockhash.ItemHash([]byte{1, 2, 3, 4})},
			},
		}.AppendLocals(nil, seed)
		equal(t, "with its images", w.depth(locals), 3)
		w.want("abc", 0)
		// Later in a prompt a bare text is an old image identifier, never a salt.
		next := store("abc", "de")
		next.ExtraKeys = [][]encode.Key{nil, {{Text: "img-2"}}}
		e.publish(batch(next))
		locals = blockhash.Content{
			Tokens: tokens("de"), BlockSize: testBlock, Window: testBlock,
			Multimodal: []blockhash.Item{{Block: 1, Hash: blockhash.ItemHash([]byte("img-2"))}},
		}.AppendLocals(locals, seed)
		equal(t, "with the next image", w.depth(locals), 5)
	})
}

// EAGLE pages are hashed over one token more, and the query side is told.
func TestBigrams(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		equal(t, "before", w.m.Bigram(1), false)
		ev := store("", "ab")
		ev.Bigram = true
		ev.Tokens = append(ev.Tokens, 99)
		e.publish(encode.Append(nil, encode.SGLangMap, &encode.Batch{Time: 1, Rank: -1, Events: []encode.Event{ev}}))
		equal(t, "after", w.m.Bigram(1), true)
		locals := blockhash.Content{Tokens: ev.Tokens, BlockSize: testBlock, Window: testBlock + 1}.AppendLocals(nil, blockhash.Seed)
		equal(t, "depth", w.depth(locals), 2)
	})
}

// What the translator refuses of one event costs no other.
func TestRejectedEvents(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(store("", letters(20))))
		twice := store("", "xyx")
		twice.Hashes[2] = twice.Hashes[0] // dynamo#6569
		self := store("q", "r")
		self.Hashes[0] = self.Parent // sglang#13488
		e.publish(batch(twice, store(letters(20), "u"), self))
		w.want(letters(21), 21, "xyx", 0)
		n := w.source("w1").Ranks[0].Counters
		equal(t, "rejected", n.Events[engine.Stored][Rejected], 2)
		equal(t, "lives", w.asked, 0)
	})
}

// llm-d-kv-cache#347: blocks whose parents came by transfer wait, without credit.
func TestOrphansAreShown(t *testing.T) {
	run(t, nil, func(w *world) {
		e, o := w.engine("e1", false), w.engine("e2", false)
		w.register("w1", e)
		w.register("w2", o)
		o.publish(batch(store("", "ab")))
		e.publish(batch(store("ab", "cd")))
		w.want("abcd", 0, "cd", 0)
		equal(t, "w2", w.score("abcd", "w2"), 2)
		r := w.source("w1").Ranks[0]
		equal(t, "orphans", r.Translator.Orphans, 2)
		equal(t, "events", r.Counters.Events[engine.Stored][Orphaned], 1)
		e.publish(batch(remove("zz")))
		equal(t, "unknown removals", w.source("w1").Ranks[0].Counters.Events[engine.Removed][UnknownBlock], 1)
	})
}

// depth is the device score of w1 for local hashes.
func (w *world) depth(locals []uint64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.index.NewReader()
	defer r.Close()
	var s indexer.Scores
	r.Match(indexer.Query{Group: 1, Locals: locals, Partition: indexer.PartitionID(w.m.cfg.Layout.Partition(1, locals[0], 0))}, &s)
	for _, row := range s.Rows {
		return int(row.Depth)
	}
	return 0
}
