package engine

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// raw builds msgpack by hand, so that these benchmarks and gates depend on no
// encoder but this one; integers are minimal unless fixed is set.
type raw struct {
	b     []byte
	fixed bool
}

func (r *raw) str(s string) {
	if len(s) >= 32 {
		panic("fixstr only")
	}
	r.b = append(append(r.b, 0xa0|byte(len(s))), s...)
}

func (r *raw) arr(n int) {
	r.b = append(r.b, 0xdd)
	r.b = binary.BigEndian.AppendUint32(r.b, uint32(n))
}
func (r *raw) mapN(n int) { r.b = append(r.b, 0x80|byte(n)) }
func (r *raw) hash(v uint64) {
	r.b = append(r.b, 0xcf)
	r.b = binary.BigEndian.AppendUint64(r.b, v)
}

func (r *raw) tok(v uint32) {
	switch {
	case r.fixed || v >= 1<<16:
		r.b = append(r.b, 0xce)
		r.b = binary.BigEndian.AppendUint32(r.b, v)
	case v < 128:
		r.b = append(r.b, byte(v))
	case v < 256:
		r.b = append(r.b, 0xcc, byte(v))
	default:
		r.b = append(r.b, 0xcd)
		r.b = binary.BigEndian.AppendUint16(r.b, uint16(v))
	}
}

func (r *raw) batch(events int) {
	r.b = append(r.b, 0x93, 0xcb, 0x41, 0xda, 0x30, 0x54, 0x98, 0x10, 0, 0)
	r.arr(events)
}

// store appends a vLLM 0.24 map event.
func (r *raw) store(rng *rand.Rand, hashes, size int, token func() uint32) {
	r.mapN(11)
	r.str("type")
	r.str("BlockStored")
	r.str("block_hashes")
	r.arr(hashes)
	for range hashes {
		r.hash(rng.Uint64() | 1<<63)
	}
	r.str("parent_block_hash")
	r.hash(rng.Uint64() | 1<<63)
	r.str("token_ids")
	r.arr(hashes * size)
	for range hashes * size {
		r.tok(token())
	}
	r.str("block_size")
	r.tok(uint32(size))
	r.str("lora_id")
	r.b = append(r.b, 0xc0)
	r.str("medium")
	r.str("GPU")
	r.str("lora_name")
	r.b = append(r.b, 0xc0)
	r.str("extra_keys")
	r.arr(hashes)
	for range hashes {
		r.b = append(r.b, 0xc0)
	}
	r.str("group_idx")
	r.b = append(r.b, 0)
	r.str("kv_cache_spec_kind")
	r.str("full_attention")
}

func (r *raw) remove(rng *rand.Rand, hashes int) {
	r.mapN(4)
	r.str("type")
	r.str("BlockRemoved")
	r.str("block_hashes")
	r.arr(hashes)
	for range hashes {
		r.hash(rng.Uint64() | 1<<63)
	}
	r.str("medium")
	r.str("GPU")
	r.str("group_idx")
	r.b = append(r.b, 0)
}

// textTokens draws ids as text does: mostly two bytes, some one, some four.
func textTokens(rng *rand.Rand) func() uint32 {
	return func() uint32 {
		switch x := rng.IntN(100); {
		case x < 12:
			return uint32(rng.IntN(100))
		case x < 15:
			return uint32(128 + rng.IntN(128))
		case x < 92:
			return uint32(256 + rng.IntN(60000))
		}
		return uint32(65536 + rng.IntN(80000))
	}
}

type benchCase struct {
	name     string
	payloads [][]byte // different ones: a branch predictor learns a single one by heart
	events   int
}

func benchCases() []benchCase {
	rng := newRand()
	var cs []benchCase
	add := func(name string, fixed bool, events int, build func(r *raw)) {
		c := benchCase{name: name, events: events}
		for range max(1, 64/events) {
			r := &raw{fixed: fixed}
			r.batch(events)
			for range events {
				build(r)
			}
			r.b = append(r.b, 0) // rank
			c.payloads = append(c.payloads, r.b)
		}
		cs = append(cs, c)
	}
	wide := func() uint32 { return 70000 + uint32(rng.IntN(50000)) }
	add("64hashes_1024tokens_fixed", true, 1, func(r *raw) { r.store(rng, 64, 16, wide) })
	add("64hashes_1024tokens_uniform128k", false, 1, func(r *raw) { r.store(rng, 64, 16, func() uint32 { return uint32(rng.IntN(128000)) }) })
	add("64hashes_1024tokens_text", false, 1, func(r *raw) { r.store(rng, 64, 16, textTokens(rng)) })
	add("64hashes_1024tokens_u16", false, 1, func(r *raw) { r.store(rng, 64, 16, func() uint32 { return uint32(256 + rng.IntN(60000)) }) })
	add("page1_1850blocks_one_event", false, 1, func(r *raw) { r.store(rng, 1850, 1, textTokens(rng)) })
	add("page1_1850events_map", false, 1850, func(r *raw) { r.store(rng, 1, 1, textTokens(rng)) })
	add("page1_1850events_array", false, 1850, func(r *raw) {
		r.b = append(r.b, 0x97)
		r.str("BlockStored")
		r.b = append(r.b, 0x91)
		r.hash(rng.Uint64() | 1<<63)
		r.hash(rng.Uint64() | 1<<63)
		r.b = append(r.b, 0x91)
		r.tok(textTokens(rng)())
		r.b = append(r.b, 1, 0xc0)
		r.str("GPU")
	})
	add("removals_256events_map", false, 256, func(r *raw) { r.remove(rng, 1) })
	add("removal_1event_1850hashes", false, 1, func(r *raw) { r.remove(rng, 1850) })
	add("store_1block_map", false, 1, func(r *raw) { r.store(rng, 1, 16, textTokens(rng)) })
	return cs
}

func BenchmarkDecode(b *testing.B) {
	for _, c := range benchCases() {
		b.Run(c.name, func(b *testing.B) {
			d := NewDecoder(DecoderConfig{})
			b.SetBytes(int64(len(c.payloads[0])))
			b.ReportAllocs()
			n := 0
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := threadTime(b)
			for b.Loop() {
				batch, err := d.Decode(c.payloads[n%len(c.payloads)])
				n++
				if err != nil || len(batch.Events) != c.events {
					b.Fatal(fmt.Errorf("%d events: %w", len(batch.Events), err))
				}
			}
			cpu := float64(threadTime(b) - began)
			b.ReportMetric(cpu/float64(n), "cpu-ns/op")
			b.ReportMetric(cpu/float64(n)/float64(c.events), "cpu-ns/event")
		})
	}
}

// threadTime is the CPU time of this thread in nanoseconds: the machine is shared.
func threadTime(tb testing.TB) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		tb.Fatal(err)
	}
	return ts.Nano()
}

func newRand() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }
