package enginehash

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

type vector struct {
	Algorithm string
	Input     json.RawMessage
	Expect    json.RawMessage
}

type input struct {
	Seed       string
	Tokens     []uint32
	BlockSize  int         `json:"block_size"`
	ExtraKeys  []string    `json:"extra_keys"`
	PageSize   int         `json:"page_size"`
	Pairs      [][2]uint32 `json:"token_pairs"`
	Salt       string      `json:"cache_salt"`
	SaltDigest string      `json:"salt_seed_digest"`
}

type expectation struct {
	NoneHash  string `json:"none_hash"`
	Digests   []string
	IntHashes []string `json:"int_hashes"`
	U64       []string
	Int64     []string
}

func TestVectors(t *testing.T) {
	raw, err := os.ReadFile("../testdata/wire-vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Hashes []vector }
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, v := range file.Hashes {
		var in input
		var want expectation
		switch v.Algorithm {
		case "canonical_cbor":
			var text string
			unmarshal(t, v.Expect, &text)
			checkCBOR(t, text)
		case "vllm_sha256_cbor":
			unmarshal(t, v.Input, &in)
			unmarshal(t, v.Expect, &want)
			checkVLLM(t, in, want)
		case "sglang_page_sha256":
			unmarshal(t, v.Input, &in)
			unmarshal(t, v.Expect, &want)
			checkSGLang(t, in, want)
		default:
			continue // token hashes: package blockhash
		}
		seen[v.Algorithm]++
	}
	if seen["canonical_cbor"] != 1 || seen["vllm_sha256_cbor"] < 3 || seen["sglang_page_sha256"] < 3 {
		t.Errorf("vectors are missing: %v", seen)
	}
}

func unmarshal(t *testing.T, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

func checkCBOR(t *testing.T, want string) {
	v := NewVLLM("0")
	v.Block(new(Digest), []uint32{1, 2, 300, 70000}, nil)
	if got := hex.EncodeToString(v.buf); got != want {
		t.Errorf("cbor: %s, want %s", got, want)
	}
}

func checkVLLM(t *testing.T, in input, want expectation) {
	v := NewVLLM(in.Seed)
	if r := v.Root(); want.NoneHash != "" && hex.EncodeToString(r[:]) != want.NoneHash {
		t.Errorf("seed %q: root %x", in.Seed, r)
	}
	var keys [][]Key
	if in.ExtraKeys != nil {
		var one []Key
		for _, k := range in.ExtraKeys {
			one = append(one, Key{Text: k})
		}
		keys = slices.Repeat([][]Key{one}, len(in.Tokens)/in.BlockSize)
	}
	got, last := v.Append(nil, v.Root(), in.Tokens, in.BlockSize, keys)
	if !slices.Equal(got, parseAll(t, want.IntHashes)) {
		t.Errorf("seed %q: %d, want %s", in.Seed, got, want.IntHashes)
	}
	if n := len(want.Digests); n > 0 && hex.EncodeToString(last[:]) != want.Digests[n-1] {
		t.Errorf("seed %q: digest %x", in.Seed, last)
	}
}

func checkSGLang(t *testing.T, in input, want expectation) {
	s := &SGLang{}
	if in.Pairs != nil {
		s.Bigram = true
		for _, p := range in.Pairs {
			in.Tokens = append(in.Tokens, p[0])
		}
		in.Tokens = append(in.Tokens, in.Pairs[len(in.Pairs)-1][1])
	}
	var prior *Digest
	if in.Salt != "" {
		d := SaltDigest(in.Salt)
		if prior = &d; hex.EncodeToString(d[:]) != in.SaltDigest {
			t.Errorf("salt %q: %x", in.Salt, d)
		}
	}
	got, last := s.Append(nil, prior, in.Tokens, in.PageSize)
	if !slices.Equal(got, parseAll(t, want.U64)) {
		t.Errorf("pages: %d, want %s", got, want.U64)
	}
	for i, text := range want.Int64 {
		if strconv.FormatInt(int64(got[i]), 10) != text {
			t.Errorf("page %d: %d, want %s", i, int64(got[i]), text)
		}
	}
	if hex.EncodeToString(last[:]) != want.Digests[len(want.Digests)-1] {
		t.Errorf("pages: digest %x", *last)
	}
}

func parseAll(t *testing.T, texts []string) []uint64 {
	var all []uint64
	for _, s := range texts {
		u, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, u)
	}
	return all
}

// TestCaptures recomputes the hashes of real vLLM events, where they are at hand.
func TestCaptures(t *testing.T) {
	files, _ := filepath.Glob("../../../../shared/reference/captures/vllm-kv-event-*.json")
	total := 0
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var event struct {
			LoraName *string  `json:"lora_name"`
			Hashes   []uint64 `json:"block_hashes"`
			Tokens   []uint32 `json:"token_ids"`
			Size     int      `json:"block_size"`
			Seed     string   `json:"hash_seed"`
		}
		unmarshal(t, raw, &event)
		var keys [][]Key
		if event.LoraName != nil {
			keys = slices.Repeat([][]Key{{{Text: *event.LoraName}}}, len(event.Hashes))
		}
		v := NewVLLM(event.Seed)
		got, _ := v.Append(nil, v.Root(), event.Tokens, event.Size, keys)
		if !slices.Equal(got, event.Hashes) {
			t.Errorf("%s: %d, want %d", name, got, event.Hashes)
		}
		total += len(got)
	}
	if len(files) > 0 && total != 50 {
		t.Errorf("%d hashes in %d captures, want 50", total, len(files))
	}
	t.Logf("%d hashes of %d captures", total, len(files))
}

// TestChains: what the wire promises about hashes, on any tokens.
func TestChains(t *testing.T) {
	a := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	v := NewVLLM(DefaultSeed)
	whole, _ := v.Append(nil, v.Root(), a, 4, nil)
	first, d := v.Append(nil, v.Root(), a[:4], 4, nil)
	second, _ := v.Append(nil, d, a[4:], 4, nil)
	if len(whole) != 2 || !slices.Equal(whole, append(first, second...)) {
		t.Errorf("vllm: %d in one, %d and %d in two", whole, first, second)
	}
	salted, _ := v.Append(nil, v.Root(), a, 4, [][]Key{{{Text: "salt"}}})
	if salted[0] == whole[0] || salted[1] == whole[1] {
		t.Error("vllm: a salt in the first block must change all hashes")
	}
	shapes := map[uint64]string{}
	for _, k := range []Key{{Text: "i"}, {Bytes: []byte("i")}, {Text: "i", HasOffset: true}, {Text: "i", HasOffset: true, Offset: -1}, {Text: "i", HasOffset: true, Offset: 24}} {
		h := FoldVLLM(v.Block(&d, a[:4], []Key{k}))
		if was, ok := shapes[h]; ok {
			t.Errorf("vllm: %+v and %s hash alike", k, was)
		}
		shapes[h] = fmt.Sprintf("%+v", k)
	}

	for _, s := range []*SGLang{{}, {Bigram: true}, {PageOnly: true}} {
		whole, _ := s.Append(nil, nil, a, 4)
		first, prior := s.Append(nil, nil, a[:5], 4)
		second, _ := s.Append(nil, prior, a[4:], 4)
		if len(whole) != 2 || !slices.Equal(whole, append(first, second...)) {
			t.Errorf("sglang %+v: %d in one, %d and %d in two", s, whole, first, second)
		}
		same, _ := s.Append(nil, nil, []uint32{1, 2, 3, 4, 1, 2, 3, 4, 1}, 4)
		if (same[0] == same[1]) != s.PageOnly {
			t.Errorf("sglang %+v: equal pages hash to %d", s, same)
		}
	}
	if got, last := new(SGLang).Append(nil, nil, a[:3], 4); len(got) != 0 || last != nil {
		t.Errorf("an incomplete page: %d", got)
	}
}

func TestAllocations(t *testing.T) {
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i * 37)
	}
	v, s := NewVLLM("0"), &SGLang{}
	dst := make([]uint64, 0, 64)
	if n := testing.AllocsPerRun(20, func() { v.Append(dst, v.Root(), tokens, 16, nil) }); n != 0 {
		t.Errorf("vllm: %v allocations", n)
	}
	if n := testing.AllocsPerRun(20, func() { s.Append(dst, nil, tokens, 16) }); n > 1 {
		t.Errorf("sglang: %v allocations", n) // the returned digest
	}
}

func BenchmarkBlocks(b *testing.B) {
	tokens := make([]uint32, 1024)
	for i := range tokens {
		tokens[i] = uint32(i * 37)
	}
	v, s := NewVLLM("0"), &SGLang{}
	dst := make([]uint64, 0, 64)
	b.Run("vllm", func(b *testing.B) {
		for b.Loop() {
			v.Append(dst, v.Root(), tokens, 16, nil)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/block")
	})
	b.Run("sglang", func(b *testing.B) {
		for b.Loop() {
			s.Append(dst, nil, tokens, 16)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/block")
	})
}
