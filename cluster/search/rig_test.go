package search

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
	"github.com/kvcluster/kvcluster/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	testParts  = 4
	testBlocks = 8 // blocks of a test's path
)

var testGroup = catalog.GroupKey{Model: "m", RoutingGroup: "default"}

// rig is a cluster of searches around one log that the test writes itself. Every node has
// a view, a reference index and a link hub of its own; everything runs in a bubble.
type rig struct {
	t      testing.TB
	net    *memory.Network
	layout shard.Layout
	tune   func(*Config)
	mu     sync.Mutex
	state  *state.State
	index  uint64
	nodes  map[string]*rigNode
	held   map[heldKey]uint32 // by (instance, path): depth in the device tier
	bad    []string
}

type heldKey struct {
	instance string
	path     int
}

// newRig starts a cluster. owners says who owns each partition.
func newRig(t testing.TB, tune func(*Config), names []string, owners ...[]string) *rig {
	r := &rig{
		t: t, net: memory.New(memory.Config{}), layout: shard.Layout{Partitions: testParts}, tune: tune,
		state: state.New(), nodes: map[string]*rigNode{}, held: map[heldKey]uint32{},
	}
	r.apply(state.Command{Found: &state.Founding{ClusterID: "test", Partitions: testParts, Replicas: 2}})
	for i, name := range names {
		r.introduce(name, uint64(i+1))
	}
	for p, list := range owners {
		for _, name := range list {
			r.move(uint32(p), name, "")
		}
	}
	for i, name := range names {
		r.start(name, uint64(i+1))
	}
	time.Sleep(time.Second) // sessions and leases
	return r
}

func (r *rig) introduce(name string, boot uint64) {
	r.apply(state.Command{Introduce: &state.Member{Name: name, ServerID: "id-" + name, Boot: boot}})
	for _, w := range r.state.View().Catalog.Workers() { // what a new process reads is complete at once here
		for _, k := range w.Ranks {
			if k.Filling {
				r.filled(w.Instance, k.Life)
			}
		}
	}
}

// move changes the owners of a partition, reports of all ingest nodes included.
func (r *rig) move(p uint32, to, drop string) {
	job := r.apply(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: p, To: to, Drop: drop}}}}).Job
	for {
		v := r.state.View()
		i := slices.IndexFunc(v.Jobs, func(j state.Job) bool { return j.ID == job })
		if i < 0 {
			return
		}
		for node := range v.Jobs[i].Waiting {
			r.apply(state.Command{Report: &state.Report{Job: job, Node: node, Version: v.Versions[node], Boots: v.Jobs[i].Boots}})
			break
		}
	}
}

func (r *rig) start(name string, boot uint64) *rigNode {
	n := &rigNode{
		r: r, name: name, boot: boot, index: &pausingIndex{Index: reference.New(reference.Config{})},
		dead: map[string]bool{}, closed: map[closedKey]bool{}, changed: map[closedKey]uint64{}, purged: map[catalog.Retired]bool{},
	}
	n.view.Store(r.state.View())
	quiet := slog.New(slog.DiscardHandler)
	hub, err := link.New(link.Config{Name: name, Cluster: "test", Boot: boot, Bind: "mem://" + name, Logger: quiet}, r.net, ignore{})
	if err != nil {
		r.t.Fatal(err)
	}
	n.hub = hub
	cfg := Config{Name: name, Boot: boot}
	if r.tune != nil {
		r.tune(&cfg)
	}
	n.s, err = New(cfg, Deps{
		View: n.view.Load, Index: n.index, Owner: n,
		Call: hub.Call,
		Handle: func(method string, fn func(context.Context, string, []byte) ([]byte, error)) {
			hub.Handle(method, func(ctx context.Context, peer string, req []byte) ([]byte, error) {
				n.served.Add(1)
				return fn(ctx, peer, req)
			})
		},
		Alive:     func(peer string) bool { r.mu.Lock(); defer r.mu.Unlock(); return !n.dead[peer] },
		ReadIndex: n.readIndex, WaitApplied: n.waitApplied, Peek: n.peek,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	peers := map[string]string{}
	for _, other := range []string{"a", "b", "c", "d"} {
		peers[other] = "mem://" + other
	}
	if err := hub.SetPeers(peers); err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	n.done.Go(func() {
		if err := hub.Run(ctx); err != nil {
			r.t.Error(err)
		}
	})
	n.done.Go(func() {
		if err := n.s.Run(ctx); err != nil {
			r.t.Error(err)
		}
	})
	r.mu.Lock()
	r.nodes[name] = n
	r.mu.Unlock()
	return n
}

// kill ends a node as a crash does: nobody is told.
func (r *rig) kill(name string) {
	n := r.nodes[name]
	n.stop()
	n.done.Wait()
	n.s.Close()
	r.mu.Lock()
	delete(r.nodes, name)
	r.mu.Unlock()
}

// end stops everything and reports what the judge found.
func (r *rig) end() {
	for _, name := range slices.Collect(maps.Keys(r.nodes)) {
		r.kill(name)
	}
	for _, b := range r.bad {
		r.t.Error(b)
	}
}

// apply writes an entry and shows it to every node that does not lag.
func (r *rig) apply(c state.Command) state.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.index++
	res := r.state.Apply(r.index, c)
	if err := res.Err(); err != nil {
		r.t.Errorf("entry %d: %v", r.index, err)
	}
	r.showLocked()
	return res
}

func (r *rig) showLocked() {
	v := r.state.View()
	for _, n := range r.nodes {
		if !n.lagging {
			n.view.Store(v)
		}
	}
}

// lag makes nodes miss what is written from now on, or catch up.
func (r *rig) lag(on bool, names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.nodes[name].lagging = on
	}
	r.showLocked()
}

func (r *rig) cut(on bool, names ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		r.nodes[name].cut = on
	}
}

// close makes the copy of an instance's slot unreadable at nodes, for a path's partition.
func (r *rig) close(on bool, instance string, path int, names ...string) {
	g, slot := r.slot(instance)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range names {
		k := closedKey{r.partition(g, path), slot}
		r.nodes[name].toggle(k, on)
	}
}

// register adds an instance with one rank.
func (r *rig) register(instance string) {
	r.apply(state.Command{Register: &state.Registration{Registration: catalog.Registration{
		Instance: instance, Group: testGroup, BlockSize: 16, Endpoint: "tcp://" + instance + ":1",
	}, Node: "a"}})
}

func (r *rig) slot(instance string) (indexer.GroupID, indexer.Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.state.View().Catalog.Worker(instance)
	if !ok {
		r.t.Fatalf("no instance %s", instance)
	}
	return indexer.GroupID(w.Group.ID), indexer.Slot(w.Ranks[0].Slot)
}

// path returns the n-th test path: paths share nothing.
func path(n int) []uint64 {
	out := make([]uint64, testBlocks)
	for i := range out {
		out[i] = uint64(n+1)*1_000_003*uint64(i+1) ^ 0x9e3779b97f4a7c15*uint64(n+7)
	}
	return out
}

func (r *rig) partition(g indexer.GroupID, n int) indexer.PartitionID {
	return indexer.PartitionID(r.layout.Partition(uint32(g), path(n)[0], 0))
}

// pathIn returns a path that lies in a partition.
func (r *rig) pathIn(p indexer.PartitionID, nth int) int {
	for n := range 1000 {
		if r.partition(1, n) == p {
			if nth--; nth < 0 {
				return n
			}
		}
	}
	panic("no path in partition")
}

// store lets an instance hold the first depth blocks of a path in tiers, at every owner.
func (r *rig) store(instance string, n, depth int, tiers ...indexer.Tier) {
	g, slot := r.slot(instance)
	p := r.partition(g, n)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.state.View().Receivers(uint32(p)) {
		if node := r.nodes[o]; node != nil {
			node.write(g, p, slot, n, depth, tiers...)
		}
	}
	if len(tiers) == 0 || tiers[0] == indexer.Device {
		r.held[heldKey{instance, n}] = uint32(depth)
	}
}

// asked is what a query brings, by instance.
type asked struct {
	depth map[string]uint32
	tiers map[string]indexer.TierRow
	Completeness
	err  error
	took time.Duration
}

// query asks a node for the holders of a path and names them as the router does.
func (r *rig) query(node string, n int) asked {
	r.mu.Lock()
	at := r.nodes[node]
	r.mu.Unlock()
	x := at.s.NewSearcher()
	defer x.Close()
	return r.queryWith(x, at, n)
}

func (r *rig) queryWith(x *Searcher, at *rigNode, n int) (out asked) {
	start := time.Now()
	x.Begin(r.t.Context())
	var scores indexer.Scores
	x.Match(r.question(n), &scores)
	pin := x.Pin()
	view := at.view.Load()
	out.Completeness, out.err = x.Completeness()
	out.took = time.Since(start)
	out.depth, out.tiers = map[string]uint32{}, map[string]indexer.TierRow{}
	g, ok := view.Catalog.GroupByID(1)
	if !ok {
		return out
	}
	for _, row := range scores.Rows {
		if h, live := g.Holder(uint32(row.Slot)); live && h.Life <= pin {
			if _, twice := out.depth[h.Instance]; twice {
				r.t.Errorf("instance %s is there twice", h.Instance)
			}
			out.depth[h.Instance] = row.Depth
		}
	}
	for _, row := range scores.Tiers {
		if h, live := g.Holder(uint32(row.Slot)); live && h.Life <= pin {
			out.tiers[h.Instance] = row
		}
	}
	return out
}

func (r *rig) question(n int) indexer.Query {
	return indexer.Query{Group: 1, Partition: r.partition(1, n), Locals: path(n)}
}

// want says what a path's holders are.
func (r *rig) want(n int) map[string]uint32 {
	out := map[string]uint32{}
	for k, d := range r.held {
		if k.path == n {
			out[k.instance] = d
		}
	}
	return out
}

// check compares an answer with what is held; it must claim to be complete and current.
func (r *rig) check(where string, n int, got asked) {
	r.t.Helper()
	if got.err != nil || got.Partial || got.Stale || !maps.Equal(got.depth, r.want(n)) {
		r.fail("%s: %v %+v %v, want %v", where, got.depth, got.Completeness, got.err, r.want(n))
	}
}

func (r *rig) fail(format string, args ...any) {
	r.t.Helper()
	r.bad = append(r.bad, fmt.Sprintf(format, args...))
}

// inBubble runs a scenario and reports what it found.
func inBubble(t *testing.T, scenario func(t *testing.T) *rig) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := scenario(t)
		r.end()
	})
}

// three nodes; a and b own every partition, c none.
func three(t testing.TB, tune func(*Config), m mutant) *rig {
	both := []string{"a", "b"}
	r := newRigBroken(t, tune, m, []string{"a", "b", "c"}, both, both, both, both)
	for i := range 3 {
		r.register(fmt.Sprint(i))
	}
	for n := range 6 {
		r.store("0", n, testBlocks)
		r.store("1", n, 3)
	}
	return r
}

func newRigBroken(t testing.TB, tune func(*Config), m mutant, names []string, owners ...[]string) *rig {
	return newRig(t, func(c *Config) {
		if tune != nil {
			tune(c)
		}
		c.broken = m
	}, names, owners...)
}

// sequence returns the sequence hashes of a path.
func sequence(n int) []uint64 {
	var out []uint64
	var before uint64
	for i, l := range path(n) {
		before = blockhash.NextSequence(before, l, i == 0)
		out = append(out, before)
	}
	return out
}
