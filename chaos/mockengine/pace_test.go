package mockengine

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// within checks that a run of the fleet takes about a given time of the bubble's clock.
func within(t *testing.T, f *Fleet, want, slack time.Duration) {
	t.Helper()
	start := time.Now()
	if err := f.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < want-slack || took > want+slack {
		t.Errorf("the run took %s, want %s", took, want)
	}
}

func TestSpeedup(t *testing.T) {
	tr := traffic(t, 300)
	var spans []time.Duration
	for _, x := range []float64{1, 10} {
		synctest.Test(t, func(t *testing.T) {
			f, _ := fleet(t, Config{Workers: 2, Trace: tr, Speedup: x})
			start := time.Now()
			if err := f.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			spans = append(spans, time.Since(start))
			if lag := f.Stats().Lag; lag != 0 {
				t.Errorf("lag of %s under a clock that waits", lag)
			}
		})
	}
	// The last answers need a few seconds after the last arrival.
	if spans[0] < tr.Span() || spans[0] > tr.Span()+30*time.Second {
		t.Errorf("at speed-up 1 the trace of %s took %s", tr.Span(), spans[0])
	}
	if d := spans[0]/10 - spans[1]; d < -time.Millisecond || d > time.Millisecond {
		t.Errorf("speed-up 10 took %s, speed-up 1 %s", spans[1], spans[0])
	}
}

func TestRateLimits(t *testing.T) {
	tr := traffic(t, 300)
	var batches, blocks uint64
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleet(t, Config{Trace: tr})
		within(t, f, 0, time.Millisecond)
		s := f.Stats()
		batches, blocks = s.Batches, s.Stored.Blocks+s.Removed.Blocks
	})
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleet(t, Config{Trace: tr, MaxBatchRate: 100})
		within(t, f, time.Duration(batches)*10*time.Millisecond-250*time.Millisecond, 20*time.Millisecond)
	})
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleet(t, Config{Trace: tr, MaxBlockRate: 1000})
		within(t, f, time.Duration(blocks)*time.Millisecond-250*time.Millisecond, 100*time.Millisecond)
	})
	// The default keeps the high-water mark away from a subscriber that stalls.
	c := Config{Trace: tr}
	c.SetDefaults()
	if stall := float64(c.HighWater) / c.MaxBatchRate; stall < 30 {
		t.Errorf("the high-water mark lasts for %.0f s", stall)
	}
}

// At most one batch leaves an engine in each scheduler step, and SGLang holds the
// events of decoding back.
func TestBatchesFollowTheEngine(t *testing.T) {
	tr := traffic(t, 300)
	counts := map[Format]uint64{}
	for _, format := range []Format{VLLMMap, SGLangMap} {
		synctest.Test(t, func(t *testing.T) {
			f, n := fleet(t, Config{Trace: tr, Speedup: 1, Formats: []Format{format}, Step: 50 * time.Millisecond, Capacity: 2000})
			if err := f.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			dec := engine.NewDecoder(engine.DecoderConfig{})
			last := 0.0
			for i, m := range n.sockets(f.Endpoints()[0].Publish)[0].messages {
				b, err := dec.Decode(m.payload)
				if err != nil {
					t.Fatal(err)
				}
				if gap := b.Time - last; i > 1 && gap < 0.0499 {
					t.Fatalf("%s: batch %d follows after %.4f s", format, i, gap)
				}
				last = b.Time
			}
			counts[format] = f.Stats().Batches
		})
	}
	if counts[SGLangMap]*5 > counts[VLLMMap]*4 {
		t.Errorf("vLLM sends %d batches, SGLang %d: nothing is held back", counts[VLLMMap], counts[SGLangMap])
	}
}

// An idle TensorRT-LLM says every five seconds that it is there.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := fleet(t, Config{Trace: traffic(t, 20), Formats: []Format{TRTLLM}, Stay: true})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()
		<-f.Done()
		before := f.Stats().Batches
		time.Sleep(26 * time.Second)
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if got := f.Stats().Batches - before; got != 5 {
			t.Errorf("%d heartbeats in 26 s, want 5", got)
		}
		all := n.sockets(f.Endpoints()[0].Publish)[0].messages
		b, err := engine.NewDecoder(engine.DecoderConfig{}).Decode(all[len(all)-1].payload)
		if err != nil || len(b.Events) != 0 || all[len(all)-1].seq != all[0].seq+uint64(len(all))-1 {
			t.Errorf("the last heartbeat has %v, %v", b, err)
		}
	})
}

// Cancelling ends a run at once and is no error.
func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, _ := fleet(t, Config{Workers: 3, Trace: traffic(t, 300), Speedup: 1, Repeat: -1})
		ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
		defer cancel()
		start := time.Now()
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 90*time.Second {
			t.Errorf("the run took %s", took)
		}
		select {
		case <-f.Done():
			t.Error("a run that was cut short says that it is done")
		default:
		}
	})
}

func TestStatsText(t *testing.T) {
	f, _ := play(t, Config{Workers: 2, BlockSize: 16, Capacity: 500, Trace: traffic(t, 200)})
	s := f.Stats()
	text := s.String()
	for _, part := range []string{"200 finished", "events per request", "65-1024", "  removed events"} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	if s.Stored.Blocks != s.StoredBlocks[indexer.Device] || s.Held[indexer.Device] != s.StoredBlocks[0]-s.RemovedBlocks[0] {
		t.Errorf("stored %d, removed %d, held %d blocks", s.StoredBlocks[0], s.RemovedBlocks[0], s.Held[0])
	}
	sum := uint64(0)
	for _, b := range s.Stored.Buckets {
		sum += b
	}
	if sum != s.Stored.Events || s.Stored.Buckets[0] == 0 || s.Stored.Buckets[2] == 0 {
		t.Errorf("buckets %v of %d events", s.Stored.Buckets, s.Stored.Events)
	}
}
