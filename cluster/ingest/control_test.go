package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

func TestPauseAndResume(t *testing.T) {
	for _, replay := range []bool{false, true} {
		t.Run(fmt.Sprintf("replay=%v", replay), func(t *testing.T) {
			run(t, nil, func(w *world) {
				ctx := w.t.Context()
				e := w.engine("e1", replay)
				w.register("w1", e)
				grow(e, 0, 3)
				if err := w.m.Resume(ctx, "w1", 0); !errors.Is(err, ErrState) || !strings.Contains(err.Error(), "instance w1 dp_rank 0 cannot be resumed from status active") {
					t.Errorf("resume of an active one: %v", err)
				}
				if err := w.m.Pause(ctx, "w1", 0); err != nil {
					t.Fatal(err)
				}
				equal(t, "state", w.rank("w1", 0).State, Paused)
				if err := w.m.Pause(ctx, "w1", 0); !errors.Is(err, ErrState) {
					t.Errorf("pause of a paused one: %v", err)
				}
				grow(e, 3, 2) // nobody listens
				w.settle()
				w.want("abcde", 3)
				if err := w.m.Resume(ctx, "w1", 0); err != nil {
					t.Fatal(err)
				}
				w.settle()
				e.publish(batch(store("", "xy")))
				w.settle()
				want := 0
				if replay {
					want = 5
				}
				w.want("abcde", want, "xy", 2)
				equal(t, "lives", w.lives, b2i(!replay))
				for _, err := range []error{w.m.Pause(ctx, "w1", 9), w.m.Pause(ctx, "w9", 0)} {
					if !errors.Is(err, ErrUnknownRank) {
						t.Errorf("unknown: %v", err)
					}
				}
			})
		})
	}
}

func TestPausedPusher(t *testing.T) {
	run(t, nil, func(w *world) {
		w.expect("w1", "t", 0)
		p := w.pusher("t")
		p.connect()
		grow(p, 0, 2)
		if err := w.m.Pause(w.t.Context(), "w1", 0); err != nil {
			t.Fatal(err)
		}
		grow(p, 2, 1)
		if err := w.m.Resume(w.t.Context(), "w1", 0); err != nil {
			t.Fatal(err)
		}
		p.connect()
		p.publish(batch(store("", "x")))
		w.settle()
		w.want("abc", 0, "x", 1)
		equal(t, "lives", w.lives, 1)
	})
}

// dynamo#5565: why is this prompt not matched?
func TestExplain(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		e.publish(batch(store("", "ab"), store("xy", "z")))
		got, err := w.m.Explain(w.t.Context(), "w1", 0, []uint64{hash("ab"), hash("xyz"), hash("q")})
		if want := []translate.HashState{translate.HashHeld, translate.HashOrphan, translate.HashUnknown}; err != nil || !slices.Equal(got, want) {
			t.Errorf("got %v, %v, want %v", got, err, want)
		}
		if _, err := w.m.Explain(w.t.Context(), "w1", 5, nil); !errors.Is(err, ErrUnknownRank) {
			t.Errorf("unknown rank: %v", err)
		}
		ctx, cancel := context.WithCancel(w.t.Context())
		cancel()
		if _, err := w.m.Explain(ctx, "w1", 0, []uint64{1}); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
	})
}

// Rule N8: the index asks for room, the translators drop.
func TestShed(t *testing.T) {
	run(t, nil, func(w *world) {
		e, o := w.engine("e1", false), w.engine("e2", false)
		w.register("w1", e)
		w.register("w2", o)
		for i := range 100 {
			c := string(rune('A' + i%50))
			e.publish(batch(store("", c+string(rune('0'+i/50))+"abcdef")))
		}
		o.publish(batch(store("", "xyz")))
		w.settle()
		before := w.index.Stats().Held[indexer.Device]
		w.m.Shed(200/float64(before), nil)
		w.settle()
		dropped := before - w.index.Stats().Held[indexer.Device]
		if dropped < 190 || dropped > 330 {
			t.Errorf("%d blocks were dropped of %d, asked for 200", dropped, before)
		}
		s1, s2 := w.source("w1"), w.source("w2")
		equal(t, "index and translators", w.index.Stats().Held[indexer.Device], s1.Ranks[0].Translator.Mapped+s2.Ranks[0].Translator.Mapped)
		equal(t, "shed", s1.Ranks[0].Counters.Shed+s2.Ranks[0].Counters.Shed, dropped)
		w.m.Shed(0, nil)
	})
}

// dynamo#11984: registered, and nothing comes. The snapshot says since when.
func TestSilentSourceShows(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		e.down = true
		w.register("w1", e)
		w.wait(30 * time.Second)
		equal(t, "state", w.source("w1").Ranks[0].State, Pending)
		e.connect()
		w.wait(40 * time.Second)
		s := w.source("w1")
		equal(t, "state", s.Ranks[0].State, Active)
		equal(t, "silent", s.Ranks[0].LastBatch.IsZero() && time.Since(s.Opened) >= 70*time.Second, true)
		grow(e, 0, 1)
		equal(t, "silent", w.source("w1").Ranks[0].LastBatch.IsZero(), false)
	})
}

func TestLag(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		at := func(d time.Duration) float64 { return float64(time.Now().Add(-d).UnixNano()) / 1e9 }
		for i, d := range []time.Duration{30 * time.Millisecond, 3 * time.Second, -time.Minute} {
			e.publish(encode.Append(nil, encode.VLLMMap, &encode.Batch{Time: at(d), Events: []encode.Event{store(letters(i), letters(3)[i:i+1])}}))
			w.wait(5 * time.Millisecond)
		}
		h := w.m.Lag()
		var n uint64
		for i, c := range h.Counts {
			n += c
			if c > 0 && i < len(h.Bounds) {
				t.Logf("up to %v: %d", h.Bounds[i], c)
			}
		}
		equal(t, "samples", n, 3)
		equal(t, "skewed", h.Skewed, 1)
		equal(t, "up to 50 ms", h.Counts[slices.Index(h.Bounds, 50*time.Millisecond)], 1)
		equal(t, "up to 5 s", h.Counts[slices.Index(h.Bounds, 5*time.Second)], 1)
		equal(t, "last lag", w.source("w1").Ranks[0].Lag, 0)
	})
}

// slowWriter holds the frames of one loop until it is opened.
type slowWriter struct {
	indexer.Writer
	gate    chan struct{}
	blocked *atomic.Int64
}

func (s *slowWriter) Write(f indexer.Frame) error {
	s.blocked.Add(1)
	<-s.gate
	return s.Writer.Write(f)
}

// When the index cannot follow, the loop waits and the sockets keep what comes: nothing
// is dropped inside, and other loops go on.
func TestBackPressure(t *testing.T) {
	var gate chan struct{} // made in the bubble of each run
	var blocked atomic.Int64
	run(t, []option{func(c *Config, d *Deps) {
		c.Loops = 2
		blocked.Store(0)
		gate = make(chan struct{})
		n, inner := 0, d.NewWriter
		d.NewWriter = func() indexer.Writer {
			if n++; n == 1 {
				return &slowWriter{inner(), gate, &blocked}
			}
			return inner()
		}
	}}, func(w *world) {
		slow, fast := w.engine("e1", false), w.engine("e2", false)
		w.register("w1", slow) // on the first loop
		w.register("w2", fast)
		grow(slow, 0, 20)
		grow(fast, 0, 10)
		w.want(letters(20), 0)
		equal(t, "w2", w.score(letters(10), "w2"), 10)
		equal(t, "frames at the gate", blocked.Load(), 1)
		close(gate)
		if err := w.m.Flush(w.t.Context()); err != nil {
			t.Fatal(err)
		}
		w.want(letters(20), 20)
		equal(t, "gaps", w.source("w1").Counters.Gaps, 0)
	})
}

// dynamo#14167: what many publishers send is what is applied.
func TestManyPublishers(t *testing.T) {
	run(t, []option{func(c *Config, _ *Deps) { c.Loops = 4 }}, func(w *world) {
		const n, batches = 300, 15
		engines := make([]*mockEngine, n)
		for i := range engines {
			engines[i] = w.engine(fmt.Sprintf("e%d", i), false)
			w.registerAs(catalog.Registration{Instance: fmt.Sprintf("w%d", i), Endpoint: engines[i].endpoint})
		}
		for i := range batches {
			for _, e := range engines {
				grow(e, i, 1)
			}
		}
		if err := w.m.Flush(w.t.Context()); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.settle()
		var applied uint64
		loops := map[int]int{}
		for _, s := range w.m.Status() {
			applied += s.Ranks[0].Counters.Batches
			loops[s.Loop]++
		}
		equal(t, "batches applied", applied, n*batches)
		equal(t, "held", w.index.Stats().Held[indexer.Device], uint64(n*batches))
		equal(t, "sources of a loop", loops[0], n/4)
	})
}

// Purged is reported only when the clear has been applied, and again until it is taken.
func TestPurgedIsRepeated(t *testing.T) {
	run(t, nil, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 2)
		w.unregister("w1", nil)
		w.refuse = errNoLeader
		w.wait(10 * time.Second)
		equal(t, "purged", len(w.purged), 0)
		w.refuse = nil
		w.wait(30 * time.Second)
		equal(t, "purged", len(w.purged), 1)
		w.wait(time.Minute)
		equal(t, "purged", len(w.purged), 1)
	})
}

func TestConfig(t *testing.T) {
	good := Config{Layout: shard.Layout{Partitions: 4}}
	if err := good.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	for name, c := range map[string]Config{
		"Layout.Partitions": {},
		"Loops":             {Layout: good.Layout, Loops: -1},
		"ReplayTimeout":     {Layout: good.Layout, ReplayTimeout: -1},
		"ProbeMax":          {Layout: good.Layout, ProbeAfter: time.Hour},
		"RestartBackoffMax": {Layout: good.Layout, RestartBackoff: time.Hour},
		"RetryMax":          {Layout: good.Layout, RetryMin: time.Hour},
		"OnLoss":            {Layout: good.Layout, OnLoss: 9},
		"BufferBytes":       {Layout: good.Layout, BufferBytes: -5},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New(good, Deps{}); err == nil {
		t.Error("New without dependencies")
	}
}

func TestBacklog(t *testing.T) {
	shared := &budget{max: 10 * (100 + rawOverhead)}
	b := backlog{shared: shared, maxItems: 6, maxBytes: 1 << 20}
	other := backlog{shared: shared, maxItems: 100, maxBytes: 1 << 20}
	push := func(b *backlog, seq uint64, n int) int { return b.push(raw{seq: seq, payload: make([]byte, n)}) }
	for i := range uint64(6) {
		equal(t, "dropped", push(&b, i, 100), 0)
	}
	equal(t, "too many", push(&b, 6, 100), 6)
	equal(t, "front", b.front().seq, 6)
	for i := range uint64(9) {
		equal(t, "dropped", push(&other, i, 100), 0)
	}
	equal(t, "over the shared budget", push(&b, 7, 100), 1)
	equal(t, "larger than everything", push(&b, 8, 4000), 2)
	equal(t, "empty", b.len(), 0)
	r := other.pop()
	equal(t, "popped", r.seq, 0)
	other.unpop(r)
	for i := range uint64(9) {
		equal(t, "order", other.pop().seq, i)
	}
	other.unpop(raw{seq: 42})
	equal(t, "into an empty one", other.pop().seq, 42)
	equal(t, "shared", shared.used, 0)
	for i := range uint64(1000) { // the queue moves: its memory does not grow with what went through
		push(&b, i, 1)
		push(&b, i, 1)
		b.pop()
		b.pop()
	}
	if cap(b.items) > 512 {
		t.Errorf("capacity %d", cap(b.items))
	}
}

func TestDigests(t *testing.T) {
	var d digests
	if _, ok := d.get(0); ok {
		t.Error("an empty one knows something")
	}
	for i := range uint64(1000) {
		d.add(i, i*7)
	}
	for _, c := range []struct {
		seq uint64
		ok  bool
	}{{999, true}, {1000 - digestWindow, true}, {1000 - digestWindow - 1, false}, {1000, false}, {0, false}, {1 << 63, false}} {
		v, ok := d.get(c.seq)
		if ok != c.ok || ok && v != c.seq*7 {
			t.Errorf("get %d: %d, %v", c.seq, v, ok)
		}
	}
	d.add(5000, 1) // a new beginning
	if _, ok := d.get(999); ok {
		t.Error("remembers across a jump")
	}
}

// lazyWriter applies frames at once but does not say so before it is told to.
type lazyWriter struct {
	indexer.Writer
	lazy *atomic.Bool
}

func (l lazyWriter) Applied() uint64 {
	if l.lazy.Load() {
		return 0
	}
	return l.Writer.Applied()
}

// A slot's number must not be free while frames for it are under way (rule G2).
func TestPurgedAwaitsTheClear(t *testing.T) {
	var lazy atomic.Bool
	run(t, []option{func(_ *Config, d *Deps) {
		inner := d.NewWriter
		lazy.Store(true)
		d.NewWriter = func() indexer.Writer { return lazyWriter{inner(), &lazy} }
	}}, func(w *world) {
		e := w.engine("e1", false)
		w.register("w1", e)
		grow(e, 0, 2)
		e.restart(0)
		w.wait(30 * time.Second)
		equal(t, "lives", w.lives, 1)
		equal(t, "purged before it was applied", len(w.purged), 0)
		lazy.Store(false)
		w.settle()
		equal(t, "purged", len(w.purged), 1)
	})
}
