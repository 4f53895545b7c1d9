package ingest

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// nullWriter takes frames and forgets them.
type nullWriter struct {
	indexer.Writer
	frames, words uint64
}

func (w *nullWriter) Write(f indexer.Frame) error {
	w.frames++
	w.words += uint64(len(f))
	return nil
}
func (w *nullWriter) Written() uint64 { return w.frames }
func (w *nullWriter) Applied() uint64 { return w.frames }
func (w *nullWriter) Close()          {}

// noLog takes commands and forgets them.
type noLog struct{}

func (noLog) NewLife(string, uint32, uint64, func(error)) {}
func (noLog) Filled(string, uint32, uint64, func(error))  {}
func (noLog) Discover(uint64, uint32, func(error))        {}
func (noLog) Purged(catalog.Retired, func(error))         {}

// benchLoop is a loop whose functions the caller runs itself.
type benchLoop struct {
	scriptLoop
	now time.Time
}

func (l *benchLoop) Now() time.Time { return l.now }

func benchStream(tb testing.TB, w indexer.Writer, blockSize uint32) *stream {
	m, err := New(Config{Layout: shard.Layout{Partitions: 256}}, Deps{
		Network: newScriptNet(), Log: noLog{}, NewWriter: func() indexer.Writer { return w },
	})
	if err != nil {
		tb.Fatal(err)
	}
	l := m.loops[0]
	l.tl = &benchLoop{scriptLoop: scriptLoop{net: newScriptNet()}, now: time.Unix(1757500000, 0)}
	l.w = w
	c := catalog.New()
	if err := c.Register(1, catalog.Registration{Instance: "w", Group: catalog.GroupKey{Model: "m"}, BlockSize: blockSize, Endpoint: "tcp://e:1"}); err != nil {
		tb.Fatal(err)
	}
	spec := c.View().Sources()[0]
	s := newSource(l, &entry{}, spec, 1)
	s.update(spec, nil)
	s.streams = []*stream{newStream(s, -1)}
	s.connected = true
	s.streams[0].onConnect()
	return s.streams[0]
}

// benchBatches is a cycle of batches about prompts from first on, of a worker whose cache
// holds window of them: each stores one prompt and removes the one that falls out.
func benchBatches(f encode.Format, first, prompts, blocks int, blockSize uint32, window int) (out [][]byte) {
	prompt := func(i int) []uint64 {
		h := make([]uint64, blocks)
		for b := range h {
			h[b] = uint64(first+i+1)*0x9e3779b97f4a7c15 + uint64(b)*0xbf58476d1ce4e5b9
		}
		return h
	}
	for i := range prompts {
		ev := encode.Event{Kind: engine.Stored, Hashes: prompt(i), BlockSize: blockSize, Medium: "GPU", Group: 0, SpecKind: "full_attention"}
		for t := range uint32(blocks) * blockSize {
			ev.Tokens = append(ev.Tokens, (uint32(first+i)*7919+t*31)%150_000)
		}
		gone := encode.Event{Kind: engine.Removed, Medium: "GPU", Group: 0, Hashes: prompt((i + prompts - window) % prompts)}
		out = append(out, encode.Append(nil, f, &encode.Batch{Time: 1757500000, Events: []encode.Event{ev, gone}}))
	}
	return out
}

// BenchmarkStream measures one loop from the frames of a message to the frames of the
// index: sequence, digest, decoding, translation, into a writer that does nothing.
func BenchmarkStream(b *testing.B) {
	for _, c := range []struct {
		format    encode.Format
		blocks    int
		blockSize uint32
	}{
		{encode.VLLMMap, 64, 16}, {encode.VLLMArray, 64, 16}, {encode.SGLangMap, 64, 16},
		{encode.VLLMMap, 4, 16}, {encode.VLLMMap, 1, 16}, {encode.SGLangMap, 64, 1},
	} {
		b.Run(fmt.Sprintf("%v/blocks=%d/size=%d", c.format, c.blocks, c.blockSize), func(b *testing.B) {
			w := &nullWriter{}
			st := benchStream(b, w, c.blockSize)
			// Few payloads, as hot as a socket leaves them; a map as large as a worker's.
			const prompts, window, resident = 256, 128, 4096
			seq := uint64(0)
			for _, p := range benchBatches(c.format, prompts, resident, c.blocks, c.blockSize, resident) {
				st.onLive(seq, p, nil)
				seq++
			}
			batches := benchBatches(c.format, 0, prompts, c.blocks, c.blockSize, window)
			bytes := 0
			for range 2 {
				for _, p := range batches {
					st.onLive(seq, p, nil)
					seq++
				}
			}
			for _, p := range batches {
				bytes += len(p)
			}
			b.ReportAllocs()
			b.SetBytes(int64(bytes / prompts))
			next := 0
			start := cpuTime()
			for b.Loop() {
				st.onLive(seq, batches[next%prompts], nil)
				seq++
				next++
			}
			cpu := (cpuTime() - start).Seconds()
			b.ReportMetric(float64(b.N)/cpu, "batches/cpu-s")
			b.ReportMetric(float64(2*b.N*c.blocks)/cpu/1e6, "Mblockops/cpu-s")
			if n := st.src.slots[0].n; n.Stored < uint64(b.N*c.blocks) || n.Batches != seq || st.src.n.Gaps != 0 {
				b.Fatalf("the stream did not do its work: %+v", n)
			}
		})
	}
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// The steady state of a stream allocates nothing.
func TestStreamAllocatesNothing(t *testing.T) {
	st := benchStream(t, &nullWriter{}, 16)
	batches := benchBatches(encode.VLLMMap, 0, 256, 8, 16, 128)
	seq := uint64(0)
	step := func() {
		st.onLive(seq, batches[seq%256], nil)
		seq++
	}
	for range 4 * 256 {
		step()
	}
	if n := testing.AllocsPerRun(512, step); n > 0.05 {
		t.Errorf("%.2f allocations for a batch", n)
	}
}
