package router

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/indexer/tree"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// indexedCluster is the fake with a real index behind its searchers.
type indexedCluster struct {
	*fakeCluster
	index  indexer.Index
	writer indexer.Writer
	runs   map[indexer.Slot]indexer.Run
	frame  indexer.FrameBuilder
}

func (c *indexedCluster) NewSearcher() Searcher {
	return NewLocalSearcher(c.index.NewReader(), func() uint64 { return c.View().Index })
}

func (c *indexedCluster) DumpSlot(ctx context.Context, g indexer.GroupID, s indexer.Slot, visit func(indexer.Stretch) error) error {
	for p := range c.layout.Partitions {
		if err := c.index.Dump(ctx, g, indexer.PartitionID(p), s, visit); err != nil {
			return err
		}
	}
	return nil
}

// store writes a path as one run of a rank, in some tiers.
func (c *indexedCluster) store(t *testing.T, instance string, rank uint32, path []uint64, tiers ...indexer.Tier) {
	t.Helper()
	g, s := c.rank(instance, rank)
	slot := indexer.Slot(s)
	c.frame.Reset(indexer.Header{Group: indexer.GroupID(g.ID), Slot: slot, Life: 1, Tenure: 1,
		Partition: indexer.PartitionID(c.layout.Partition(g.ID, path[0], s))})
	run := c.runs[slot]
	c.runs[slot]++
	locals, engines := c.frame.Store(tiers[0], run, 0, indexer.Parent{}, len(path))
	copy(locals, path)
	for i := range engines {
		engines[i] = engineHash(path[:i+1])
	}
	for _, tier := range tiers[1:] {
		c.frame.Claim(tier, indexer.MakeRange(run, 0, len(path)))
	}
	if err := c.writer.Write(c.frame.Frame()); err != nil {
		t.Fatal(err)
	}
	for _, tier := range tiers {
		c.hold(instance, rank, tier, 0, path...)
	}
}

// The answers over a real index equal those over plain maps, for prompts and for both
// kinds of hashes, in both dialects, and in explanations and dumps.
func TestAgainstIndex(t *testing.T) {
	t.Run("reference", func(t *testing.T) { compareWithIndex(t, reference.New(reference.Config{})) })
	t.Run("tree", func(t *testing.T) {
		x, err := tree.Open(tree.Config{Lanes: 2})
		if err != nil {
			t.Fatal(err)
		}
		compareWithIndex(t, x)
	})
}

func compareWithIndex(t *testing.T, x indexer.Index) {
	c := &indexedCluster{fakeCluster: newFake(), index: x, runs: map[indexer.Slot]indexer.Run{}}
	c.writer = c.index.NewWriter()
	logger := slog.New(slog.NewTextHandler(io.Discard, nil))
	real := &fixture{t: t, fake: c.fakeCluster, router: New(Config{}, c, logger)}
	plain := &fixture{t: t, fake: c.fakeCluster, router: New(Config{}, c.fakeCluster, logger)}
	for i := range 5 {
		for rank := range 2 {
			real.register(strconv.Itoa(i), rank)
		}
	}
	r := rand.New(rand.NewPCG(7, 9))
	prompt := func() []uint32 { // few tokens, so that prompts share prefixes
		ids := make([]uint32, r.IntN(40))
		for i := range ids {
			ids[i] = uint32(r.IntN(8) / 7)
		}
		return ids
	}
	for range 150 {
		if path := blockhash.AppendTokens(nil, prompt(), 4, blockhash.Seed); len(path) > 0 {
			tiers := []indexer.Tier{indexer.Device, indexer.Host, indexer.Disk, indexer.External}
			r.Shuffle(4, func(i, j int) { tiers[i], tiers[j] = tiers[j], tiers[i] })
			c.store(t, strconv.Itoa(r.IntN(5)), uint32(r.IntN(2)), path, tiers[:1+r.IntN(2)]...)
		}
	}
	if err := c.writer.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	matched := 0
	for range 300 {
		ids := prompt()
		locals := blockhash.AppendTokens(nil, ids, 4, blockhash.Seed)
		for path, body := range map[string]any{
			"/query":                  map[string]any{"model_name": "m", "token_ids": ids},
			"/query?mooncake":         map[string]any{"model": "m", "token_ids": ids, "block_size": 4},
			"/query_by_hash":          map[string]any{"model_name": "m", "block_hashes": locals},
			"/query_by_hash?sequence": map[string]any{"model": "m", "seq_hashes": blockhash.AppendSequence(nil, locals)},
			"/explain":                map[string]any{"model_name": "m", "token_ids": ids, "instance_id": 3, "dp_rank": 1},
		} {
			b, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(b), ":null", ":[]")
			want := plain.mustPost(path, text, 200).body
			if got := real.mustPost(path, text, 200).body; got != want {
				t.Fatalf("%s %s:\n%s\nover maps:\n%s", path, text, got, want)
			} else if path == "/query" && strings.Contains(got, `"gpu"`) {
				matched++
			}
		}
	}
	if matched < 100 {
		t.Errorf("only %d prompts matched anything", matched)
	}
	compareDumps(t, real, plain)
	for _, f := range []*fixture{real, plain} {
		if err := f.router.Close(); err != nil {
			t.Error(err)
		}
	}
	c.writer.Close()
	if err := c.index.Close(); err != nil {
		t.Error(err)
	}
}

// compareDumps compares block by block: a real index groups blocks into longer events.
func compareDumps(t *testing.T, real, plain *fixture) {
	t.Helper()
	blocks := func(f *fixture) (out []string) {
		var groups map[string]struct {
			Events []dumpedEvent `json:"events"`
		}
		if err := json.Unmarshal([]byte(f.get("/dump").body), &groups); err != nil {
			t.Fatal(err)
		}
		for key, g := range groups {
			for _, e := range g.Events {
				parent := "root"
				if p := e.Event.Data.Stored.Parent; p != nil {
					parent = fmt.Sprint(*p)
				}
				for _, b := range e.Event.Data.Stored.Blocks {
					out = append(out, fmt.Sprintf("%s %s/%d %s: %s -> %d (%d)", key, e.WorkerID, e.Event.Rank, e.Tier, parent, b.Block, b.Local))
					parent = fmt.Sprint(b.Block)
				}
			}
		}
		slices.Sort(out)
		return slices.Compact(out) // one position may have several names
	}
	got, want := blocks(real), blocks(plain)
	if !slices.Equal(got, want) {
		t.Errorf("dump has %d blocks, over maps %d", len(got), len(want))
	}
}

// While workers come and go and slots are reused, an answer never names an instance for
// what another one holds. Every instance holds its own prompt only.
func TestQueriesWhileWorkersChange(t *testing.T) {
	f := setup(t, Config{})
	f.register("keeper", 0)
	const rounds, names = 300, 6
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for q := range 2 {
		wg.Go(func() {
			for i := q; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				name := strconv.Itoa(i % names)
				a := f.post("/query_by_hash", fmt.Sprintf(`{"block_hashes":[%d,5],"model_name":"m"}`, 1000+i%names))
				var answer struct {
					Scores map[string]map[string]int `json:"scores"`
				}
				if err := json.Unmarshal([]byte(a.body), &answer); err != nil || a.status != 200 {
					t.Errorf("%d %s", a.status, a.body)
					return
				}
				for who := range answer.Scores {
					if who != name {
						t.Errorf("prompt of %s is credited to %s", name, who)
						return
					}
				}
				if i%50 == 0 {
					f.get("/metrics")
					f.get("/workers")
				}
			}
		})
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range rounds {
		i := r.IntN(names)
		name := strconv.Itoa(i)
		if _, there := f.fake.View().Worker(name); there {
			if err := f.fake.Unregister(t.Context(), catalog.Unregistration{Instance: name, Model: "m"}); err != nil {
				t.Fatal(err)
			}
			continue
		}
		f.register(name, 0)
		f.fake.hold(name, 0, indexer.Device, 0, uint64(1000+i), 5)
	}
	close(stop)
	wg.Wait()
}
