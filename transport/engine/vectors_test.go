package engine

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// vectors is testdata/wire-vectors.json, as far as decoding goes.
type vectors struct {
	Payloads []struct {
		Name, Hex string
		Bytes     int
		Expect    struct {
			TS     float64  `json:"ts"`
			Unit   string   `json:"ts_unit"`
			Rank   *int64   `json:"rank"`
			Events []vEvent `json:"events"`
		}
	}
	SequenceFrames []struct {
		Name, Hex string
		Value     *string
	} `json:"sequence_frames"`
	Messages []struct {
		Name, Socket string
		Frames       []string
		Expect       struct {
			Topic   *string
			Seq     string
			Payload string
			Reject  bool
			End     bool
		}
	}
	Malformed []struct {
		Name, Description string
		Hex               *string
		Expect            struct {
			Batch            string
			Applied, Skipped int
			Parent           *string
		}
	}
}

type vEvent struct {
	Kind        string
	Hashes      []string
	Parent      *string
	Tokens      []uint32
	BlockSize   uint32 `json:"block_size"`
	Tier        string
	LoraID      *int64  `json:"lora_id"`
	LoraName    *string `json:"lora_name"`
	Salt        *string
	ExtraKeys   [][]any `json:"extra_keys"`
	Group       *int64
	SpecKind    *string `json:"spec_kind"`
	Session     *string
	Indexable   *bool
	Bigram      bool
	Placeholder bool
	Backend     string
}

func loadVectors(t testing.TB) *vectors {
	t.Helper()
	raw, err := os.ReadFile("testdata/wire-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	v := new(vectors)
	if err := json.Unmarshal(raw, v); err != nil {
		t.Fatal(err)
	}
	if len(v.Payloads) < 18 || len(v.Malformed) < 20 || len(v.Messages) < 10 {
		t.Fatalf("vectors are incomplete: %d payloads, %d malformed, %d messages", len(v.Payloads), len(v.Malformed), len(v.Messages))
	}
	return v
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func deref[T any](p *T, absent T) T {
	if p == nil {
		return absent
	}
	return *p
}

func TestPayloadVectors(t *testing.T) {
	d := NewDecoder(DecoderConfig{})
	for _, v := range loadVectors(t).Payloads {
		payload := unhex(t, v.Hex)
		if len(payload) != v.Bytes {
			t.Errorf("%s: %d bytes, want %d", v.Name, len(payload), v.Bytes)
		}
		b, err := d.Decode(payload)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		ts := v.Expect.TS
		if v.Expect.Unit == "ms" {
			ts /= 1000
		}
		if b.Time != ts || b.Rank != deref(v.Expect.Rank, -1) || b.Trailing || b.Skipped != (SkipCounts{}) {
			t.Errorf("%s: time %v rank %d trailing %v skipped %v", v.Name, b.Time, b.Rank, b.Trailing, b.Skipped)
		}
		if len(b.Events) != len(v.Expect.Events) {
			t.Errorf("%s: %d events, want %d", v.Name, len(b.Events), len(v.Expect.Events))
			continue
		}
		for i, want := range v.Expect.Events {
			checkEvent(t, v.Name, &b.Events[i], want)
		}
	}
}

func checkEvent(t *testing.T, name string, got *Event, want vEvent) {
	t.Helper()
	kind := map[string]Kind{"stored": Stored, "removed": Removed, "cleared": Cleared}[want.Kind]
	tier := map[string]indexer.Tier{"device": indexer.Device, "host_pinned": indexer.Host, "disk": indexer.Disk, "external": indexer.External, "": indexer.AllTiers}[want.Tier]
	spec := map[string]SpecKind{"": SpecUnknown, "full_attention": SpecFullAttention, "sliding_window": SpecOther}[deref(want.SpecKind, "")]
	if got.Kind != kind || got.Tier != tier || got.Group != deref(want.Group, -1) {
		t.Errorf("%s: kind %d tier %v group %d", name, got.Kind, got.Tier, got.Group)
	}
	var hashes []uint64
	for _, h := range want.Hashes {
		u, _ := strconv.ParseUint(h, 10, 64)
		hashes = append(hashes, u)
	}
	if !slices.Equal(got.Hashes, hashes) {
		t.Errorf("%s: hashes %d, want %d", name, got.Hashes, hashes)
	}
	if kind != Stored {
		return
	}
	parent, _ := strconv.ParseUint(deref(want.Parent, "0"), 10, 64)
	if got.HasParent != (want.Parent != nil) || got.Parent != parent {
		t.Errorf("%s: parent %v %d, want %d", name, got.HasParent, got.Parent, parent)
	}
	if !slices.Equal(got.Tokens, want.Tokens) || got.BlockSize != want.BlockSize || got.Bigram != want.Bigram || got.Placeholder != want.Placeholder {
		t.Errorf("%s: tokens %d size %d bigram %v placeholder %v", name, got.Tokens, got.BlockSize, got.Bigram, got.Placeholder)
	}
	if got.LoraID != deref(want.LoraID, 0) || got.LoraName != deref(want.LoraName, "") || got.Salt != deref(want.Salt, "") ||
		got.Session != deref(want.Session, "") || got.SpecKind != spec || got.Backend != want.Backend {
		t.Errorf("%s: %+v", name, got)
	}
	if indexable, known := got.SpecKind.PrefixIndexable(); known && indexable != deref(want.Indexable, true) {
		t.Errorf("%s: indexable %v", name, indexable)
	}
	if name == "E7" {
		// adp is the LoRA name; the image has an offset, the salt has none.
		if len(got.Extra) != 3 || got.Extra[0].Text != "mm-abc" || !got.Extra[0].HasOffset || got.Extra[1].Text != "salt-1" ||
			got.Extra[1].HasOffset || got.Extra[2].Text != "" || got.Extra[2].Digest == 0 {
			t.Errorf("E7: extra %+v", got.Extra)
		}
	} else if got.Extra != nil {
		t.Errorf("%s: extra %+v", name, got.Extra)
	}
}

func TestMalformedVectors(t *testing.T) {
	d := NewDecoder(DecoderConfig{})
	for _, v := range loadVectors(t).Malformed {
		payload := []byte(strings.Repeat("\x91", 10000) + "\xc0")
		if v.Hex != nil {
			payload = unhex(t, *v.Hex)
		}
		b, err := d.Decode(payload)
		switch v.Expect.Batch {
		case "reject":
			if err == nil {
				t.Errorf("%s (%s): accepted", v.Name, v.Description)
			}
		case "no_crash": // our rule: trailing bytes are accepted and flagged
			if err != nil || !b.Trailing {
				t.Errorf("%s (%s): %v", v.Name, v.Description, err)
			}
		case "accept":
			if err != nil {
				t.Errorf("%s (%s): %v", v.Name, v.Description, err)
				continue
			}
			if len(b.Events) != v.Expect.Applied || b.Skipped.Total() != v.Expect.Skipped {
				t.Errorf("%s (%s): %d applied, skipped %v", v.Name, v.Description, len(b.Events), b.Skipped)
			}
			if v.Expect.Parent != nil && (!b.Events[0].HasParent || b.Events[0].Parent != 0) {
				t.Errorf("%s: parent %v", v.Name, b.Events[0].HasParent)
			}
		default:
			t.Errorf("%s: unknown expectation %q", v.Name, v.Expect.Batch)
		}
	}
}

func TestMessageVectors(t *testing.T) {
	vs := loadVectors(t)
	payloads := map[string][]byte{}
	for _, p := range vs.Payloads {
		payloads["<"+p.Name+">"] = unhex(t, p.Hex)
	}
	for _, v := range vs.Messages {
		if v.Name == "replay-request" {
			continue // written by the transport
		}
		var frames [][]byte
		for _, f := range v.Frames {
			p, ok := payloads[f]
			if !ok {
				p = unhex(t, f)
			}
			frames = append(frames, p)
		}
		shapes := [][][]byte{frames}
		parse := func(f [][]byte) ([]byte, uint64, []byte, bool, error) {
			topic, seq, payload, err := ParseLive(f)
			return topic, seq, payload, false, err
		}
		if v.Socket == "DEALER" {
			parse = ParseReplay
			shapes = append(shapes, frames[1:]) // with and without the delimiter
		}
		for _, f := range shapes {
			topic, seq, payload, end, err := parse(f)
			if (err != nil) != v.Expect.Reject || end != v.Expect.End {
				t.Errorf("%s: end %v, error %v", v.Name, end, err)
				continue
			}
			if err != nil {
				if !errors.Is(err, ErrFrames) {
					t.Errorf("%s: %v", v.Name, err)
				}
				continue
			}
			if end {
				continue
			}
			if want, _ := strconv.ParseUint(v.Expect.Seq, 10, 64); seq != want {
				t.Errorf("%s: sequence %d, want %d", v.Name, seq, want)
			}
			if want := payloads["<"+v.Expect.Payload+">"]; string(payload) != string(want) {
				t.Errorf("%s: payload %x", v.Name, payload)
			}
			if v.Expect.Topic != nil && string(topic) != *v.Expect.Topic {
				t.Errorf("%s: topic %q", v.Name, topic)
			}
		}
	}
	for _, v := range vs.SequenceFrames {
		if v.Name == "topic-llm-d" {
			continue
		}
		seq, err := parseSequence(unhex(t, v.Hex))
		if (err == nil) != (v.Value != nil) || err == nil && strconv.FormatUint(seq, 10) != *v.Value {
			t.Errorf("%s: %d, %v", v.Name, seq, err)
		}
	}
	end := unhex(t, "ffffffffffffffff")
	if _, _, _, err := ParseLive([][]byte{nil, end, {0x90}}); err == nil {
		t.Error("live message with the reserved sequence accepted")
	}
	if _, _, _, _, err := ParseReplay([][]byte{end, {0x90}}); err == nil {
		t.Error("replayed batch with the reserved sequence accepted")
	}
	if _, _, _, _, err := ParseReplay([][]byte{end}); err == nil {
		t.Error("reply of one frame accepted")
	}
}
