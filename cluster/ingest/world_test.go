package ingest

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

const testBlock = 4 // tokens per block in these tests

// world is a node's surroundings: a catalog behind a log with a delay, a reference
// index, scripted engines. Everything runs in a synctest bubble.
type world struct {
	t     *testing.T
	net   *scriptNet
	m     *Manager
	index *reference.Index
	model string

	mu      sync.Mutex
	catalog *catalog.Catalog
	at      uint64
	delay   time.Duration // of every command
	refuse  error         // every command fails with it
	// refuseRank fails the new lives of some ranks.
	refuseRank func(rank uint32) error
	away       bool // the sources are read elsewhere
	lives      int  // NewLife commands that changed something
	asked      int  // NewLife commands
	purged     []catalog.Retired
	filled     []uint64 // lives that were said to be whole
	faults     []string
}

type option func(*Config, *Deps)

// run runs a test in a bubble with a world: with the translator of this package's
// tests, which shares nothing with the real one, and with the real one.
func run(t *testing.T, opts []option, test func(w *world)) {
	t.Helper()
	t.Run("plain", func(t *testing.T) {
		runWith(t, append([]option{func(_ *Config, d *Deps) { d.NewTranslator = newPlain }}, opts...), test)
	})
	t.Run("real", func(t *testing.T) { runWith(t, opts, test) })
}

func runWith(t *testing.T, opts []option, test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, net: newScriptNet(), catalog: catalog.New(), model: "m", delay: 20 * time.Millisecond}
		w.index = reference.New(reference.Config{OnFault: func(h indexer.Header, err error) {
			w.faults = append(w.faults, fmt.Sprintf("slot %d sequence %d: %v", h.Slot, h.Sequence, err))
		}})
		cfg := Config{Layout: shard.Layout{Partitions: 8}}
		deps := Deps{Network: w.net, Log: w, NewWriter: w.index.NewWriter}
		for _, o := range opts {
			o(&cfg, &deps)
		}
		m, err := New(cfg, deps)
		if err != nil {
			t.Fatal(err)
		}
		w.m = m
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		test(w)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		for _, f := range w.faults {
			t.Errorf("the index refused a frame: %s", f)
		}
		time.Sleep(time.Minute) // timers and commands under way end
	})
}

func (w *world) command(what func(index uint64) error, done func(error)) {
	go func() {
		time.Sleep(w.delay)
		done(w.commit(what))
	}()
}

// commit applies a command to the catalog and hands the view out.
func (w *world) commit(what func(index uint64) error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return w.refuse
	}
	w.at++
	err := what(w.at)
	w.m.Reconcile(w.view())
	return err
}

// view is what this node is to read. The caller holds the lock.
func (w *world) view() *catalog.View {
	return w.catalog.View().WithSources(func(catalog.Source) bool { return !w.away })
}

func (w *world) locals(path string) []uint64 {
	return blockhash.AppendTokens(nil, tokens(path), testBlock, blockhash.Seed)
}

// partition is where the chain of a path lies.
func (w *world) partition(path string) indexer.PartitionID {
	return indexer.PartitionID(shard.Layout{Partitions: 8}.Partition(1, w.locals(path)[0], 0))
}

func (w *world) NewLife(instance string, rank uint32, life uint64, done func(error)) {
	w.command(func(at uint64) error {
		w.asked++
		if w.refuseRank != nil {
			if err := w.refuseRank(rank); err != nil {
				return err
			}
		}
		r, err := w.catalog.NewLife(at, instance, rank, life)
		if r.Life != 0 {
			w.lives++
		}
		return err
	}, done)
}

func (w *world) Filled(instance string, rank uint32, life uint64, done func(error)) {
	w.command(func(at uint64) error {
		w.filled = append(w.filled, life)
		return w.catalog.Filled(at, instance, rank, life)
	}, done)
}

func (w *world) Discover(source uint64, rank uint32, done func(error)) {
	w.command(func(at uint64) error { return w.catalog.Discover(at, source, rank) }, done)
}

func (w *world) Purged(r catalog.Retired, done func(error)) {
	w.command(func(at uint64) error {
		if err := w.index.Purge(context.Background(), indexer.GroupID(r.Group), indexer.Slot(r.Slot)); err != nil {
			return err
		}
		w.purged = append(w.purged, r)
		w.catalog.Purged(at, r)
		return nil
	}, done)
}

// engine makes an engine that listens on an endpoint of its own.
func (w *world) engine(name string, replay bool) *mockEngine {
	e := &mockEngine{net: w.net, endpoint: "tcp://" + name + ":5557"}
	if replay {
		e.replay = "tcp://" + name + ":5558"
		w.net.replays[e.replay] = e
	}
	w.net.engines[e.endpoint] = e
	return e
}

// register registers ranks of an instance for an engine and lets it connect.
func (w *world) register(instance string, e *mockEngine, ranks ...uint32) {
	w.t.Helper()
	if len(ranks) == 0 {
		ranks = []uint32{0}
	}
	for _, r := range ranks {
		w.registerAs(catalog.Registration{Instance: instance, Rank: r, Endpoint: e.endpoint, ReplayEndpoint: e.replay, Topic: e.topic})
	}
}

func (w *world) registerAs(r catalog.Registration) {
	w.t.Helper()
	r.Group = catalog.GroupKey{Model: w.model, RoutingGroup: "default"}
	if r.BlockSize == 0 {
		r.BlockSize = testBlock
	}
	if err := w.commit(func(at uint64) error { return w.catalog.Register(at, r) }); err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

func (w *world) unregister(instance string, rank *uint32) {
	w.t.Helper()
	group := "default"
	err := w.commit(func(at uint64) error {
		_, err := w.catalog.Unregister(at, catalog.Unregistration{Instance: instance, Model: w.model, Group: &group, Rank: rank})
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	synctest.Wait()
}

// settle lets everything under way happen: log commands and short time-outs.
// takeTurn passes through a lock: what was done under it before is seen after.
func takeTurn(mu sync.Locker) {
	mu.Lock()
	defer mu.Unlock()
}

func (w *world) settle() { w.wait(time.Second) }

func (w *world) wait(d time.Duration) {
	// The race detector sees by these locks that the test, which has stopped, and
	// whatever runs while it sleeps take turns.
	takeTurn(&w.net.mu)
	takeTurn(&w.mu)
	time.Sleep(d)
	synctest.Wait()
}

// scores returns the device scores of a prompt by holder.
func (w *world) scores(tokens []uint32, lora, salt string) map[catalog.Holder]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[catalog.Holder]int{}
	g, ok := w.catalog.View().Group(catalog.GroupKey{Model: w.model, RoutingGroup: "default"})
	if !ok {
		return out
	}
	locals := blockhash.AppendTokens(nil, tokens, int(g.BlockSize), blockhash.NamespaceSeed(lora, salt))
	if len(locals) == 0 {
		return out
	}
	r := w.index.NewReader()
	defer r.Close()
	var s indexer.Scores
	r.Match(indexer.Query{
		Group: indexer.GroupID(g.ID), Locals: locals,
		Partition: indexer.PartitionID(shard.Layout{Partitions: 8}.Partition(g.ID, locals[0], 0)),
	}, &s)
	for _, row := range s.Rows {
		if h, ok := g.Holder(uint32(row.Slot)); ok {
			out[catalog.Holder{Instance: h.Instance, Rank: h.Rank}] = int(row.Depth)
		}
	}
	return out
}

// tier returns how far the tier walk of rank 0 of w1 gets when it ends in tier t.
func (w *world) tier(path string, t indexer.Tier) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	g, _ := w.catalog.View().Group(catalog.GroupKey{Model: w.model, RoutingGroup: "default"})
	locals := blockhash.AppendTokens(nil, tokens(path), testBlock, blockhash.Seed)
	r := w.index.NewReader()
	defer r.Close()
	var s indexer.Scores
	r.Match(indexer.Query{
		Group: indexer.GroupID(g.ID), Locals: locals,
		Partition: indexer.PartitionID(shard.Layout{Partitions: 8}.Partition(g.ID, locals[0], 0)),
	}, &s)
	for _, row := range s.Tiers {
		if h, ok := g.Holder(uint32(row.Slot)); ok && h.Instance == "w1" {
			return int(row.Depth[t])
		}
	}
	for _, row := range s.Rows {
		if h, ok := g.Holder(uint32(row.Slot)); ok && h.Instance == "w1" {
			return int(row.Depth)
		}
	}
	return 0
}

// score is the device score of a path for rank 0 of instance w1, or of the holder given.
func (w *world) score(path string, holder ...any) int {
	h := catalog.Holder{Instance: "w1"}
	for _, x := range holder {
		switch x := x.(type) {
		case string:
			h.Instance = x
		case int:
			h.Rank = uint32(x)
		}
	}
	synctest.Wait()
	return w.scores(tokens(path), "", "")[h]
}

// want checks scores: pairs of a path and its score for rank 0 of w1.
func (w *world) want(pairs ...any) {
	w.t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if got := w.score(pairs[i].(string)); got != pairs[i+1].(int) {
			w.t.Errorf("score of %q is %d, want %d", pairs[i], got, pairs[i+1])
		}
	}
}

// rank returns the status of a rank, as fresh as the test wants it.
func (w *world) rank(instance string, rank uint32) RankStatus {
	w.t.Helper()
	r, _, err := w.m.RankStatus(instance, rank)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// source returns the status of an instance's only source.
func (w *world) source(instance string) *SourceStatus {
	w.t.Helper()
	w.wait(time.Second)
	for _, s := range w.m.Status() {
		if s.Instance == instance {
			return s
		}
	}
	w.t.Fatalf("no source of %s", instance)
	return nil
}

func (w *world) life(instance string, rank uint32) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	worker, _ := w.catalog.View().Worker(instance)
	for _, r := range worker.Ranks {
		if r.Rank == rank {
			return r.Life
		}
	}
	return 0
}

// A path is a prompt, one letter for each block: "abc" has three. tokens spells it out.
func tokens(path string) []uint32 {
	out := make([]uint32, 0, testBlock*len(path))
	for _, c := range []byte(path) {
		for i := range uint32(testBlock) {
			out = append(out, uint32(c)*100+i)
		}
	}
	return out
}

// hash is the engine's hash of the last block of a path: it names the whole prefix.
func hash(path string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(path))
	return h.Sum64()
}

// hashes are those of blocks below a parent path.
func hashes(parent, blocks string) []uint64 {
	var out []uint64
	for i := range blocks {
		out = append(out, hash(parent+blocks[:i+1]))
	}
	return out
}

// store is a store event of blocks below a parent path, "" being the root.
func store(parent, blocks string) encode.Event {
	return encode.Event{
		Kind: engine.Stored, Hashes: hashes(parent, blocks), HasParent: parent != "", Parent: hash(parent),
		Tokens: tokens(blocks), BlockSize: testBlock, Medium: "GPU", Group: -1,
	}
}

// remove is a removal of the last blocks of some paths.
func remove(paths ...string) encode.Event {
	ev := encode.Event{Kind: engine.Removed, Medium: "GPU", Group: -1}
	for _, p := range paths {
		ev.Hashes = append(ev.Hashes, hash(p))
	}
	return ev
}

func on(medium string, ev encode.Event) encode.Event { ev.Medium = medium; return ev }

func cleared() encode.Event { return encode.Event{Kind: engine.Cleared, Group: -1} }

// batch is the payload of one message for rank 0.
func batch(events ...encode.Event) []byte { return rankBatch(0, events...) }

func rankBatch(rank int64, events ...encode.Event) []byte {
	return encode.Append(nil, encode.VLLMMap, &encode.Batch{Time: stamp(), Rank: rank, Events: events})
}

var stamps atomic.Int64

// stamp is the engine's clock. Unlike the bubble's it never stands still: two batches
// of an engine always differ.
func stamp() float64 {
	return float64(time.Now().Add(time.Duration(stamps.Add(1)%1000)*time.Microsecond).UnixNano()) / 1e9
}

func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func noReplayTraffic(t *testing.T, e *mockEngine, want ...uint64) {
	t.Helper()
	if !slices.Equal(e.requests, want) {
		t.Errorf("replays were asked from %d, want %d", e.requests, want)
	}
}

var errNoLeader = errors.New("no leader")

var _ translate.Interface = (*plainTranslator)(nil)
