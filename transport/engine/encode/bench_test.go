package encode

import (
	"testing"

	"github.com/kvcluster/kvcluster/transport/engine"
)

func benchBatch() *Batch {
	ev := Event{Kind: engine.Stored, HasParent: true, Parent: 1 << 60, BlockSize: 16, Medium: "GPU", LoraName: "adapter-a", SpecKind: "full_attention",
		Session: "r-1", ExtraKeys: make([][]Key, 64)}
	for i := range 64 {
		ev.Hashes = append(ev.Hashes, uint64(i+1)*0x9e3779b97f4a7c15)
	}
	for i := range 1024 {
		ev.Tokens = append(ev.Tokens, uint32(i*131)%150000)
	}
	return &Batch{Time: sent, Events: []Event{ev, {Kind: engine.Removed, Hashes: ev.Hashes[:8], Medium: "GPU"}, {Kind: engine.Cleared}}}
}

func TestNoAllocations(t *testing.T) {
	b := benchBatch()
	dst := make([]byte, 0, 1<<16)
	for _, f := range Formats() {
		if n := testing.AllocsPerRun(10, func() { Append(dst, f, b) }); n != 0 {
			t.Errorf("%v: %v allocations", f, n)
		}
	}
}

func BenchmarkAppend(b *testing.B) {
	batch := benchBatch()
	dst := make([]byte, 0, 1<<16)
	for _, f := range []Format{VLLMArray, VLLMMap, SGLangMap} {
		b.Run(f.String(), func(b *testing.B) {
			for b.Loop() {
				b.SetBytes(int64(len(Append(dst, f, batch))))
			}
		})
	}
}
