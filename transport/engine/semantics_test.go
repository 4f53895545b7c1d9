package engine_test

import (
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// decode encodes one batch and decodes it.
func decode(t *testing.T, f encode.Format, events ...encode.Event) *engine.Batch {
	t.Helper()
	b, err := engine.NewDecoder(engine.DecoderConfig{}).Decode(encode.Append(nil, f, &encode.Batch{Time: 1.7e9, Events: events}))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func store(hashes, tokens int, size uint32) encode.Event {
	ev := encode.Event{Kind: engine.Stored, BlockSize: size, Medium: "GPU"}
	for i := range hashes {
		ev.Hashes = append(ev.Hashes, uint64(i)+1<<40)
	}
	for i := range tokens {
		ev.Tokens = append(ev.Tokens, uint32(i))
	}
	return ev
}

// raw is an event in hand-written msgpack.
func raw(bytes string) encode.Event { return encode.Event{Raw: []byte(bytes)} }

func with(ev encode.Event, change func(*encode.Event)) encode.Event {
	change(&ev)
	return ev
}

func TestSkippedEvents(t *testing.T) {
	removal := encode.Event{Kind: engine.Removed, Hashes: []uint64{1}, Medium: "GPU"}
	const hashes, tokens, size = "\xacblock_hashes", "\xa9token_ids", "\xaablock_size"
	for _, c := range []struct {
		name   string
		event  encode.Event
		reason engine.SkipReason // NumSkipReasons: used
		lost   uint32
	}{
		{"good store", store(2, 8, 4), engine.NumSkipReasons, 0},
		{"one token too many (LMCache)", store(1, 5, 4), engine.SkipTokenCount, 0},
		{"one token too few", store(2, 7, 4), engine.SkipTokenCount, 0},
		{"tokens without a block size", store(2, 8, 0), engine.SkipTokenCount, 0},
		{"hashes without tokens but with a size", store(2, 0, 4), engine.SkipTokenCount, 0},
		{"tokens without hashes", store(0, 8, 4), engine.SkipTokenCount, 0},
		{"no blocks", store(0, 0, 4), engine.NumSkipReasons, 0},
		{"store in an unknown medium", with(store(1, 4, 4), func(e *encode.Event) { e.Medium = "TAPE" }), engine.SkipMedium, 0},
		{"removal from an unknown medium", with(removal, func(e *encode.Event) { e.Medium = "TAPE" }), engine.SkipMedium, 0},
		{"medium in lower case", with(removal, func(e *encode.Event) { e.Medium = "cpu_pinned" }), engine.NumSkipReasons, 0},
		{"remote store", with(store(1, 4, 4), func(e *encode.Event) { e.Locality = "REMOTE" }), engine.SkipNotLocal, 0},
		{"store of unknown locality", with(store(1, 4, 4), func(e *encode.Event) { e.Locality = "NEAR" }), engine.SkipNotLocal, 0},
		{"remote removal", with(removal, func(e *encode.Event) { e.Locality = "REMOTE" }), engine.SkipNotLocal, 0},
		{"local store", with(store(1, 4, 4), func(e *encode.Event) { e.Locality = "LOCAL" }), engine.NumSkipReasons, 0},
		{"foreign store", with(store(1, 4, 4), func(e *encode.Event) { e.Ownership = "kvcr" }), engine.SkipForeign, 0},
		{"foreign removal", with(removal, func(e *encode.Event) { e.Ownership = "kvcr" }), engine.SkipForeign, 0},
		{"unknown tag", raw("\x91\xadBlockInactive"), engine.SkipUnknownTag, 0},
		{"ignored, as array", raw("\x92\xa7Ignored\x93\x01\x02\x03"), engine.SkipIgnored, 0},
		{"ignored, as map", raw("\x81\xa4type\xa7Ignored"), engine.SkipIgnored, 0},
		{"tier clear without a tier", raw("\x91\xb1TierBlocksCleared"), engine.SkipMedium, 1},
		{"tier clear of an unknown tier", raw("\x92\xb1TierBlocksCleared\xa4TAPE"), engine.SkipMedium, 0},
		{"removal without hashes", raw("\x92\xacBlockRemoved\xc0"), engine.SkipMalformed, 1},
		{"removal with text for a hash", raw("\x92\xacBlockRemoved\x91\xa1x"), engine.SkipMalformed, 1},
		{"removal with an empty digest", raw("\x92\xacBlockRemoved\x91\xc4\x00"), engine.SkipMalformed, 1},
		{"store with a negative token", raw("\x84\xa4type\xabBlockStored" + hashes + "\x91\x01" + tokens + "\x91\xff" + size + "\x01"), engine.SkipMalformed, 0},
		{"store with a token beyond 32 bits", raw("\x84\xa4type\xabBlockStored" + hashes + "\x91\x01" + tokens + "\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00" + size + "\x01"), engine.SkipMalformed, 0},
		{"store with a wide small token", raw("\x84\xa4type\xabBlockStored" + hashes + "\x91\x01" + tokens + "\x91\xd3\x00\x00\x00\x00\x00\x00\x00\x05" + size + "\x01"), engine.NumSkipReasons, 0},
		{"pairs that do not continue", raw("\x84\xa4type\xabBlockStored" + hashes + "\x91\x01" + tokens + "\x92\x92\x01\x02\x92\x03\x04" + size + "\x02"), engine.SkipMalformed, 0},
		{"pairs and single tokens", raw("\x84\xa4type\xabBlockStored" + hashes + "\x91\x01" + tokens + "\x92\x92\x01\x02\x02" + size + "\x02"), engine.SkipMalformed, 0},
		{"a triple", raw("\x84\xa4type\xabBlockStored" + hashes + "\x91\x01" + tokens + "\x91\x93\x01\x02\x03" + size + "\x01"), engine.SkipMalformed, 0},
		{"no type", raw("\x81" + hashes + "\x91\x01"), engine.SkipMalformed, 1},
		{"an integer", raw("\x07"), engine.SkipMalformed, 1},
		{"an empty array", raw("\x90"), engine.SkipMalformed, 1},
		{"extra keys for fewer blocks than there are", with(store(2, 8, 4), func(e *encode.Event) { e.ExtraKeys = [][]encode.Key{{{Text: "mm"}}} }), engine.SkipMalformed, 0},
		{"two salts", with(store(1, 4, 4), func(e *encode.Event) {
			e.ExtraKeys = [][]encode.Key{{{Text: "dynamo-cache-salt:a"}, {Text: "dynamo-cache-salt:b"}}}
		}), engine.SkipMalformed, 0},
		{"clear with a field that makes no sense", raw("\x83\xa4type\xb0AllBlocksCleared\xa6medium\x07\xa9group_idx\xff"), engine.NumSkipReasons, 0},
	} {
		good := store(1, 4, 4)
		b := decode(t, encode.VLLMMap, good, c.event, good)
		var want engine.SkipCounts
		events := 3
		if c.reason != engine.NumSkipReasons {
			want[c.reason]++
			events--
		}
		if b.Skipped != want || len(b.Events) != events || b.LostRemovals != c.lost {
			t.Errorf("%s: %d events, skipped %v, %d lost removals", c.name, len(b.Events), b.Skipped, b.LostRemovals)
		}
		// Its neighbours do not suffer.
		for _, ev := range []engine.Event{b.Events[0], b.Events[len(b.Events)-1]} {
			if ev.Kind != engine.Stored || !slices.Equal(ev.Tokens, good.Tokens) || !slices.Equal(ev.Hashes, good.Hashes) {
				t.Errorf("%s: neighbour is %+v", c.name, ev)
			}
		}
	}
}

// TestHybridModels: groups that are not prefix-indexable announce few hashes for
// many tokens. Their kind must still be learned.
func TestHybridModels(t *testing.T) {
	mamba := with(store(1, 3840, 768), func(e *encode.Event) { e.Group, e.SpecKind = 0, "mamba" })
	mla := with(store(5, 3840, 768), func(e *encode.Event) { e.Group, e.SpecKind = 3, "mla_attention" })
	masked := with(store(0, 256, 64), func(e *encode.Event) { e.Group, e.SpecKind = 1, "sliding_window" })
	for _, f := range []encode.Format{encode.VLLMArray, encode.VLLMMap} {
		b := decode(t, f, mamba, mla, masked)
		if len(b.Events) != 3 || b.Skipped.Total() != 0 {
			t.Fatalf("%v: %d events, skipped %v", f, len(b.Events), b.Skipped)
		}
		for i, want := range []struct {
			group     int64
			indexable bool
			tokens    int
		}{{0, false, 0}, {3, true, 3840}, {1, false, 0}} {
			ev := b.Events[i]
			indexable, known := ev.SpecKind.PrefixIndexable()
			if ev.Group != want.group || indexable != want.indexable || !known || len(ev.Tokens) != want.tokens {
				t.Errorf("%v: event %d: group %d kind %d, %d tokens", f, i, ev.Group, ev.SpecKind, len(ev.Tokens))
			}
		}
	}
}

func TestNamespaces(t *testing.T) {
	salted := with(store(2, 8, 4), func(e *encode.Event) {
		e.LoraName = "adp"
		e.ExtraKeys = [][]encode.Key{{{Text: "adp"}, {Text: "dynamo-cache-salt:tenant"}}, {{Text: "adp"}}}
	})
	untagged := with(store(1, 4, 4), func(e *encode.Event) { e.ExtraKeys = [][]encode.Key{{{Text: "tenant"}}} })
	both := with(store(1, 4, 4), func(e *encode.Event) { // a salt that is called like the adapter
		e.LoraName, e.ExtraKeys = "adp", [][]encode.Key{{{Text: "adp"}, {Text: "adp"}}}
	})
	b := decode(t, encode.VLLMMap, salted, untagged, both)
	if ev := b.Events[0]; ev.Salt != "tenant" || ev.LoraName != "adp" || ev.Extra != nil {
		t.Errorf("tagged salt: %+v", ev)
	}
	if ev := b.Events[1]; ev.Salt != "" || len(ev.Extra) != 1 || ev.Extra[0].Text != "tenant" || ev.Extra[0].HasOffset {
		t.Errorf("untagged salt: %+v", ev)
	}
	if ev := b.Events[2]; len(ev.Extra) != 1 || ev.Extra[0].Text != "adp" {
		t.Errorf("salt called like the adapter: %+v", ev)
	}
	old := decode(t, encode.VLLM011, with(store(1, 4, 4), func(e *encode.Event) { e.LoraID = 7 }))
	if ev := old.Events[0]; ev.LoraID != 7 || ev.LoraName != "" {
		t.Errorf("adapter without a name: %+v", ev)
	}
	mixed := decode(t, encode.SGLangArray, store(1, 4, 4), with(store(1, 4, 4), func(e *encode.Event) { e.Salt = "t" }))
	if len(mixed.Events) != 2 || mixed.Events[0].Salt != "" || mixed.Events[1].Salt != "t" {
		t.Errorf("salted beside unsalted: %+v", mixed.Events)
	}
}

func TestClears(t *testing.T) {
	b := decode(t, encode.VLLMMap, encode.Event{Kind: engine.Cleared}, encode.Event{Kind: engine.Cleared, Medium: "CPU"})
	a := decode(t, encode.VLLMArray, encode.Event{Kind: engine.Cleared}, encode.Event{Kind: engine.Cleared, Medium: "CPU"})
	for _, b := range []*engine.Batch{a, b} {
		if len(b.Events) != 2 || b.Events[0].Tier != indexer.AllTiers || b.Events[1].Tier != indexer.Host || b.Events[1].Kind != engine.Cleared {
			t.Errorf("%+v", b.Events)
		}
	}
}

func TestClocks(t *testing.T) {
	for _, c := range []struct {
		ts   string
		want float64
	}{
		{"\xcb\x41\xda\x30\x54\x98\x10\x00\x00", 1757500000.25},
		{"\xca\x4e\xd1\x82\xa5", 1757500032},
		{"\xce\x68\xc1\x53\xe0", 1757500384},
		{"\xcf\x00\x00\x01\x99\x33\x29\xc7\xfa", 1757500000.25},
		{"\xc0", 0}, {"\xff", 0}, {"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x01", 0}, {"\xcb\x7f\xf0\x00\x00\x00\x00\x00\x00", 0},
	} {
		b, err := engine.NewDecoder(engine.DecoderConfig{}).Decode([]byte("\x92" + c.ts + "\x90"))
		if err != nil || b.Time != c.want || b.Rank != -1 {
			t.Errorf("%x: %+v, %v", c.ts, b, err)
		}
	}
	if _, err := engine.NewDecoder(engine.DecoderConfig{}).Decode([]byte("\x92\xa1x\x90")); err == nil {
		t.Error("a text for a clock")
	}
}

// TestMultimodalInfos: the items of Dynamo's publishers reach Extra by their hashes.
func TestMultimodalInfos(t *testing.T) {
	head := "\x9c\xabBlockStored\x92\x01\x02\xc0\x92\x05\x06\x01\xc0\xa3GPU\xc0\xc0"
	infos := "\x92\xc0\x81\xaamm_objects\x92\x82\xa7mm_hash\x2a\xa7offsets\x91\x92\x00\x01\x81\xa7mm_hash\x2b"
	b := decode(t, encode.VLLMArray, raw(head+infos+"\x02\xaefull_attention"), raw(head+"\x92\xc0\x07\xc0\xc0"))
	if len(b.Events) != 2 {
		t.Fatalf("skipped %v", b.Skipped)
	}
	want := []engine.ExtraKey{{Block: 1, Digest: 42, HasOffset: true}, {Block: 1, Digest: 43, HasOffset: true}}
	if ev := b.Events[0]; !slices.Equal(ev.Extra, want) || ev.Group != 2 || ev.SpecKind != engine.SpecFullAttention {
		t.Errorf("%+v", ev)
	}
	if ev := b.Events[1]; len(ev.Extra) != 1 || ev.Extra[0].Block != 1 || ev.Extra[0].Digest == 0 || !ev.Extra[0].HasOffset {
		t.Errorf("an info of unknown shape must set its block apart: %+v", ev)
	}
}
