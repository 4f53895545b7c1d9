package mockengine

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/driver"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// variants are fleets that between them use every format and option.
func variants(t testing.TB) map[string]Config {
	tr := traffic(t, 250)
	out := map[string]Config{}
	for _, f := range Formats() {
		out[string(f)] = Config{Workers: 2, Formats: []Format{f}, BlockSize: 16, Capacity: 700}
	}
	out["page size 1"] = Config{Workers: 1, Formats: []Format{SGLangMap}, BlockSize: 1, Capacity: 9000, Hash: HashFast}
	out["page size 1, pairs"] = Config{Workers: 1, Formats: []Format{SGLangBigram}, BlockSize: 1, Capacity: 9000, HostCapacity: 4000, Hash: HashFast}
	out["host tier"] = Config{Workers: 2, Formats: []Format{SGLangMap, VLLMMap}, BlockSize: 16, Capacity: 500, HostCapacity: 1500}
	out["small host tier"] = Config{Workers: 1, Formats: []Format{SGLangArray}, BlockSize: 16, Capacity: 500, HostCapacity: 100}
	out["single removals"] = Config{Workers: 1, BlockSize: 32, Capacity: 300, SingleRemovals: true}
	out["chunked prefill"] = Config{Workers: 1, BlockSize: 16, Capacity: 600, PrefillChunk: 100}
	out["block size 24"] = Config{Workers: 1, BlockSize: 24, Capacity: 500, Formats: []Format{VLLMArray}}
	out["ranks"] = Config{Workers: 2, Ranks: 3, BlockSize: 16, Capacity: 400, Driver: driver.Config{Policy: driver.Random}}
	out["namespaces"] = Config{Workers: 3, Formats: []Format{VLLMMap, SGLangArray, TRTLLM}, BlockSize: 16, Capacity: 500,
		HostCapacity: 800, Driver: driver.Config{LoraShare: 0.4, SaltShare: 0.4}}
	out["twice"] = Config{Workers: 2, BlockSize: 16, Capacity: 700, Repeat: 2}
	for name, c := range out {
		c.Trace = tr
		out[name] = c
	}
	return out
}

// The records replay, strictly, to exactly what the caches hold at the end, and the
// caches' answer to any prompt is the one that follows from the records.
func TestRecordsReplayToContents(t *testing.T) {
	for name, c := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, rec := &MemoryLog{}, &driver.Recorder{}
			c.Sink, c.Recorder = log, rec
			f, _ := play(t, c)
			s := f.Stats()
			models := make([]*model, len(f.publishers))
			for i := range f.publishers {
				models[i] = replay(t, log.Records(i))
				if d := diff(models[i].contents(), f.Contents(i)); d != "" {
					t.Errorf("publisher %d holds something else than its records say (-records +cache):\n%s", i, d)
				}
				if n := len(f.Contents(i)); n == 0 || n > c.Capacity+c.HostCapacity {
					t.Errorf("publisher %d holds %d blocks", i, n)
				}
			}
			found := 0
			for _, r := range rec.Sample(60, 1) {
				locals := f.Plan().AppendLocals(nil, int(r), c.BlockSize)
				if f.Endpoints()[0].Format == SGLangBigram {
					tokens := f.Plan().Prompt(int(r)).Tokens
					locals = f.publishers[0].prof.content(tokens, c.BlockSize).AppendLocals(nil, blockhash.Seed)
				}
				for i, got := range f.Depths(locals) {
					if want := models[i].depths(locals); got != want {
						t.Errorf("request %d at publisher %d: %+v, records say %+v", r, i, got, want)
					}
					found += int(got.Device)
				}
			}
			if found == 0 {
				t.Error("no prompt is found anywhere: the check says nothing")
			}
			repeats := uint64(max(c.Repeat, 1))
			if s.Finished != 250*repeats || s.Running+s.Waiting != 0 || uint64(rec.Len()) != s.Admitted || s.Aborted+s.TooLarge != 0 {
				t.Errorf("250 requests, but %d finished, %d admitted, %d aborted, %d too large", s.Finished, s.Admitted, s.Aborted, s.TooLarge)
			}
			// Few requests overlap when they are spread over many ranks.
			if s.RemovedBlocks[indexer.Device] == 0 || s.Duplicates == 0 && len(f.publishers) < 4 {
				t.Errorf("the load evicts %d blocks and makes %d duplicates: too light to test anything", s.RemovedBlocks[indexer.Device], s.Duplicates)
			}
			if c.HostCapacity > 0 && (s.LoadedBlocks == 0 && c.HostCapacity > c.Capacity || s.StoredBlocks[indexer.Host] == 0) {
				t.Errorf("host tier: %d blocks copied, %d loaded back", s.StoredBlocks[indexer.Host], s.LoadedBlocks)
			}
		})
	}
}

// Decoding the payloads gives the records again: hashes, parents, tiers, and local
// hashes from the tokens in the namespace that the events name or inherit.
func TestPayloadsSayWhatTheRecordsSay(t *testing.T) {
	for name, c := range variants(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := &MemoryLog{}
			c.Sink = log
			f, n := play(t, c)
			for i, at := range f.Endpoints() {
				checkPayloads(t, f, n, i, at, log.Records(i))
			}
		})
	}
}

func checkPayloads(t *testing.T, f *Fleet, n *fakeNetwork, i int, at Endpoint, records []Record) {
	t.Helper()
	dec := engine.NewDecoder(engine.DecoderConfig{})
	records = slices.DeleteFunc(slices.Clone(records), func(r Record) bool { return r.Kind == RecordLife })
	seeds := map[uint64]uint64{} // engine hash -> namespace seed
	k := 0
	for _, m := range n.sockets(at.Publish)[0].messages {
		b, err := dec.Decode(m.payload)
		if err != nil {
			t.Fatalf("publisher %d batch %d: %v", i, m.seq, err)
		}
		if b.Skipped != (engine.SkipCounts{}) || b.Rank != int64(at.Rank) || b.Trailing {
			t.Fatalf("publisher %d batch %d: skipped %v, rank %d, trailing bytes %v", i, m.seq, b.Skipped, b.Rank, b.Trailing)
		}
		for _, e := range b.Events {
			if k == len(records) {
				t.Fatalf("publisher %d batch %d has more events than were recorded", i, m.seq)
			}
			got := Record{Publisher: i, Sequence: m.seq, Tier: e.Tier, HasParent: e.HasParent, Parent: e.Parent, Engines: e.Hashes}
			switch e.Kind {
			case engine.Stored:
				got.Kind = RecordStored
				seed := blockhash.NamespaceSeed(e.LoraName, e.Salt)
				if e.HasParent {
					seed = seeds[e.Parent]
				}
				for _, h := range e.Hashes {
					seeds[h] = seed
				}
				content := f.publishers[i].prof.content(e.Tokens, int(e.BlockSize))
				got.Locals = content.AppendLocals(nil, seed)
				if int(e.BlockSize) != f.cfg.BlockSize || len(e.Extra) != 0 || e.Bigram != f.publishers[i].prof.bigram {
					t.Fatalf("publisher %d batch %d: block size %d, extra keys %v, pairs %v", i, m.seq, e.BlockSize, e.Extra, e.Bigram)
				}
			case engine.Removed:
				got.Kind = RecordRemoved
			case engine.Cleared:
				got.Kind = RecordCleared
			}
			want := records[k]
			if len(want.Locals) == 0 {
				want.Locals = nil
			}
			if len(want.Engines) == 0 {
				want.Engines, got.Engines = nil, nil
			}
			if d := diff(want, got); d != "" {
				t.Fatalf("publisher %d batch %d (-recorded +decoded):\n%s", i, m.seq, d)
			}
			k++
		}
	}
	if k != len(records) {
		t.Errorf("publisher %d: %d events decoded, %d recorded", i, k, len(records))
	}
}

// With every copy announced, counting copies gives the contents, and a set does not.
func TestAnnounceCopies(t *testing.T) {
	log := &MemoryLog{}
	f, _ := play(t, Config{BlockSize: 16, Capacity: 700, HostCapacity: 500, Trace: traffic(t, 250), Sink: log, AnnounceCopies: true})
	copies, deepest := map[uint64]int{}, 0
	for _, r := range log.Records(0) {
		if r.Tier != indexer.Device {
			continue
		}
		for _, e := range r.Engines {
			switch r.Kind {
			case RecordStored:
				copies[e]++
				deepest = max(deepest, copies[e])
			case RecordRemoved:
				if copies[e]--; copies[e] < 0 {
					t.Fatalf("batch %d removes a copy of %x that was never stored", r.Sequence, e)
				}
			}
		}
	}
	for _, h := range f.Contents(0) {
		if h.Tiers.Has(indexer.Device) != (copies[h.Engine] > 0) {
			t.Errorf("block %x is held: %v, with %d copies", h.Engine, h.Tiers.Has(indexer.Device), copies[h.Engine])
		}
		delete(copies, h.Engine)
	}
	for e, n := range copies {
		if n != 0 {
			t.Errorf("block %x is not held and has %d copies", e, n)
		}
	}
	if deepest < 2 {
		t.Error("no block had two copies")
	}
}

// Publishers that push to one subscriber are told apart by their topics.
func TestTopics(t *testing.T) {
	f, _ := fleet(t, Config{Workers: 2, Ranks: 2, Model: "m", Topic: "kv@{instance}-{rank}@{model}", Connect: true, Endpoint: "tcp://127.0.0.1:9000",
		NoReplay: true, Trace: traffic(t, 5)})
	var got []string
	for _, p := range f.publishers {
		got = append(got, p.topic)
	}
	if d := diff([]string{"kv@1-0@m", "kv@1-1@m", "kv@2-0@m", "kv@2-1@m"}, got); d != "" {
		t.Errorf("topics (-want +got):\n%s", d)
	}
}

// Equal configurations give equal event streams.
func TestRunsAreDeterministic(t *testing.T) {
	c := variants(t)["namespaces"]
	a, b := &MemoryLog{}, &MemoryLog{}
	c.Sink = a
	play(t, c)
	c.Sink = b
	f, _ := play(t, c)
	for i, at := range f.Endpoints() {
		x, y := a.Records(i), b.Records(i)
		if at.Format == TRTLLM { // its sequences come from the clock
			x, y = slices.Clone(x), slices.Clone(y)
			for k := range x {
				x[k].Sequence, y[k].Sequence = 0, 0
			}
		}
		if d := diff(x, y); d != "" {
			t.Errorf("publisher %d:\n%s", i, d)
		}
	}
}

func TestEndpoints(t *testing.T) {
	f, _ := fleet(t, Config{Workers: 2, Ranks: 2, BasePort: 5557, FirstInstance: 7, Formats: []Format{VLLMMap, TRTLLM, SGLangMap}, Trace: traffic(t, 5)})
	want := []Endpoint{
		{Instance: 7, Rank: 0, Format: VLLMMap, BlockSize: 16, Publish: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5561"},
		{Instance: 7, Rank: 1, Format: TRTLLM, BlockSize: 16, Publish: "tcp://127.0.0.1:5558", Replay: "tcp://127.0.0.1:5562"},
		{Instance: 8, Rank: 0, Format: SGLangMap, BlockSize: 16, Publish: "tcp://127.0.0.1:5559", Replay: "tcp://127.0.0.1:5563"},
		{Instance: 8, Rank: 1, Format: VLLMMap, BlockSize: 16, Publish: "tcp://127.0.0.1:5560", Replay: "tcp://127.0.0.1:5564"},
	}
	if d := diff(want, f.Endpoints()); d != "" {
		t.Errorf("endpoints (-want +got):\n%s", d)
	}
	f, _ = fleet(t, Config{NoReplay: true, Trace: traffic(t, 5)})
	if at := f.Endpoints()[0]; at.Replay != "" || at.Publish == "tcp://127.0.0.1:0" {
		t.Errorf("without replay: %+v", at)
	}
}

// The shapes of the replay replies go with the engine.
func TestReplayFrames(t *testing.T) {
	for f, want := range map[Format]bool{VLLMMap: true, VLLMArray: false, SGLangMap: false, SGLangArray: false, SGLangBigram: false, TRTLLM: true} {
		fl, n := fleet(t, Config{Formats: []Format{f}, Trace: traffic(t, 5)})
		if got := n.sockets(fl.Endpoints()[0].Publish)[0].cfg.FourFrames; got != want {
			t.Errorf("%s: four frames %v, want %v", f, got, want)
		}
	}
}

func TestOpenAndRunInOrder(t *testing.T) {
	f, err := New(Config{Trace: traffic(t, 5)})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Run(t.Context()); !errors.Is(err, ErrState) {
		t.Errorf("Run before Open: %v", err)
	}
	n := &fakeNetwork{}
	if err := f.Open(n); err != nil {
		t.Fatal(err)
	}
	if err := f.Open(n); !errors.Is(err, ErrState) {
		t.Errorf("Open twice: %v", err)
	}
	other, err := New(Config{Workers: 2, Trace: traffic(t, 5), BasePort: 40000})
	if err != nil {
		t.Fatal(err)
	}
	busy := &fakeNetwork{}
	if _, err := busy.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:40001"}); err != nil {
		t.Fatal(err)
	}
	if err := other.Open(busy); !errors.Is(err, transport.ErrAddressInUse) {
		t.Errorf("Open on a port in use: %v", err)
	}
	if s := busy.sockets("tcp://127.0.0.1:40000"); len(s) != 1 || !s[0].closed {
		t.Error("the sockets that were open before the failure stay open")
	}
}

// A publisher that cannot send ends the run, and the error says who and what.
func TestPublishFailureEndsTheRun(t *testing.T) {
	f, n := fleet(t, Config{Workers: 3, Trace: traffic(t, 50)})
	n.mu.failures = 20
	err := f.Run(t.Context())
	if err == nil {
		t.Fatal("the run succeeded")
	}
	var i, seq int
	if _, scan := fmt.Sscanf(err.Error(), "publisher %d: publish batch %d: no route", &i, &seq); scan != nil {
		t.Errorf("error %q", err)
	}
}

// A request that needs more than the whole cache is counted, not waited for.
func TestTooLargeRequests(t *testing.T) {
	f, _ := play(t, Config{BlockSize: 16, Capacity: 20, Trace: traffic(t, 100)})
	if s := f.Stats(); s.TooLarge == 0 || s.TooLarge+s.Finished != 100 {
		t.Errorf("%d too large, %d finished of 100", s.TooLarge, s.Finished)
	}
}
