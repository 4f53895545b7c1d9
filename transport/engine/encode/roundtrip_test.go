package encode

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/transport/engine"
	"pgregory.net/rapid"
)

// TestRoundTrip: what any format can say of a random batch comes back the same.
func TestRoundTrip(t *testing.T) {
	for _, f := range Formats() {
		t.Run(f.String(), func(t *testing.T) {
			d := engine.NewDecoder(engine.DecoderConfig{}) // one for all: state must not leak
			rapid.Check(t, func(t *rapid.T) {
				b := &Batch{
					Time: float64(rapid.Int64Range(1e9, 4e9).Draw(t, "seconds")) + 0.25,
					Rank: rapid.Int64Range(-1, 1<<20).Draw(t, "rank"),
				}
				var want []engine.Event
				var skipped engine.SkipCounts
				for range rapid.IntRange(0, 8).Draw(t, "events") {
					ev := drawEvent(t, f)
					b.Events = append(b.Events, ev)
					if reason, skip := expectSkip(f, &ev); skip {
						skipped[reason]++
						continue
					}
					want = append(want, expect(f, &ev))
				}
				payload := Append(nil, f, b)
				got, err := d.Decode(payload)
				if err != nil {
					t.Fatalf("%v\n%x", err, payload)
				}
				rank := b.Rank
				switch {
				case specs[f].noRank:
					rank = -1
				case specs[f].mooncake:
					rank = 0
				}
				if got.Rank != rank || got.Time != b.Time || got.Trailing || got.Skipped != skipped {
					t.Fatalf("rank %d time %v trailing %v skipped %v, want %d %v false %v", got.Rank, got.Time, got.Trailing, got.Skipped, rank, b.Time, skipped)
				}
				if diff := cmp.Diff(want, got.Events, cmpopts.EquateEmpty()); diff != "" {
					t.Fatalf("%s\n%x", diff, payload)
				}
			})
		})
	}
}

var words = []string{"", "adapter-a", "t", "a-name-that-is-longer-than-thirty-one-bytes", "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}

func drawHash(t *rapid.T) uint64 {
	// All widths: a random number shifted right by a random amount, either sign.
	h := rapid.Uint64().Draw(t, "hash") >> rapid.IntRange(0, 63).Draw(t, "shift")
	if rapid.Bool().Draw(t, "negative") {
		h = -h
	}
	return h
}

func drawEvent(t *rapid.T, f Format) Event {
	s := &specs[f]
	word := func(name string) string { return rapid.SampledFrom(words).Draw(t, name) }
	tier := indexer.Tier(rapid.IntRange(0, 3).Draw(t, "tier"))
	ev := Event{Kind: engine.Kind(rapid.IntRange(1, 3).Draw(t, "kind")), Group: -1, Medium: f.Medium(tier)}
	if rapid.IntRange(0, 9).Draw(t, "no medium") == 0 {
		ev.Medium = ""
	}
	if ev.Kind == engine.Cleared {
		return ev
	}
	n := rapid.IntRange(0, 24).Draw(t, "blocks")
	if s.mooncake {
		n = min(n, 1)
	}
	for range n {
		ev.Hashes = append(ev.Hashes, drawHash(t))
	}
	if !s.mooncake && rapid.IntRange(0, 4).Draw(t, "bin") == 0 {
		size := rapid.SampledFrom([]int{1, 8, 16, 32}).Draw(t, "digest size")
		ev.Digests = [][]byte{}
		for i, h := range ev.Hashes {
			var full [32]byte
			binary.BigEndian.PutUint64(full[24:], h)
			full[0], full[20] = 0xaa, 0xbb
			if size < 8 {
				ev.Hashes[i] = h & (1<<(8*size) - 1)
			}
			ev.Digests = append(ev.Digests, full[32-size:])
		}
	}
	if rapid.Bool().Draw(t, "group") {
		ev.Group = rapid.Int64Range(0, 300).Draw(t, "group index")
	}
	ev.Locality = rapid.SampledFrom([]string{"", "LOCAL", "LOCAL", "REMOTE"}).Draw(t, "locality")
	ev.Ownership = rapid.SampledFrom([]string{"", "", "", "kvcr"}).Draw(t, "owner")
	ev.Backend = word("backend")
	if ev.Kind == engine.Removed {
		return ev
	}
	ev.HasParent = rapid.Bool().Draw(t, "has parent")
	if ev.HasParent {
		ev.Parent = drawHash(t)
	}
	ev.LoraID = rapid.Int64Range(0, 3).Draw(t, "lora id")
	ev.LoraName, ev.Salt, ev.Session = word("lora"), word("salt"), word("session")
	if s.mooncake {
		return ev
	}
	ev.SpecKind = rapid.SampledFrom([]string{"", "full_attention", "mla_attention", "sink_full_attention", "mamba"}).Draw(t, "kind of group")
	if ev.SpecKind != "" {
		ev.SlidingWindow = uint32(rapid.IntRange(0, 200).Draw(t, "window"))
	}
	if rapid.IntRange(0, 5).Draw(t, "placeholder") == 0 {
		return ev
	}
	ev.BlockSize = uint32(rapid.SampledFrom([]int{1, 2, 4, 16}).Draw(t, "block size"))
	tokens := int(ev.BlockSize) * n
	ev.Bigram = f.Bigrams() && n > 0 && rapid.Bool().Draw(t, "bigram")
	if ev.Bigram {
		tokens++
	}
	if tokens > 0 {
		ev.Tokens = make([]uint32, tokens)
		seed := rapid.Uint64().Draw(t, "tokens")
		alike := rapid.Bool().Draw(t, "alike")
		for i := range ev.Tokens {
			seed = seed*6364136223846793005 + 1442695040888963407
			ev.Tokens[i] = uint32(seed>>32) >> (seed >> 5 & 31)
			if alike {
				ev.Tokens[i] = uint32(seed>>40)%60000 + 256
			}
		}
	}
	switch rapid.IntRange(0, 2).Draw(t, "extra") {
	case 1:
		ev.ExtraKeys = make([][]Key, n)
	case 2:
		ev.ExtraKeys = make([][]Key, n)
		for i := range ev.ExtraKeys {
			ev.ExtraKeys[i] = drawKeys(t, ev.LoraName)
		}
	}
	return ev
}

func drawKeys(t *rapid.T, lora string) []Key {
	var keys []Key
	if lora != "" {
		keys = append(keys, Key{Text: lora})
	}
	for range rapid.IntRange(0, 2).Draw(t, "keys") {
		k := Key{Text: fmt.Sprintf("key-%d", rapid.IntRange(0, 50).Draw(t, "key"))}
		switch rapid.IntRange(0, 2).Draw(t, "shape") {
		case 1:
			k.HasOffset, k.Offset = true, rapid.Int64Range(-300, 300).Draw(t, "offset")
		case 2:
			k = Key{Bytes: []byte(k.Text)}
		}
		keys = append(keys, k)
	}
	return keys
}

// expectSkip says which events are left out on purpose.
func expectSkip(f Format, ev *Event) (engine.SkipReason, bool) {
	s := &specs[f]
	if ev.Kind == engine.Cleared {
		return 0, false
	}
	if s.ownership && ev.Ownership != "" {
		return engine.SkipForeign, true
	}
	if s.locality && ev.Locality == "REMOTE" {
		return engine.SkipNotLocal, true
	}
	return 0, false
}

// expect is the normalised form of an event, from what its format can carry.
func expect(f Format, ev *Event) engine.Event {
	s := &specs[f]
	tierOf := map[string]indexer.Tier{
		"GPU": indexer.Device, "gpu": indexer.Device, "CPU": indexer.Host, "cpu": indexer.Host, "CPU_PINNED": indexer.Host,
		"STORAGE": indexer.Disk, "DISK": indexer.Disk, "disk": indexer.Disk, "EXTERNAL": indexer.External, "external": indexer.External,
	}
	want := engine.Event{Kind: ev.Kind, Tier: tierOf[ev.Medium], Group: -1}
	if ev.Kind == engine.Cleared {
		if ev.Medium == "" || s.mooncake {
			want.Tier = indexer.AllTiers
		}
		if s.mooncake && ev.Medium != "" {
			want.Tier = tierOf[ev.Medium] // TierBlocksCleared is its legacy alias
		}
		return want
	}
	want.Hashes = append([]uint64{}, ev.Hashes...)
	inMap, slots := s.vllmKeys, s.stored
	if ev.Kind == engine.Removed {
		slots = map[bool]int{true: 9}[s.removed >= 3]
	}
	if inMap || slots >= 9 {
		want.Group = ev.Group
	}
	if s.mooncake {
		want.Backend = ev.Backend
	}
	if ev.Kind == engine.Removed {
		return want
	}
	if s.mooncake {
		want.Placeholder, want.Salt, want.LoraName = true, ev.Salt, ev.LoraName
		return want
	}
	want.HasParent, want.Parent = ev.HasParent, ev.Parent
	want.LoraID = ev.LoraID
	want.Tokens, want.BlockSize, want.Bigram = ev.Tokens, ev.BlockSize, ev.Bigram
	want.Placeholder = ev.BlockSize == 0
	if inMap || slots >= 7 {
		want.LoraName = ev.LoraName
	}
	if f == SGLang0518 || f == SGLang0521 {
		want.Salt = ev.Salt
	}
	if s.session {
		want.Session = ev.Session
	}
	if inMap || slots >= 11 {
		want.SpecKind = map[string]engine.SpecKind{"full_attention": engine.SpecFullAttention, "mla_attention": engine.SpecMLAAttention,
			"sink_full_attention": engine.SpecSinkFullAttention, "mamba": engine.SpecOther}[ev.SpecKind]
	}
	if inMap || slots >= 8 {
		for block, keys := range ev.ExtraKeys {
			for i, k := range keys {
				switch {
				case i == 0 && k.Text == ev.LoraName && k.Bytes == nil && ev.LoraName != "":
				case k.Bytes != nil:
					want.Extra = append(want.Extra, engine.ExtraKey{Block: block, Digest: blockhash.ItemHash(k.Bytes)})
				default:
					want.Extra = append(want.Extra, engine.ExtraKey{Block: block, Text: k.Text, Digest: blockhash.ItemHash([]byte(k.Text)), HasOffset: k.HasOffset})
				}
			}
		}
	}
	return want
}
