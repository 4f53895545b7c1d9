package encode

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/kvcluster/kvcluster/transport/engine"
)

const (
	hashA = 9561501211280363793  // block [1,2,3,4], vLLM sha256_cbor, seed vllm-none-hash
	hashB = 15292913576410714033 // block [5,6,7,8] below it
	pageA = 14958615928728313947 // the same blocks as SGLang pages
	pageB = 5674439469042975057
	sent  = 1757500000.25
)

func digest(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVectors rebuilds every payload of the vectors byte for byte.
func TestVectors(t *testing.T) {
	one := []uint32{1, 2, 3, 4}
	two := []uint32{5, 6, 7, 8}
	digests := [][]byte{digest(t, "e1bc29393a2da9fd798f35ff04d215f846aee6df4b803ce3d43b57df56b58fb1")}
	parent := digest(t, "58d0879dff3800f65f8c5fd449d73048c0f7699dd238a03b84b146b151d55111")
	store := func(ev Event) Event { ev.Kind = engine.Stored; return ev }
	remove := func(ev Event) Event { ev.Kind = engine.Removed; return ev }
	clear := Event{Kind: engine.Cleared}
	child := store(Event{Hashes: []uint64{hashB}, HasParent: true, Parent: hashA, Tokens: two, BlockSize: 4, Medium: "GPU"})
	binary := child
	binary.Digests, binary.ParentDigest = digests, parent

	cases := map[string]struct {
		f      Format
		rank   int64
		events []Event
	}{
		"E1": {VLLM090, -1, []Event{store(Event{Hashes: []uint64{^uint64(4)}, Tokens: one, BlockSize: 4})}},
		"E2": {VLLM091, 0, []Event{remove(Event{Hashes: []uint64{hashA}}), clear}},
		"E3": {VLLM011, 0, []Event{child}},
		"E4": {VLLM011, 0, []Event{binary}},
		"E5": {VLLM021, 3, []Event{store(Event{Hashes: []uint64{7}, Tokens: []uint32{300, 70000}, BlockSize: 2, Medium: "GPU",
			ExtraKeys: [][]Key{nil}, Group: 1, SpecKind: "sliding_window", SlidingWindow: 128})}},
		"E6": {VLLM024, 0, []Event{store(Event{Hashes: []uint64{hashA, hashB}, Tokens: append(one[:4:4], two...), BlockSize: 4,
			Medium: "GPU", ExtraKeys: [][]Key{nil, nil}, SpecKind: "full_attention"})}},
		"E7": {VLLM031, 0, []Event{store(Event{Hashes: []uint64{hashA}, Tokens: one, BlockSize: 4, Medium: "GPU", LoraID: 7, LoraName: "adp",
			ExtraKeys: [][]Key{{{Text: "adp"}, {Text: "mm-abc", HasOffset: true, Offset: -2}, {Text: "salt-1"}, {Bytes: []byte{0, 1, 2, 3}}}},
			SpecKind:  "full_attention", Session: "r-2"})}},
		"E8": {VLLM024, 0, []Event{remove(Event{Hashes: []uint64{^uint64(0)}, Medium: "GPU"}), clear}},
		"E9": {VLLM026, 0, []Event{store(Event{Hashes: []uint64{hashA}, Medium: "CPU", Group: -1}),
			store(Event{Hashes: []uint64{hashB}, HasParent: true, Parent: hashA, Tokens: two, BlockSize: 4, Medium: "STORAGE", Group: -1, Locality: "LOCAL"})}},
		"E10": {SGLang04, 0, []Event{store(Event{Hashes: []uint64{pageA}, Tokens: one, BlockSize: 4})}},
		"E11": {SGLang059, 0, []Event{store(Event{Hashes: []uint64{pageB}, HasParent: true, Parent: pageA, Tokens: two, BlockSize: 4, Medium: "GPU"}),
			remove(Event{Hashes: []uint64{pageB}, Medium: "CPU_PINNED"})}},
		"E12":  {SGLang0518, -1, []Event{store(Event{Hashes: []uint64{123}, Tokens: []uint32{1, 2}, BlockSize: 2, Medium: "GPU", Salt: "tenant-a"})}},
		"E13":  {SGLang0521, 1, []Event{store(Event{Hashes: []uint64{pageA}, Tokens: one, BlockSize: 4, Medium: "GPU", Salt: "t-a", Session: "r1"})}},
		"E14":  {SGLang0521, 0, []Event{store(Event{Hashes: []uint64{3528790144829477762}, Tokens: []uint32{21, 22, 23, 24, 25}, BlockSize: 4, Bigram: true, Medium: "GPU"})}},
		"E15":  {TensorRT, 0, nil},
		"E15b": {TensorRT, 0, []Event{clear}},
		"E16":  {Mooncake, 0, []Event{store(Event{Hashes: []uint64{255}, Medium: "cpu", Backend: "n0"})}},
		"E17":  {VLLMMapEnvelope, 0, []Event{clear}},
	}

	raw, err := os.ReadFile("../testdata/wire-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct {
		Payloads []struct{ Name, Hex string }
	}
	if err := json.Unmarshal(raw, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors.Payloads {
		c, ok := cases[v.Name]
		if !ok {
			t.Errorf("%s: no case", v.Name)
			continue
		}
		got := Append(nil, c.f, &Batch{Time: sent, Rank: c.rank, Events: c.events, FirstID: 1})
		if hex.EncodeToString(got) != v.Hex {
			t.Errorf("%s as %v:\n got %x\nwant %s", v.Name, c.f, got, v.Hex)
		}
		delete(cases, v.Name)
	}
	if len(cases) != 0 {
		t.Errorf("not in the vectors: %v", cases)
	}
}

func TestFormatNames(t *testing.T) {
	for _, f := range Formats() {
		got, err := ParseFormat(f.String())
		if err != nil || got != f {
			t.Errorf("%v: parsed as %v, %v", f, got, err)
		}
	}
	if _, err := ParseFormat("vllm"); err == nil {
		t.Error("an unknown name was accepted")
	}
}
