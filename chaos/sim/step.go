package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kvcluster/kvcluster/cluster/disk/memory"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// Step is one thing that happens, and what goes on for a while after it. Its numbers name
// whoever has them when it is carried out.
type Step struct {
	Kind string
	A, B int
	For  time.Duration // how long traffic goes on before the next step
	Seed uint64        // of what the step and the traffic choose
}

// GoString is how a test writes it.
func (s Step) GoString() string {
	return fmt.Sprintf("{%q, %d, %d, %d * time.Millisecond, %#x}", s.Kind, s.A, s.B, s.For.Milliseconds(), s.Seed)
}

func (s Step) String() string { return fmt.Sprintf("%s(%d,%d) %v", s.Kind, s.A, s.B, s.For) }

// kinds are all steps with how often they come. A slice, so that a seed gives the same
// schedule everywhere.
var kinds = []struct {
	name   string
	weight int
	do     func(*world, *Step)
	gentle bool // no source gets another reader
}{
	{"calm", 4, func(*world, *Step) {}, true},
	{"join", 4, (*world).join, false},
	{"leave", 4, (*world).leave, false},
	{"kill", 6, (*world).kill, false},
	{"stop", 3, (*world).stopOne, false},
	{"return", 8, (*world).giveBack, false},
	{"replace", 3, (*world).replace, false},
	{"pause", 4, (*world).pause, false},
	{"cut one way", 3, (*world).cutOneWay, false},
	{"cut", 3, (*world).cut, false},
	{"cut links", 3, (*world).cutLinks, true},
	{"cut raft", 2, (*world).cutRaft, true},
	{"split", 4, (*world).split, false},
	{"heal", 8, (*world).heal, true},
	{"weather", 4, (*world).badWeather, true},
	{"move", 6, (*world).move, true},
	{"slow disk", 1, (*world).slowDisk, true},
	{"restart in place", 2, (*world).engineRestartsInPlace, true},
	{"restart", 2, (*world).engineRestarts, true},
	{"disconnect", 3, (*world).engineDisconnects, true},
	{"freeze", 2, (*world).engineFreezes, true},
	{"withhold", 4, (*world).engineWithholds, true},
	{"lose", 2, (*world).engineLoses, true},
	{"clear", 2, (*world).engineClears, true},
	{"register anew", 2, (*world).engineRegistersAnew, true},
}

// Schedule returns what a seed decides.
func Schedule(seed uint64, steps int) (Config, []Step) {
	rng := rand.New(rand.NewPCG(seed, 0))
	cfg := Config{
		Seed: seed, Nodes: 2 + rng.IntN(3), Engines: 2 + rng.IntN(2), Partitions: uint32(4 << rng.IntN(2)), Replicas: 2, Tree: rng.IntN(8) == 0,
	}
	cfg.Holes = rng.IntN(6) == 0
	if rng.IntN(6) == 0 {
		cfg.Replicas = 1 + 2*rng.IntN(2)
	}
	weights := make([]int, len(kinds))
	for i, k := range kinds {
		if k.gentle || !cfg.Holes {
			weights[i] = k.weight
		}
	}
	if steps == 0 {
		steps = 10 + rng.IntN(16)
	}
	return cfg, draw(rng, weights, steps)
}

// churn are the steps that change who is there and who votes, with how often they come in
// a Churn.
var churn = map[string]int{
	"join": 8, "leave": 8, "kill": 8, "stop": 4, "return": 12, "replace": 6, "pause": 4, "cut one way": 3, "cut": 3, "cut raft": 4, "split": 3,
	"heal": 6, "weather": 2, "move": 2, "slow disk": 2, "calm": 2,
}

// Churn returns a schedule in which members come and go all the time and little else
// happens.
func Churn(seed uint64, steps int) (Config, []Step) {
	rng := rand.New(rand.NewPCG(seed, 4))
	cfg := Config{Seed: seed, Nodes: 2 + rng.IntN(4), Engines: 1, Partitions: 4, Replicas: 2}
	weights := make([]int, len(kinds))
	for i, k := range kinds {
		weights[i] = churn[k.name]
	}
	if steps == 0 {
		steps = 15 + rng.IntN(16)
	}
	return cfg, draw(rng, weights, steps)
}

// draw returns steps, each kind as often as its weight says.
func draw(rng *rand.Rand, weights []int, steps int) (out []Step) {
	total := 0
	for _, w := range weights {
		total += w
	}
	for range steps {
		at := rng.IntN(total)
		for i, k := range kinds {
			if at -= weights[i]; at < 0 {
				out = append(out, Step{Kind: k.name, A: rng.IntN(1000), B: rng.IntN(1000), For: pauseOf(rng), Seed: rng.Uint64()})
				break
			}
		}
	}
	return out
}

// pauseOf is often shorter than anything takes, and sometimes longer than most.
func pauseOf(rng *rand.Rand) time.Duration {
	switch n := rng.IntN(10); {
	case n < 4:
		return time.Duration(rng.IntN(100)) * time.Millisecond
	case n < 8:
		return time.Duration(100+rng.IntN(900)) * time.Millisecond
	default:
		return time.Duration(1000+rng.IntN(3000)) * time.Millisecond
	}
}

// do carries out a step.
func (w *world) do(s *Step) {
	w.rng = rand.New(rand.NewPCG(s.Seed, 3))
	for _, k := range kinds {
		if k.name == s.Kind {
			w.counts.Steps[s.Kind]++
			w.logf("-- %v", *s)
			k.do(w, s)
		}
	}
	w.traffic(s.For)
}

// pick returns one of the nodes.
func pick(nodes []*node, i int) *node {
	if len(nodes) == 0 {
		return nil
	}
	return nodes[i%len(nodes)]
}

const maxNodes = 5

func (w *world) join(*Step) {
	if len(w.which(func(n *node) bool { return !n.left })) >= maxNodes {
		return
	}
	n := w.addNode(false)
	w.logf("%s joins", n.name)
}

func (w *world) leave(s *Step) {
	n, at := pick(w.up(), s.A), pick(w.up(), s.B)
	// One of those that are up stays.
	if n == nil || len(w.which(func(n *node) bool { return n.up() && !n.leaving })) < 2 {
		return
	}
	w.logf("%s is to leave, asked at %s", n.name, at.name)
	n.leaving = true
	w.background(5*time.Second, at, func(ctx context.Context, p *process) error {
		return p.member.BeginLeave(ctx, n.name)
	}, func(err error) { w.logf("leave of %s: %v", n.name, err) })
}

func (w *world) kill(s *Step) {
	if n := pick(w.which((*node).running), s.A); n != nil {
		w.logf("%s is killed", n.name)
		n.kill()
	}
}

func (w *world) stopOne(s *Step) {
	if n := pick(w.which((*node).running), s.A); n != nil {
		w.logf("%s is told to end", n.name)
		n.shutDown()
	}
}

// giveBack starts a node that is down again, with its data.
func (w *world) giveBack(s *Step) {
	if n := pick(w.which(func(n *node) bool { return n.gone }), s.A); n != nil {
		w.restart(n)
	}
}

// restart starts a node that is down, with its data unless it was removed.
func (w *world) restart(n *node) {
	if n.process == n.removed.Load() {
		w.servers++
		n.serverID = fmt.Sprintf("%s-%d", n.name, w.servers)
		n.disk = memory.New(n.serverID, w.cfg.Seed+uint64(w.servers))
		w.logf("%s starts with an empty disk", n.name)
	} else {
		w.logf("%s starts", n.name)
	}
	n.left, n.leaving = false, false
	if err := n.start(false); err != nil {
		w.fail("start %s: %v", n.name, err)
	}
	w.changed()
}

// replace has a node that is down removed for good. When it comes back after that, its
// disk is empty; it may also come back, as it was, while that is decided.
func (w *world) replace(s *Step) {
	n, at := pick(w.which(func(n *node) bool { return n.gone && !n.left }), s.A), pick(w.up(), s.B)
	if n == nil || at == nil {
		return
	}
	last := n.process
	w.logf("%s is to be removed, asked at %s", n.name, at.name)
	w.background(5*time.Second, at, func(ctx context.Context, p *process) error {
		return p.member.Control().Remove(ctx, n.name, true)
	}, func(err error) {
		w.logf("removal of %s: %v", n.name, err)
		if err == nil {
			n.removed.Store(last)
		}
	})
}

func (w *world) pause(s *Step) {
	n := pick(w.which((*node).running), s.A)
	if n == nil {
		return
	}
	d := []time.Duration{200 * time.Millisecond, 900 * time.Millisecond, 3500 * time.Millisecond}[s.B%3]
	w.logf("%s stands still for %v", n.name, d)
	w.net.pause(n.name, time.Now().Add(d))
	w.changed()
	time.AfterFunc(d, w.changedLater)
}

// changedLater is changed for other goroutines than the driver.
func (w *world) changedLater() { w.rumours.update() }

func (w *world) cutOneWay(s *Step) { w.cutPair(s, allPlanes, false) }
func (w *world) cut(s *Step)       { w.cutPair(s, allPlanes, true) }
func (w *world) cutLinks(s *Step)  { w.cutPair(s, planeLinks, s.A%2 == 0) }
func (w *world) cutRaft(s *Step)   { w.cutPair(s, planeRaft, s.A%2 == 0) }

func (w *world) cutPair(s *Step, on plane, both bool) {
	all := w.which((*node).running)
	if len(all) < 2 {
		return
	}
	a := all[s.A%len(all)]
	b := all[(s.A+1+s.B%(len(all)-1))%len(all)]
	w.logf("from %s to %s nothing comes through (%v, both ways: %t)", a.name, b.name, on, both)
	w.net.setCut(a.name, b.name, on)
	if both {
		w.net.setCut(b.name, a.name, on)
	}
	w.changed()
}

func (p plane) String() string {
	switch p {
	case planeLinks:
		return "links"
	case planeRaft:
		return "raft"
	}
	return "everything"
}

// split divides the nodes, those that are down included, into two sides.
func (w *world) split(s *Step) {
	var left, right []string
	for i, n := range w.nodes {
		if s.A>>(i%8)&1 == 0 {
			left = append(left, n.name)
		} else {
			right = append(right, n.name)
		}
	}
	w.logf("%v and %v do not reach each other", left, right)
	for _, a := range left {
		for _, b := range right {
			w.net.setCut(a, b, allPlanes)
			w.net.setCut(b, a, allPlanes)
		}
	}
	w.changed()
}

func (w *world) heal(*Step) {
	w.logf("all reach each other in calm weather")
	w.net.heal()
	for _, e := range w.engines {
		w.thaw(e)
	}
	for _, n := range w.nodes {
		n.disk.SetSyncDelay(0)
	}
	w.changed()
}

func (w *world) badWeather(s *Step) {
	b := weather{delay: []time.Duration{2, 20, 120}[s.A%3] * time.Millisecond}
	switch s.B % 4 {
	case 0:
		b.loss = 0.02
	case 1:
		b.loss, b.double = 0.15, 0.05
	case 2:
		b.reorder, b.double = 0.3, 0.05
	}
	w.logf("weather: %+v", b)
	w.net.setWeather(b)
}

// move begins a layout change by hand.
func (w *world) move(s *Step) {
	at := pick(w.up(), s.A)
	v := w.view()
	if at == nil || v == nil || len(v.Owners) == 0 {
		return
	}
	p := uint32(s.B) % w.cfg.Partitions
	m := state.Move{Partition: p, To: v.Members[w.rng.IntN(len(v.Members))].Name}
	if owners := v.Owners[p]; len(owners) > 0 && w.rng.IntN(4) > 0 {
		m.Drop = owners[w.rng.IntN(len(owners))].Name
	}
	w.logf("a move, asked at %s: %+v", at.name, m)
	w.background(5*time.Second, at, func(ctx context.Context, p *process) error {
		r, err := p.member.Control().Propose(ctx, state.Command{Begin: &state.Begin{Moves: []state.Move{m}}})
		if err == nil {
			err = r.Err()
		}
		return err
	}, func(err error) { w.logf("move: %v", err) })
}

func (w *world) slowDisk(s *Step) {
	if n := pick(w.which((*node).running), s.A); n != nil {
		n.disk.SetSyncDelay(time.Duration(s.B%30) * time.Millisecond)
		w.logf("the disk of %s is slow", n.name)
	}
}

// Kinds are the names of all steps.
func Kinds() (out []string) {
	for _, k := range kinds {
		out = append(out, k.name)
	}
	return out
}
