package mockengine

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/transport/engine"
)

// faulty plays a fleet of one publisher with one fault after its 40th batch.
func faulty(t *testing.T, format Format, fault Fault) (*Fleet, *fakeNetwork, []Record) {
	t.Helper()
	log := &MemoryLog{}
	fault.Batch, fault.Worker = 40, -1
	f, n := play(t, Config{
		Formats: []Format{format}, BlockSize: 16, Capacity: 700, Trace: traffic(t, 200), Sink: log,
		Faults: []Fault{fault},
	})
	return f, n, log.Records(0)
}

// lives cuts records at the begin of each life.
func lives(records []Record) (out [][]Record) {
	for _, r := range records {
		if r.Kind == RecordLife {
			out = append(out, nil)
		}
		out[len(out)-1] = append(out[len(out)-1], r)
	}
	return out
}

func TestRestart(t *testing.T) {
	for _, kind := range []FaultKind{Restart, RestartInPlace} {
		for _, format := range Formats() {
			f, n, records := faulty(t, format, Fault{Kind: kind})
			name := string(kind) + " of " + string(format)
			l := lives(records)
			if len(l) != 2 || f.Stats().Lives != 2 || f.Stats().Aborted == 0 {
				t.Fatalf("%s: %d lives, %+v", name, len(l), f.Stats())
			}
			first := l[1][0].Sequence
			if format == TRTLLM {
				if was := l[0][len(l[0])-1].Sequence; first <= was || was < 1e18 {
					t.Errorf("%s: sequence goes from %d to %d, want the nanosecond clock", name, was, first)
				}
			} else if first != 0 {
				t.Errorf("%s: the new life begins at %d", name, first)
			}
			clears := 0
			for i, r := range l[1] {
				if r.Kind == RecordCleared {
					clears++
					if i != 1 || r.Sequence != first {
						t.Errorf("%s: clear as record %d with sequence %d", name, i, r.Sequence)
					}
				}
			}
			if want := map[bool]int{true: 0, false: 1}[strings.HasPrefix(string(format), "vllm")]; clears != want {
				t.Errorf("%s: %d clears in the new life, want %d", name, clears, want)
			}
			if d := diff(replay(t, records).contents(), f.Contents(0)); d != "" {
				t.Errorf("%s: contents (-records +cache):\n%s", name, d)
			}
			at := f.Endpoints()[0]
			sockets := n.sockets(at.Publish)
			last := sockets[len(sockets)-1]
			if want := map[FaultKind]int{Restart: 2, RestartInPlace: 1}[kind]; len(sockets) != want {
				t.Fatalf("%s: %d sockets on one endpoint, want %d", name, len(sockets), want)
			}
			if last.cfg.ReplayEndpoint != at.Replay {
				t.Errorf("%s: replay moved from %s to %s", name, at.Replay, last.cfg.ReplayEndpoint)
			}
			if last.buffer[0].seq != first {
				t.Errorf("%s: the replay buffer begins with %d, want %d: it survived the restart", name, last.buffer[0].seq, first)
			}
		}
	}
}

// The system may give a port back late; that is no failure.
func TestRestartWaitsForItsPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, n := fleet(t, Config{Trace: traffic(t, 100), Faults: []Fault{{Kind: Restart, Batch: 10, Worker: -1}}})
		n.mu.busy = 7
		if err := f.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n.mu.busy != 0 || f.Stats().Lives != 2 {
			t.Errorf("%d refusals left, %d lives", n.mu.busy, f.Stats().Lives)
		}
	})
}

func TestLostBatches(t *testing.T) {
	for _, kind := range []FaultKind{Lose, Drop} {
		f, n, records := faulty(t, VLLMMap, Fault{Kind: kind, Count: 5})
		s := n.sockets(f.Endpoints()[0].Publish)[0]
		published, buffered := map[uint64]bool{}, map[uint64]bool{}
		for _, m := range s.messages {
			if m.how == "publish" {
				published[m.seq] = true
			}
		}
		for _, m := range s.buffer {
			buffered[m.seq] = true
		}
		batches := f.Stats().Batches
		for seq := range batches {
			gone := seq >= 40 && seq < 45
			if published[seq] == gone {
				t.Errorf("%s: batch %d published: %v", kind, seq, published[seq])
			}
			if want := !gone || kind == Lose; buffered[seq] != want {
				t.Errorf("%s: batch %d can be replayed: %v, want %v", kind, seq, buffered[seq], want)
			}
		}
		fate := map[FaultKind]Fate{Lose: Withheld, Drop: Lost}[kind]
		for _, r := range records {
			want := Sent
			if r.Sequence >= 40 && r.Sequence < 45 {
				want = fate
			}
			if r.Fate != want {
				t.Errorf("%s: record of batch %d has fate %d, want %d", kind, r.Sequence, r.Fate, want)
			}
		}
		if st := f.Stats(); st.Withheld+st.Lost != 5 || (kind == Lose) != (st.Withheld == 5) {
			t.Errorf("%s: %d withheld, %d lost", kind, st.Withheld, st.Lost)
		}
		// The cache itself lost nothing: all records together are its contents.
		if d := diff(replay(t, records).contents(), f.Contents(0)); d != "" {
			t.Errorf("%s: contents (-records +cache):\n%s", kind, d)
		}
	}
}

// A fault at batch 0 comes before the first batch, an engine's first clear included.
func TestFaultBeforeTheFirstBatch(t *testing.T) {
	for _, format := range []Format{VLLMMap, SGLangMap} {
		f, n := play(t, Config{Formats: []Format{format}, Trace: traffic(t, 30), Faults: []Fault{
			{Kind: Lose, Count: 2, Worker: -1}, {Kind: Garbage, Worker: -1},
		}})
		var how []string
		for _, m := range n.sockets(f.Endpoints()[0].Publish)[0].messages[:4] {
			how = append(how, m.how)
		}
		want := []string{"raw", "record", "record", "publish"} // vLLM says nothing at its start
		if format == SGLangMap {
			want = []string{"record", "raw", "record", "publish"}
		}
		if d := diff(want, how); d != "" {
			t.Errorf("%s: the first messages (-want +got):\n%s", format, d)
		}
	}
}

func TestResetSequence(t *testing.T) {
	f, n, records := faulty(t, SGLangArray, Fault{Kind: ResetSequence})
	if len(lives(records)) != 1 {
		t.Error("a reset of the sequence began a new life")
	}
	if d := diff(replay(t, records).contents(), f.Contents(0)); d != "" {
		t.Errorf("the cache changed (-records +cache):\n%s", d)
	}
	s := n.sockets(f.Endpoints()[0].Publish)[0]
	for i, m := range s.messages {
		want := uint64(i)
		if i >= 40 {
			want -= 40
		}
		if m.seq != want {
			t.Fatalf("message %d has sequence %d, want %d", i, m.seq, want)
		}
	}
	if s.buffer[0].seq != 0 || len(s.buffer) != len(s.messages)-40 {
		t.Errorf("the replay buffer has %d batches from %d on", len(s.buffer), s.buffer[0].seq)
	}
}

// Garbage is garbage to the decoder, and what follows it is not.
func TestGarbage(t *testing.T) {
	f, n, records := faulty(t, VLLMArray, Fault{Kind: Garbage, Count: 12})
	dec := engine.NewDecoder(engine.DecoderConfig{})
	raw, bad, good := 0, 0, 0
	next := uint64(0)
	for _, m := range n.sockets(f.Endpoints()[0].Publish)[0].messages {
		if m.how == "raw" {
			raw++
			continue
		}
		if m.seq != next {
			t.Fatalf("sequence %d, want %d", m.seq, next)
		}
		next++
		if b, err := dec.Decode(m.payload); err != nil {
			bad++
		} else {
			good += len(b.Events)
		}
	}
	if raw != 6 || bad != 6 || good != len(records)-1 || f.Stats().Garbage != 12 {
		t.Errorf("%d raw and %d undecodable messages, %d events of %d, %d counted", raw, bad, good, len(records)-1, f.Stats().Garbage)
	}
}

func TestClear(t *testing.T) {
	f, _, records := faulty(t, VLLMMap, Fault{Kind: Clear})
	clears := 0
	for _, r := range records {
		if r.Kind == RecordCleared {
			clears++
		}
	}
	s := f.Stats()
	if clears != 1 || s.Cleared != 1 || s.Finished != 200 || s.Admitted <= 200 {
		t.Errorf("%d clears; %d finished of 200, %d admitted (those that ran begin again)", clears, s.Finished, s.Admitted)
	}
	if d := diff(replay(t, records).contents(), f.Contents(0)); d != "" {
		t.Errorf("contents (-records +cache):\n%s", d)
	}
}

func TestStop(t *testing.T) {
	f, n := play(t, Config{Workers: 2, Trace: traffic(t, 200), Faults: []Fault{{Kind: Stop, Batch: 30, Worker: 1}}})
	s := n.sockets(f.Endpoints()[1].Publish)
	if len(s) != 1 || !s[0].closed || len(s[0].messages) != 30 {
		t.Errorf("the stopped publisher sent %d messages", len(s[0].messages))
	}
	if st := f.Stats(); st.Stopped != 1 || st.Done != 2 || f.PublisherStats(0).Finished == 0 {
		t.Errorf("stats %+v", st)
	}
}

// Faults can be asked for while the fleet runs, and after the trace while it stays.
func TestInject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &MemoryLog{}
		f, n := fleet(t, Config{Workers: 2, Trace: traffic(t, 300), Speedup: 1, Stay: true, Sink: log, Formats: []Format{SGLangMap}})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- f.Run(ctx) }()

		time.Sleep(8 * time.Second)
		synctest.Wait()
		if s := f.Stats(); s.TraceTime > 8*time.Second || s.Batches < 10 {
			t.Errorf("after 8 s the trace has been played to %s in %d batches", s.TraceTime, s.Batches)
		}
		if err := f.Inject(ctx, Fault{Kind: Restart, Worker: 0}); err != nil {
			t.Error(err)
		}
		if a, b := f.PublisherStats(0), f.PublisherStats(1); a.Lives != 2 || b.Lives != 1 || a.Held[0] != 0 {
			t.Errorf("lives %d and %d, %d blocks held after a restart", a.Lives, b.Lives, a.Held[0])
		}
		<-f.Done()
		if err := f.Inject(ctx, Fault{Kind: Clear, Worker: -1}); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for i := range 2 {
			r := log.Records(i)
			if r[len(r)-1].Kind != RecordCleared || len(f.Contents(i)) != 0 {
				t.Errorf("publisher %d: the last record is %+v", i, r[len(r)-1])
			}
		}
		if err := f.Inject(ctx, Fault{Kind: Stop, Worker: 1}); err != nil {
			t.Error(err)
		}
		if err := f.Inject(ctx, Fault{Kind: Clear, Worker: 1}); !errors.Is(err, errStopped) {
			t.Errorf("a fault at a stopped publisher: %v", err)
		}
		if err := f.Inject(ctx, Fault{Kind: "melt", Worker: 1}); !errors.Is(err, ErrConfig) {
			t.Errorf("an unknown fault: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := f.Inject(t.Context(), Fault{Kind: Clear, Worker: 0}); !errors.Is(err, ErrState) {
			t.Errorf("a fault after the end: %v", err)
		}
		for _, at := range f.Endpoints() {
			for _, s := range n.sockets(at.Publish) {
				if !s.closed {
					t.Errorf("%s is still open", at.Publish)
				}
			}
		}
	})
}

func TestParseFault(t *testing.T) {
	for text, want := range map[string]Fault{
		"restart@100":          {Kind: Restart, Count: 1, Batch: 100, Worker: -1},
		"lose:5@200/3":         {Kind: Lose, Count: 5, Batch: 200, Worker: 3},
		"reset-sequence@0":     {Kind: ResetSequence, Count: 1, Worker: -1},
		"restart-in-place@7/0": {Kind: RestartInPlace, Count: 1, Batch: 7},
	} {
		got, err := ParseFault(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if back, err := ParseFault(got.String()); err != nil || back != got {
			t.Errorf("%s prints as %s and reads back as %+v, %v", text, got, back, err)
		}
	}
	for _, text := range []string{"restart", "melt@3", "lose:x@3", "lose:5@y", "lose@3/z", "lose@3/-1", "lose:-4@3", ""} {
		if _, err := ParseFault(text); !errors.Is(err, ErrConfig) {
			t.Errorf("%q: error %v", text, err)
		}
	}
}
