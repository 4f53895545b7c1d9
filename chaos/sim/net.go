package sim

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/transport/memory"
)

// plane is one of the ways on which nodes talk to each other.
type plane uint8

const (
	planeLinks plane = 1 << iota
	planeRaft
	planeGossip
	allPlanes = planeLinks | planeRaft | planeGossip
)

type pair struct{ from, to string }

// weather is what happens to every message between nodes.
type weather struct {
	loss, double, reorder float64
	delay                 time.Duration // at most
}

// calm weather is that of a switch.
var calm = weather{delay: 2 * time.Millisecond}

// network decides what becomes of messages between nodes. Its lock is the innermost one.
type network struct {
	mem *memory.Network
	mu  struct {
		sync.Mutex
		rng     *rand.Rand
		dead    map[string]bool // reaches nobody, for good until it starts again
		cut     map[pair]plane
		paused  map[string]time.Time // until when
		weather weather
		arrival map[pair]time.Time // of the last message on a link: order is kept
		unheard map[pair]time.Time // since when links cannot carry anything
		known   map[pair]bool
		lost    int
		passed  int
	}
}

func newNetwork(seed uint64) *network {
	n := &network{mem: memory.New(memory.Config{Reconnect: 50 * time.Millisecond, Heartbeat: 2 * time.Second})}
	n.mu.rng = rand.New(rand.NewPCG(seed, 2))
	n.mu.dead, n.mu.cut, n.mu.paused = map[string]bool{}, map[pair]plane{}, map[string]time.Time{}
	n.mu.arrival, n.mu.unheard, n.mu.known = map[pair]time.Time{}, map[pair]time.Time{}, map[pair]bool{}
	n.mu.weather = calm
	return n
}

// connect makes the links between two nodes subject to the network.
func (n *network) connect(a, b string) {
	for _, p := range []pair{{a, b}, {b, a}} {
		n.mu.Lock()
		known := n.mu.known[p]
		n.mu.known[p] = true
		n.mu.Unlock()
		if !known {
			n.mem.SetMeshFault(p.from, p.to, func([]byte) []time.Duration { return n.onLink(p) })
		}
	}
}

// onLink returns when a message arrives; nothing = never.
func (n *network) onLink(p pair) []time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.openLocked(p, planeLinks) || n.mu.rng.Float64() < n.mu.weather.loss {
		n.mu.lost++
		return nil
	}
	n.mu.passed++
	now := time.Now()
	out := []time.Duration{n.delayLocked(p, now)}
	if n.mu.rng.Float64() >= n.mu.weather.reorder {
		out[0] = max(out[0], n.mu.arrival[p].Sub(now))
		n.mu.arrival[p] = now.Add(out[0])
	}
	if n.mu.rng.Float64() < n.mu.weather.double {
		out = append(out, n.delayLocked(p, now))
	}
	return out
}

// delayLocked is how long a message takes, pauses included.
func (n *network) delayLocked(p pair, now time.Time) time.Duration {
	d := time.Duration(n.mu.rng.Int64N(int64(n.mu.weather.delay) + 1))
	for _, name := range []string{p.from, p.to} {
		d = max(d, n.mu.paused[name].Sub(now))
	}
	return d
}

func (n *network) openLocked(p pair, on plane) bool {
	return !n.mu.dead[p.from] && !n.mu.dead[p.to] && n.mu.cut[p]&on == 0
}

// way says how long a message of raft takes, or that it does not arrive.
func (n *network) way(from, to string) (time.Duration, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := pair{from, to}
	// Raft's messages go over connections: loss makes them late.
	if !n.openLocked(p, planeRaft) {
		return 0, false
	}
	return n.delayLocked(p, time.Now()), true
}

// open reports whether a plane carries messages in a direction at this moment.
func (n *network) open(from, to string, on plane) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	return from == to || n.openLocked(pair{from, to}, on) && !n.mu.paused[from].After(now) && !n.mu.paused[to].After(now)
}

// note takes down since when links carry nothing; called whenever something changes.
func (n *network) note(names []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	for _, a := range names {
		for _, b := range names {
			p := pair{a, b}
			carries := a == b || n.openLocked(p, planeLinks) && !n.mu.paused[a].After(now) && !n.mu.paused[b].After(now)
			switch _, since := n.mu.unheard[p]; {
			case carries:
				delete(n.mu.unheard, p)
			case !since:
				n.mu.unheard[p] = now
			}
		}
	}
}

// silence is for how long nothing has gone from one node to another.
func (n *network) silence(from, to string) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	since, ok := n.mu.unheard[pair{from, to}]
	if !ok {
		return 0
	}
	return time.Since(since)
}

func (n *network) setDead(name string, dead bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.dead[name] = dead
}

func (n *network) setCut(from, to string, on plane) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.cut[pair{from, to}] = on
}

func (n *network) pause(name string, until time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.paused[name] = until
}

func (n *network) setWeather(w weather) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.weather = w
}

// heal ends cuts and bad weather, not pauses.
func (n *network) heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.mu.cut)
	n.mu.weather = calm
}
