package router

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// fakeCluster is a node made of plain maps: a catalog, and for every slot and tier the
// set of paths that it holds. It shares no code with an index.
type fakeCluster struct {
	mu       sync.Mutex
	catalog  *catalog.Catalog
	index    uint64
	held     map[heldKey]indexer.TierMask // by path
	evicted  map[heldKey]bool
	children map[string]map[uint64]bool // path to the local hashes that follow, group in front
	streams  map[streamKey]*StreamStatus
	bigram   map[uint32]bool
	notReady string
	lacks    Completeness
	refuse   error
	members  []MemberStatus
	shards   ShardsStatus
	snapshot SnapshotResult
	removed  []string // "leave a", "remove b", "force b"
	member   error    // returned by Leave and Remove
	status   NodeStatus
	layout   shard.Layout
	// onMatch runs at the beginning of every match, with the lock held.
	onMatch func(*fakeCluster)
	dumpErr error
	block   chan struct{} // when set, Match waits for it
	// live counts searchers that were not closed.
	live int
	err  error // returned by Register
}

type heldKey struct {
	group uint32
	slot  uint32
	path  string
}

func newFake() *fakeCluster {
	return &fakeCluster{
		catalog: catalog.New(), held: map[heldKey]indexer.TierMask{}, evicted: map[heldKey]bool{},
		children: map[string]map[uint64]bool{}, streams: map[streamKey]*StreamStatus{}, bigram: map[uint32]bool{},
		layout: shard.Layout{Partitions: 16},
	}
}

func (f *fakeCluster) View() *catalog.View {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.catalog.View()
}

func (f *fakeCluster) Layout() shard.Layout { return f.layout }

func (f *fakeCluster) Bigram(g uint32) bool { return f.bigram[g] }

func (f *fakeCluster) NewSearcher() Searcher {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.live++
	return &fakeSearcher{f: f}
}

func (f *fakeCluster) Register(_ context.Context, r catalog.Registration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	f.index++
	return f.catalog.Register(f.index, r)
}

func (f *fakeCluster) Unregister(_ context.Context, u catalog.Unregistration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.index++
	retired, err := f.catalog.Unregister(f.index, u)
	for _, r := range retired {
		f.purge(r)
	}
	return err
}

func (f *fakeCluster) purge(r catalog.Retired) {
	for k := range f.held {
		if k.group == r.Group && k.slot == r.Slot {
			delete(f.held, k)
		}
	}
	f.index++
	f.catalog.Purged(f.index, r)
}

func (f *fakeCluster) Streams() (out []StreamStatus) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, w := range f.catalog.View().Workers() {
		for _, r := range w.Ranks {
			if s := f.streams[streamKey{w.Instance, r.Rank}]; s != nil {
				out = append(out, *s)
			}
		}
	}
	return out
}

func (f *fakeCluster) PauseStream(_ context.Context, instance string, rank uint32) error {
	f.stream(instance, rank).State = StreamPaused
	return nil
}

func (f *fakeCluster) ResumeStream(_ context.Context, instance string, rank uint32) error {
	f.stream(instance, rank).State = StreamActive
	return nil
}

// stream returns the status of a rank for a test to change.
func (f *fakeCluster) stream(instance string, rank uint32) *StreamStatus {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := streamKey{instance, rank}
	if f.streams[k] == nil {
		f.streams[k] = &StreamStatus{Instance: instance, Rank: rank, State: StreamActive, LastEvent: time.Second, Registered: time.Hour}
	}
	return f.streams[k]
}

func (f *fakeCluster) Ready() (bool, string) { return f.notReady == "", f.notReady }

func (f *fakeCluster) Status() NodeStatus { return f.status }

func (f *fakeCluster) Members() []MemberStatus { return f.members }

func (f *fakeCluster) Shards() ShardsStatus { return f.shards }

func (f *fakeCluster) Snapshot(context.Context) (SnapshotResult, error) { return f.snapshot, f.member }

func (f *fakeCluster) Leave(_ context.Context, name string) error {
	f.removed = append(f.removed, "leave "+name)
	return f.member
}

func (f *fakeCluster) Remove(_ context.Context, name string, force bool) error {
	verb := "remove "
	if force {
		verb = "force "
	}
	f.removed = append(f.removed, verb+name)
	return f.member
}

// DumpSlot gives every block as a stretch of its own.
func (f *fakeCluster) DumpSlot(_ context.Context, g indexer.GroupID, slot indexer.Slot, visit func(indexer.Stretch) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for k, tiers := range f.held {
		if k.group != uint32(g) || k.slot != uint32(slot) {
			continue
		}
		s := indexer.Stretch{Tiers: tiers}
		locals := pathLocals(k.path)
		last := len(locals) - 1
		s.Locals, s.Engines = locals[last:], []uint64{engineHash(locals)}
		if s.Parent.Root = last == 0; last > 0 {
			s.Parent.Engine = engineHash(locals[:last])
		}
		if err := visit(s); err != nil {
			return err
		}
		if f.dumpErr != nil {
			return f.dumpErr
		}
	}
	return f.dumpErr
}

// engineHash is what the fake's engines call a path.
func engineHash(locals []uint64) uint64 {
	h := uint64(1) << 63
	for _, l := range locals {
		h = h*31 + l
	}
	return h
}

func pathKey(locals []uint64) string {
	var b []byte
	for _, l := range locals {
		b = binary.LittleEndian.AppendUint64(b, l)
	}
	return string(b)
}

func pathLocals(path string) (locals []uint64) {
	for b := []byte(path); len(b) > 0; b = b[8:] {
		locals = append(locals, binary.LittleEndian.Uint64(b))
	}
	return locals
}

// rank finds a registered rank.
func (f *fakeCluster) rank(instance string, rank uint32) (group *catalog.Group, slot uint32) {
	w, _ := f.catalog.View().Worker(instance)
	for _, r := range w.Ranks {
		if r.Rank == rank {
			return w.Group, r.Slot
		}
	}
	panic("no rank " + instance)
}

// hold lets a rank hold blocks from..len(locals)-1 of a path in a tier.
func (f *fakeCluster) hold(instance string, rank uint32, tier indexer.Tier, from int, locals ...uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	g, slot := f.rank(instance, rank)
	f.holdSlot(g.ID, slot, tier, from, locals)
}

func (f *fakeCluster) holdSlot(group, slot uint32, tier indexer.Tier, from int, locals []uint64) {
	for i := range locals {
		path := pathKey(locals[:i+1])
		parent := string(rune(group)) + pathKey(locals[:i])
		if f.children[parent] == nil {
			f.children[parent] = map[uint64]bool{}
		}
		f.children[parent][locals[i]] = true
		if i >= from {
			f.held[heldKey{group, slot, path}] |= tier.Mask()
		}
	}
}

// evict ends what a rank holds of the last block of a path, in every tier.
func (f *fakeCluster) evict(instance string, rank uint32, locals ...uint64) {
	g, slot := f.rank(instance, rank)
	k := heldKey{g.ID, slot, pathKey(locals)}
	delete(f.held, k)
	f.evicted[k] = true
}

type fakeSearcher struct {
	f   *fakeCluster
	pin uint64
	ctx context.Context
}

func (s *fakeSearcher) Begin(ctx context.Context) { s.ctx = ctx }

func (s *fakeSearcher) Pin() uint64 { return s.pin }

func (s *fakeSearcher) Prefixes(q indexer.Query, rows []indexer.Row, dst []indexer.Prefix) []indexer.Prefix {
	for _, r := range rows {
		p, _ := indexer.ReadPrefix(s, q, r.Slot, r.Depth, nil)
		dst = append(dst, p)
	}
	return dst
}

func (s *fakeSearcher) Match(q indexer.Query, out *indexer.Scores) {
	f := s.f
	if f.block != nil {
		<-f.block
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	s.pin = f.index
	if f.onMatch != nil {
		f.onMatch(f)
	}
	out.Rows, out.Tiers = out.Rows[:0], out.Tiers[:0]
	if want := f.layout.Partition(uint32(q.Group), q.Locals[0], 0); uint32(q.Partition) != want {
		panic("query in the wrong partition")
	}
	slots := map[uint32]bool{}
	for k := range f.held {
		if k.group == uint32(q.Group) {
			slots[k.slot] = true
		}
	}
	for slot := range slots {
		var d [indexer.NumTiers]uint32
		at := 0
		for t := range d {
			for at < len(q.Locals) && f.held[heldKey{uint32(q.Group), slot, pathKey(q.Locals[:at+1])}].Has(indexer.Tier(t)) {
				at++
			}
			d[t] = uint32(at)
		}
		if d[0] > 0 {
			out.Rows = append(out.Rows, indexer.Row{Slot: indexer.Slot(slot), Depth: d[0]})
		}
		if d[3] > d[0] {
			out.Tiers = append(out.Tiers, indexer.TierRow{Slot: indexer.Slot(slot), Depth: d})
		}
	}
}

func (s *fakeSearcher) Explain(q indexer.Query, slot indexer.Slot, dst []indexer.BlockState) []indexer.BlockState {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	s.pin = f.index
	for i := range q.Locals {
		path := pathKey(q.Locals[:i+1])
		k := heldKey{uint32(q.Group), uint32(slot), path}
		b := indexer.BlockState{Tiers: f.held[k], Evicted: f.evicted[k]}
		for other := range f.held {
			b.Known = b.Known || other.group == k.group && other.path == path
		}
		dst = append(dst, b)
	}
	return dst
}

func (s *fakeSearcher) AppendPath(dst []uint64, q indexer.SequenceQuery) []uint64 {
	f := s.f
	f.mu.Lock()
	defer f.mu.Unlock()
	var path []uint64
	var before uint64
next:
	for i, want := range q.Sequence {
		for l := range f.children[string(rune(q.Group))+pathKey(path)] {
			if blockhash.NextSequence(before, l, i == 0) == want {
				path, before = append(path, l), want
				continue next
			}
		}
		break
	}
	return append(dst, path...)
}

func (s *fakeSearcher) Completeness() (Completeness, error) {
	if s.ctx == nil {
		panic("a request that was not begun")
	}
	s.ctx = nil
	return s.f.lacks, s.f.refuse
}

func (s *fakeSearcher) Close() {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	s.f.live--
}
