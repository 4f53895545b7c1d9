package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// equalBatch ignores nil against empty, and the digests of keys of unknown shape.
var equalBatch = cmp.Options{
	cmpopts.EquateEmpty(),
	cmp.Comparer(func(a, b ExtraKey) bool {
		if a.HasOffset && a.Text == "" && (a.Digest == 0 || b.Digest == 0) {
			a.Digest, b.Digest = 0, 0
		}
		return a == b
	}),
}

// agree compares the decoder with the reference.
func agree(d *Decoder, payload []byte) error {
	got, err := d.Decode(payload)
	want, refErr := reference(payload)
	if errors.Is(refErr, errDeep) || errors.Is(err, ErrTooLarge) {
		return nil
	}
	if (err == nil) != (refErr == nil) {
		return fmt.Errorf("decoder says %v, reference says %v", err, refErr)
	}
	if err != nil {
		return nil
	}
	if diff := cmp.Diff(want, got, equalBatch); diff != "" {
		return errors.New(diff)
	}
	return nil
}

// seeds are the payloads to start from.
func seeds(t testing.TB) [][]byte {
	var all [][]byte
	v := loadVectors(t)
	for _, p := range v.Payloads {
		all = append(all, unhex(t, p.Hex))
	}
	for _, p := range v.Malformed {
		if p.Hex != nil {
			all = append(all, unhex(t, *p.Hex))
		}
	}
	return append(all, crafted()...)
}

// crafted are shapes that the vectors do not have.
func crafted() [][]byte {
	build := func(events int, f func(r *raw)) []byte {
		r := &raw{}
		r.batch(events)
		f(r)
		r.b = append(r.b, 0)
		return r.b
	}
	store := func(r *raw, extra func()) {
		r.mapN(8)
		r.str("type")
		r.str("BlockStored")
		r.str("block_hashes")
		r.b = append(r.b, 0x92, 1, 2)
		r.str("token_ids")
		r.b = append(r.b, 0x92, 3, 4)
		r.str("block_size")
		r.b = append(r.b, 1)
		r.str("lora_name")
		r.str("adp")
		r.str("extra_keys")
		r.b = append(r.b, 0x92)
		extra()
		r.str("ownership")
		r.b = append(r.b, 0xc0)
		r.str("locality")
		r.str("LOCAL")
	}
	return [][]byte{
		build(1, func(r *raw) { // a tagged salt beside the LoRA name, bare strings as entries
			store(r, func() { r.b = append(r.b, 0x92); r.str("adp"); r.str("dynamo-cache-salt:s"); r.str("mm") })
		}),
		build(1, func(r *raw) { // keys of unknown shapes
			store(r, func() { r.b = append(r.b, 0x93, 7, 0x81, 1, 2, 0x93, 1, 2, 3, 0xc4, 1, 9) })
		}),
		build(1, func(r *raw) { // Dynamo's array tail, and SGLang's map where the LoRA name is
			r.b = append(r.b, 0xdc, 0, 15)
			r.str("BlockStored")
			r.b = append(r.b, 0x91, 5, 6, 0x91, 7, 1, 0xc0)
			r.str("gpu")
			r.b = append(r.b, 0x82)
			r.str("cache_salt")
			r.str("s")
			r.str("lora_name")
			r.str("l")
			r.b = append(r.b, 0x91, 0xc0, 0x91, 0xc0, 2)
			r.str("mla_attention")
			r.b = append(r.b, 64)
			r.str("REMOTE")
			r.str("worker")
		}),
		build(2, func(r *raw) { // Dynamo's multimodal infos in both forms, beside extra keys
			for range 2 {
				r.mapN(7)
				r.str("type")
				r.str("BlockStored")
				r.str("block_hashes")
				r.b = append(r.b, 0x93, 1, 2, 3)
				r.str("token_ids")
				r.b = append(r.b, 0x93, 4, 5, 6)
				r.str("block_size")
				r.b = append(r.b, 1)
				r.str("extra_keys")
				r.b = append(r.b, 0x93, 0xc0, 0xc0, 0x91)
				r.str("mm")
				r.str("block_mm_infos")
				r.b = append(r.b, 0x93, 0xc0, 0x81)
				r.str("mm_objects")
				r.b = append(r.b, 0x92, 0x82)
				r.str("offsets")
				r.b = append(r.b, 0x90)
				r.str("mm_hash")
				r.hash(1<<63 | 5)
				r.b = append(r.b, 0x92, 42, 0x90, 0x91, 0x91, 0x81)
				r.str("mm_hash")
				r.b = append(r.b, 7)
				r.str("medium")
				r.b = append(r.b, 0xc0)
			}
		}),
		build(3, func(r *raw) { // a tier clear in both forms, an ignored event
			r.b = append(r.b, 0x92)
			r.str("TierBlocksCleared")
			r.str("cpu")
			r.mapN(2)
			r.str("medium")
			r.str("GPU")
			r.str("type")
			r.str("TierBlocksCleared")
			r.b = append(r.b, 0x91)
			r.str("Ignored")
		}),
		build(1, func(r *raw) { // Mooncake without aliases
			r.mapN(5)
			r.str("event_type")
			r.str("stored")
			r.str("object_key")
			r.str("0xFf")
			r.str("parent_hash")
			r.b = append(r.b, 9)
			r.str("base_block_idx")
			r.b = append(r.b, 3)
			r.str("medium")
			r.str("disk")
		}),
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range seeds(f) {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		d := NewDecoder(DecoderConfig{})
		if err := agree(d, payload); err != nil {
			t.Fatalf("%v\n%x", err, payload)
		}
		held := cap(d.tokens)*4 + cap(d.hashes)*8 + cap(d.extra)*int(unsafe.Sizeof(ExtraKey{})) + cap(d.events)*int(unsafe.Sizeof(Event{}))
		if limit := 64<<10 + 64*len(payload); held > limit {
			t.Fatalf("%d bytes held after a payload of %d", held, len(payload))
		}
		if err := agree(d, payload); err != nil { // now with keys and arenas known
			t.Fatalf("second time: %v\n%x", err, payload)
		}
	})
}

// TestMutations is a small fuzz with a fixed seed, so that every test run crosses
// the error paths.
func TestMutations(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 11))
	all := seeds(t)
	d := NewDecoder(DecoderConfig{})
	tags := []byte{0x00, 0x7f, 0x80, 0x81, 0x90, 0x91, 0x92, 0xa0, 0xa1, 0xbf, 0xc0, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xcb, 0xcc,
		0xcd, 0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xdb, 0xdc, 0xdd, 0xde, 0xdf, 0xe0, 0xff}
	accepted := 0
	for range 30000 {
		p := append([]byte(nil), all[rng.IntN(len(all))]...)
		for range 1 + rng.IntN(3) {
			if len(p) == 0 {
				break
			}
			at := rng.IntN(len(p))
			switch rng.IntN(5) {
			case 0:
				p[at] = tags[rng.IntN(len(tags))]
			case 1:
				p[at] = byte(rng.Uint32())
			case 2:
				p = append(p[:at], append([]byte{tags[rng.IntN(len(tags))]}, p[at:]...)...)
			case 3:
				p = append(p[:at], p[at+1:]...)
			case 4: // one value in the place of another
				q := all[rng.IntN(len(all))]
				from := rng.IntN(len(q) + 1)
				p = append(p[:at], append(append([]byte(nil), q[from:min(len(q), from+rng.IntN(30))]...), p[at:]...)...)
			}
		}
		if err := agree(d, p); err != nil {
			t.Fatalf("%v\n%x", err, p)
		}
		if b, err := d.Decode(p); err == nil && len(b.Events) > 0 {
			accepted++
		}
	}
	if accepted < 1500 {
		t.Errorf("only %d mutations left a usable event: the test does not reach the decoder", accepted)
	}
}

// TestTruncation: no strict prefix of a sound payload is accepted.
func TestTruncation(t *testing.T) {
	d := NewDecoder(DecoderConfig{})
	for _, s := range seeds(t) {
		if b, err := d.Decode(s); err != nil || b.Trailing {
			continue
		}
		for n := range s {
			if _, err := d.Decode(s[:n]); !errors.Is(err, ErrTruncated) {
				t.Fatalf("%d of %d bytes: %v\n%x", n, len(s), err, s)
			}
		}
	}
}

func TestDepth(t *testing.T) {
	d := NewDecoder(DecoderConfig{})
	head := string(unhex(t, "93cb41da30549810000091"))
	for _, deep := range []string{strings.Repeat("\x91", 10000) + "\xc0", strings.Repeat("\x81\xc0", 10000) + "\xc0"} {
		if _, err := d.Decode([]byte(head + deep + "\x00")); !errors.Is(err, ErrDepth) {
			t.Errorf("%v", err)
		}
	}
	if b, err := d.Decode([]byte(head + strings.Repeat("\x91", 10) + "\xc0\x00")); err != nil || b.Skipped[SkipMalformed] != 1 {
		t.Errorf("ten levels: %v", err)
	}
}
