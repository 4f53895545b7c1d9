package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// allocated is the memory that fn asked for.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLengthBombs puts a length header that promises gigabytes in every place where
// a value can stand. None may be believed.
func TestLengthBombs(t *testing.T) {
	bombs := map[string]string{
		"array16": "\xdc\xff\xff", "array32": "\xdd\xff\xff\xff\xff", "map16": "\xde\xff\xff", "map32": "\xdf\xff\xff\xff\xff",
		"bin8": "\xc4\xff", "bin16": "\xc5\xff\xff", "bin32": "\xc6\xff\xff\xff\xff",
		"str8": "\xd9\xff", "str16": "\xda\xff\xff", "str32": "\xdb\xff\xff\xff\xff",
		"ext8": "\xc7\xff\x01", "ext16": "\xc8\xff\xff\x01", "ext32": "\xc9\xff\xff\xff\xff\x01",
		"array32 half": "\xdd\x80\x00\x00\x00", "map32 half": "\xdf\x80\x00\x00\x00", "array32 cut": "\xdd\xff\xff", "bin32 cut": "\xc6\xff",
	}
	env := string(unhex(t, "93cb41da30549810000091"))
	heads := map[string]string{"envelope": "", "time": "\x93", "events": string(unhex(t, "93cb41da305498100000")), "event": env, "tag": env + "\x97",
		"rank": string(unhex(t, "93cb41da30549810000090"))}
	stored := env + "\x9c\xabBlockStored"
	for i, before := range []string{"", "\x91\x07", "\x91\x07\xc0", "\x91\x07\xc0\x91\x01", "\x91\x07\xc0\x91\x01\x01", "\x91\x07\xc0\x91\x01\x01\xc0",
		"\x91\x07\xc0\x91\x01\x01\xc0\xc0", "\x91\x07\xc0\x91\x01\x01\xc0\xc0\xc0", "\x91\x07\xc0\x91\x01\x01\xc0\xc0\xc0\xc0"} {
		heads[fmt.Sprintf("array slot %d", i+1)] = stored + before
	}
	heads["hash"] = stored + "\x92"
	heads["token"] = stored + "\x91\x07\xc0\x93\x01"
	heads["pair"] = stored + "\x91\x07\xc0\x92\x92\x01"
	heads["extra entry"] = stored + "\x91\x07\xc0\x91\x01\x01\xc0\xc0\xc0\x91"
	heads["metadata"] = stored + "\x91\x07\xc0\x91\x01\x01\xc0\xc0\x81\xaacache_salt"
	for id := fieldType; id < numFields; id++ {
		for _, key := range fieldNames(id) {
			heads["key "+key] = env + "\x83" + string([]byte{0xa0 | byte(len(key))}) + key
		}
	}
	heads["map key"] = env + "\x82"
	heads["unknown key"] = env + "\x82\xa3foo"

	d := NewDecoder(DecoderConfig{})
	for where, head := range heads {
		for what, bomb := range bombs {
			for _, tail := range []string{"", "\x00", strings.Repeat("\x01", 300)} {
				if len(tail) > 250 && strings.Contains(what, "8") {
					continue // that many bytes are really there
				}
				payload := []byte(head + bomb + tail)
				var err error
				if n := allocated(func() { _, err = d.Decode(payload) }); n > 16<<10 {
					t.Errorf("%s in %s: %d bytes allocated for a payload of %d", what, where, n, len(payload))
				}
				if err == nil {
					t.Errorf("%s in %s: accepted", what, where)
				}
			}
		}
	}
}

// fieldNames are the keys that lead to a field.
func fieldNames(id field) []string {
	all := []string{"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
		"kv_cache_spec_kind", "cache_salt", "additional_salt", "locality", "ownership", "session_id", "event_type", "seq_hashes", "parent_hash",
		"object_key", "base_block_idx", "backend_id"}
	return slices.DeleteFunc(all, func(s string) bool { return parseField([]byte(s)) != id })
}

func TestLimits(t *testing.T) {
	if err := (DecoderConfig{MaxTokens: -1}).Validate(); err == nil {
		t.Error("a negative limit is valid")
	}
	if err := (DecoderConfig{}).Validate(); err != nil {
		t.Error(err)
	}
	rng := newRand()
	r := &raw{}
	r.batch(3)
	for range 3 {
		r.store(rng, 4, 4, textTokens(rng))
	}
	r.b = append(r.b, 0)
	for _, c := range []struct {
		cfg DecoderConfig
		ok  bool
	}{
		{DecoderConfig{MaxEvents: 3, MaxHashes: 12, MaxTokens: 48, MaxPayload: len(r.b)}, true},
		{DecoderConfig{MaxEvents: 2}, false},
		{DecoderConfig{MaxHashes: 11}, false},
		{DecoderConfig{MaxTokens: 47}, false},
		{DecoderConfig{MaxPayload: len(r.b) - 1}, false},
	} {
		_, err := NewDecoder(c.cfg).Decode(r.b)
		if (err == nil) != c.ok || err != nil && !errors.Is(err, ErrTooLarge) {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
}

// TestNoAllocations is the gate: nothing is allocated for an event once the arenas
// have grown.
func TestNoAllocations(t *testing.T) {
	decode := func(name string, d *Decoder, payloads [][]byte) {
		t.Helper()
		run := func() {
			for _, p := range payloads {
				if _, err := d.Decode(p); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
		}
		for range 6 { // arenas double until all fits into one
			run()
		}
		if n := testing.AllocsPerRun(10, run); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	for _, c := range benchCases() {
		decode(c.name, NewDecoder(DecoderConfig{}), c.payloads)
	}
	// All formats through one decoder, names and sessions and garbage included.
	var mixed [][]byte
	for _, s := range seeds(t) {
		if _, err := NewDecoder(DecoderConfig{}).Decode(s); err == nil {
			mixed = append(mixed, s)
		}
	}
	decode("all vectors", NewDecoder(DecoderConfig{}), mixed)
}

// TestBatchesAreKept: what a batch points to is not touched by decoding its later
// events, and not by the payload's owner.
func TestBatchesAreKept(t *testing.T) {
	rng := newRand()
	r := &raw{}
	r.batch(200)
	for i := range 200 {
		r.store(rng, 1+i, 4, func() uint32 { return uint32(i) })
	}
	r.b = append(r.b, 0)
	d := NewDecoder(DecoderConfig{})
	for range 3 { // with growing arenas, then with grown ones
		payload := slices.Clone(r.b)
		b, err := d.Decode(payload)
		if err != nil {
			t.Fatal(err)
		}
		clear(payload)
		for i, ev := range b.Events {
			if len(ev.Hashes) != 1+i || len(ev.Tokens) != 4*(1+i) {
				t.Fatalf("event %d: %d hashes, %d tokens", i, len(ev.Hashes), len(ev.Tokens))
			}
			for _, tok := range ev.Tokens {
				if tok != uint32(i) {
					t.Fatalf("event %d has token %d", i, tok)
				}
			}
			for _, h := range ev.Hashes {
				if h>>63 != 1 {
					t.Fatalf("event %d has hash %x", i, h)
				}
			}
		}
	}
}

// TestRetain: a rare huge batch does not stay in memory.
func TestRetain(t *testing.T) {
	rng := newRand()
	big, small := &raw{}, &raw{}
	for _, r := range []*raw{big, small} {
		r.batch(1)
	}
	big.store(rng, 20000, 16, textTokens(rng))
	small.store(rng, 1, 16, textTokens(rng))
	d := NewDecoder(DecoderConfig{Retain: 1 << 20})
	for _, r := range []*raw{big, small} {
		r.b = append(r.b, 0)
		if _, err := d.Decode(r.b); err != nil {
			t.Fatal(err)
		}
	}
	if n := cap(d.tokens)*4 + cap(d.hashes)*8; n > 1<<20 {
		t.Errorf("%d bytes kept", n)
	}
}

// TestStringsAreBounded: ever new sessions and salts do not pile up, and a name in
// use is kept.
func TestStringsAreBounded(t *testing.T) {
	in := interner{max: 100}
	for i := range 10000 {
		in.get(binary.AppendUvarint([]byte("s"), uint64(i)))
		if got := in.get([]byte("adapter")); got != "adapter" {
			t.Fatal(got)
		}
	}
	if n := in.len(); n > 200 {
		t.Errorf("%d strings kept", n)
	}
	if n := testing.AllocsPerRun(10, func() { in.get([]byte("adapter")) }); n != 0 {
		t.Errorf("%v allocations for a name in use", n)
	}
	long := []byte(strings.Repeat("x", maxInterned+1))
	before := in.len()
	if in.get(long) != string(long) || in.len() != before {
		t.Error("a very long string was kept")
	}
}

func TestObjectKeys(t *testing.T) {
	for key, want := range map[string]uint64{"0": 0, "255": 255, "0xff": 255, "0XfF": 255, "18446744073709551615": 1<<64 - 1,
		"0xffffffffffffffff": 1<<64 - 1, "007": 7} {
		if h, ok := parseObjectKey([]byte(key)); !ok || h != want {
			t.Errorf("%s: %d, %v", key, h, ok)
		}
	}
	for _, key := range []string{"", "0x", "x", "ff", "-1", "+1", "1_0", " 1", "18446744073709551616", "0x10000000000000000", "99999999999999999999", "1a", "0x1g"} {
		if h, ok := parseObjectKey([]byte(key)); ok {
			t.Errorf("%q accepted as %d", key, h)
		}
	}
}
