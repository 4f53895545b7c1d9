package search

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

var randomRuns = flag.Int("search.runs", 12, "random schedules of faults")

// storm is a rig in which things go wrong at random, and a judge of every answer.
type storm struct {
	*rig
	rng     *rand.Rand
	boot    uint64
	births  map[string]time.Time
	gone    map[string]gone
	names   int
	down    map[string]bool
	unknown map[string]time.Time      // restarted nodes of which the log hears only then
	former  map[closedOwner]time.Time // owners that may not know that they are none
	counts  struct{ current, partial, stale, holders int }
}

type gone struct {
	at   time.Time
	held map[int]uint32
}

type closedOwner struct {
	partition indexer.PartitionID
	name      string
}

// TestRandomFaults: whatever happens, an answer that claims to be current credits nobody
// with more than it holds, and one that claims to be complete as well lacks nobody.
func TestRandomFaults(t *testing.T) {
	runs := *randomRuns
	if testing.Short() {
		runs = min(runs, 4)
	}
	var sum struct{ current, partial, stale, holders int }
	for seed := range uint64(runs) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStorm(t, seed, mutant{})
				s.rage(250)
				s.end()
				sum.current, sum.partial = sum.current+s.counts.current, sum.partial+s.counts.partial
				sum.stale, sum.holders = sum.stale+s.counts.stale, sum.holders+s.counts.holders
			})
		})
	}
	t.Logf("%+v", sum)
	if sum.current < 100*runs || sum.partial < 5*runs || sum.stale < 5*runs || sum.holders < 100*runs {
		t.Errorf("the schedules are one-sided: %+v", sum)
	}
}

// TestRandomFaultsFind: the judge finds mutants within some schedules. (It grants TServe to
// whoever has not heard of a life, so what an old view costs is up to TestMutants.)
func TestRandomFaultsFind(t *testing.T) {
	for name, m := range map[string]mutant{
		"unreadable": {unreadable: true}, "any owner": {anyOwner: true}, "other boot": {otherBoot: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(40) {
				found := 0
				synctest.Test(t, func(t *testing.T) {
					s := newStorm(t, seed, m)
					s.rage(250)
					found, s.bad = len(s.bad), nil
					s.end()
				})
				if found > 0 {
					t.Logf("found with seed %d", seed)
					return
				}
			}
			t.Error("not found")
		})
	}
}

func newStorm(t testing.TB, seed uint64, m mutant) *storm {
	owners := [][]string{{"a", "b"}, {"b", "c"}, {"c", "d"}, {"d", "a"}}
	s := &storm{
		rig: newRigBroken(t, nil, m, []string{"a", "b", "c", "d"}, owners...),
		rng: rand.New(rand.NewPCG(seed, 9)), boot: 100,
		births: map[string]time.Time{}, gone: map[string]gone{}, down: map[string]bool{}, unknown: map[string]time.Time{}, former: map[closedOwner]time.Time{},
	}
	for range 4 {
		s.add()
	}
	return s
}

func (s *storm) rage(steps int) {
	for range steps {
		s.step()
		time.Sleep(time.Duration(s.rng.IntN(800)) * time.Millisecond)
		for range 2 {
			s.judge()
		}
	}
}

func (s *storm) node() string { return []string{"a", "b", "c", "d"}[s.rng.IntN(4)] }

func (s *storm) someone() string {
	names := slices.Sorted(maps.Keys(s.births))
	return names[s.rng.IntN(len(names))]
}

func (s *storm) add() string {
	s.names++
	name := fmt.Sprint("i", s.names)
	s.register(name)
	s.births[name] = time.Now()
	return name
}

func (s *storm) step() {
	node := s.node()
	switch s.rng.IntN(16) {
	case 0:
		if len(s.births) < 8 {
			s.add()
		}
	case 1:
		if len(s.births) > 1 { // the last one would take its group with it
			s.remove(s.someone())
		}
	case 2, 3, 4, 5:
		s.hold(s.someone(), s.rng.IntN(6), uint32(1+s.rng.IntN(testBlocks)))
	case 6:
		s.hold(s.someone(), s.rng.IntN(6), 0)
	case 7:
		s.restartEngine(s.someone())
	case 8:
		if !s.down[node] {
			s.lag(s.rng.IntN(2) == 0, node)
		}
	case 9:
		if !s.down[node] {
			s.cut(s.rng.IntN(3) == 0, node)
		}
	case 10:
		if other := s.node(); s.rng.IntN(2) == 0 {
			s.net.CutMesh(node, other)
		} else {
			s.net.HealMesh(node, other)
			s.net.HealMesh(other, node)
		}
	case 11, 12:
		s.toggle(s.someone(), indexer.PartitionID(s.rng.IntN(testParts)), node)
	case 13:
		s.crash(node)
	case 14:
		s.refill(node)
	case 15:
		s.layout()
	}
	for name, at := range s.unknown {
		if time.Now().After(at) {
			delete(s.unknown, name)
			s.introduce(name, s.nodes[name].boot)
		}
	}
	s.purge()
}

// receivers are the nodes that a frame goes to: owners, and former ones that may not know.
func (s *storm) receivers(p indexer.PartitionID) []*rigNode {
	var out []*rigNode
	for name, n := range s.nodes {
		at, was := s.former[closedOwner{p, name}]
		if slices.Contains(s.state.View().Receivers(uint32(p)), name) || was && time.Since(at) < 7*time.Second {
			out = append(out, n)
		}
	}
	return out
}

// hold makes a slot hold the first depth blocks of a path at all its open copies.
func (s *storm) hold(instance string, n int, depth uint32) {
	g, slot := s.slot(instance)
	p := s.partition(g, n)
	s.held[heldKey{instance, n}] = depth
	for _, node := range s.receivers(p) {
		if !node.closed[closedKey{p, slot}] {
			s.set(node, g, p, slot, n, depth)
		}
	}
}

func (s *storm) set(node *rigNode, g indexer.GroupID, p indexer.PartitionID, slot indexer.Slot, n int, depth uint32) {
	var b indexer.FrameBuilder
	b.Reset(indexer.Header{Group: g, Partition: p, Slot: slot, Life: 1, Tenure: 1, Sequence: 1})
	b.Clear(indexer.AllTiers)
	for m := range 6 { // other paths of the partition stay
		if d := s.held[heldKey{s.nameOf(g, slot), m}]; s.partition(g, m) == p && (d > 0 && m != n || m == n && depth > 0) {
			if m == n {
				d = depth
			}
			locals, engines := b.Store(indexer.Device, indexer.Run(m), 0, indexer.Parent{}, int(d))
			copy(locals, path(m))
			for i := range engines {
				engines[i] = locals[i] ^ 1
			}
		}
	}
	w := node.index.NewWriter()
	defer w.Close()
	if err := w.Write(b.Frame()); err != nil {
		s.t.Fatal(err)
	}
}

func (s *storm) nameOf(g indexer.GroupID, slot indexer.Slot) string {
	group, ok := s.state.View().Catalog.GroupByID(uint32(g))
	if !ok {
		return ""
	}
	h, _ := group.Holder(uint32(slot))
	return h.Instance
}

// toggle closes a copy, which then misses what comes, or fills and opens it.
func (s *storm) toggle(instance string, p indexer.PartitionID, name string) {
	node := s.nodes[name]
	if node == nil {
		return
	}
	g, slot := s.slot(instance)
	k := closedKey{p, slot}
	s.mu.Lock()
	closed := node.closed[k]
	s.mu.Unlock()
	if closed {
		s.set(node, g, p, slot, -1, 0)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	node.toggle(k, !closed)
}

// remove unregisters an instance.
func (s *storm) remove(instance string) {
	held := map[int]uint32{}
	for n := range 6 {
		held[n] = s.held[heldKey{instance, n}]
		delete(s.held, heldKey{instance, n})
	}
	s.gone[instance] = gone{time.Now(), held}
	delete(s.births, instance)
	s.apply(state.Command{Unregister: &state.Unregister{Unregistration: catalog.Unregistration{Instance: instance, Model: "m"}}})
}

// restartEngine begins a life: the old slot is cleared at once, where a frame reaches.
func (s *storm) restartEngine(instance string) {
	g, slot := s.slot(instance)
	w, _ := s.state.View().Catalog.Worker(instance)
	for p := range indexer.PartitionID(testParts) {
		for n := range 6 {
			delete(s.held, heldKey{instance, n})
		}
		for _, node := range s.receivers(p) {
			if !node.closed[closedKey{p, slot}] {
				s.set(node, g, p, slot, -1, 0)
			}
		}
	}
	s.births[instance] = time.Now() // its next content may be late where the life is not known
	s.apply(state.Command{NewLife: &state.NewLife{Instance: instance, Rank: 0, Life: w.Ranks[0].Life}})
}

// purge does on every node what the log asks of it.
func (s *storm) purge() {
	for name, n := range s.nodes {
		for _, r := range n.view.Load().ToPurge[name] {
			if n.purged[r] { // once: a node that lags does not forget what it did
				continue
			}
			n.purged[r] = true
			if err := n.index.Purge(s.t.Context(), indexer.GroupID(r.Group), indexer.Slot(r.Slot)); err != nil {
				s.t.Error(err)
			}
			s.mu.Lock()
			maps.DeleteFunc(n.closed, func(k closedKey, _ bool) bool { return k.slot == indexer.Slot(r.Slot) })
			s.mu.Unlock()
			if slices.Contains(s.state.View().ToPurge[name], r) {
				s.apply(state.Command{Purged: &state.Purged{Member: name, Slot: r}})
			}
		}
	}
}

// crash ends a process; the next one of the same name begins empty, and the log hears of
// it at once or later.
func (s *storm) crash(name string) {
	if len(s.down) > 0 || s.nodes[name] == nil {
		return
	}
	s.kill(name)
	s.down[name] = true
	s.boot++
	boot := s.boot
	if s.rng.IntN(2) == 0 {
		s.introduce(name, boot)
		s.start(name, boot)
	} else {
		s.start(name, boot)
		s.unknown[name] = time.Now().Add(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
	}
}

// refill makes a restarted node a complete owner again.
func (s *storm) refill(name string) {
	n := s.nodes[name]
	v := s.state.View()
	m, ok := v.Member(name)
	if !ok || !s.down[name] || m.Boot != n.boot {
		return
	}
	delete(s.down, name)
	s.lag(false, name)
	for p := range uint32(testParts) {
		if slices.ContainsFunc(v.Owners[p], func(o state.Owner) bool { return o.Name == name && o.Boot != n.boot }) {
			s.fill(n, indexer.PartitionID(p))
			s.move(p, name, "")
		}
	}
}

func (s *storm) fill(n *rigNode, p indexer.PartitionID) {
	for instance := range s.births {
		g, slot := s.slot(instance)
		s.set(n, g, p, slot, -1, 0)
		s.mu.Lock()
		delete(n.closed, closedKey{p, slot})
		s.mu.Unlock()
	}
}

// layout moves a partition from one owner to another node.
func (s *storm) layout() {
	p := uint32(s.rng.IntN(testParts))
	v := s.state.View()
	to, drop := s.node(), v.Owners[p][s.rng.IntN(len(v.Owners[p]))].Name
	if s.down[to] || slices.ContainsFunc(v.Owners[p], func(o state.Owner) bool { return o.Name == to }) {
		return
	}
	delete(s.former, closedOwner{indexer.PartitionID(p), to})
	s.fill(s.nodes[to], indexer.PartitionID(p))
	s.move(p, to, drop)
	s.former[closedOwner{indexer.PartitionID(p), drop}] = time.Now()
}

// judge asks some node about some path, and judges the answer.
func (s *storm) judge() {
	name, n := s.node(), s.rng.IntN(6)
	start := time.Now()
	got := s.query(name, n)
	const slack = 5*time.Second + 200*time.Millisecond // TServe, and the time of a query
	s.counts.holders += len(got.depth)
	switch {
	case got.Stale:
		s.counts.stale++
		return
	case got.Partial:
		s.counts.partial++
	default:
		s.counts.current++
	}
	for instance, depth := range got.depth {
		held := s.held[heldKey{instance, n}]
		if g, ok := s.gone[instance]; ok {
			if held = g.held[n]; start.Sub(g.at) > slack {
				s.fail("%s credits %s, which is gone since %v", name, instance, start.Sub(g.at))
			}
		}
		if depth > held {
			s.fail("%s credits %s with %d blocks of path %d, it holds %d", name, instance, depth, n, held)
		}
	}
	for instance, born := range s.births {
		if held := s.held[heldKey{instance, n}]; !got.Partial && start.Sub(born) > slack && got.depth[instance] != held {
			s.fail("%s credits %s with %d blocks of path %d and says that it is all, it holds %d", name, instance, got.depth[instance], n, held)
		}
	}
}
