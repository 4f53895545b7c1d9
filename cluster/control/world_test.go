package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/transport/link"
)

const (
	detect    = 2 * time.Second // until gossip calls somebody dead
	testGrace = 20 * time.Second
	moveBound = 6
	parts     = 16
)

// world is a cluster in memory and in virtual time: raft in memory, a gossip that sees
// what is reachable, calls as function calls, and on every node a stand-in for the fanout
// that reports every job a little after it began.
type world struct {
	t  *testing.T
	mu struct {
		sync.Mutex
		nodes   map[string]*node     // by name; a node keeps its stores over its processes
		cut     map[string]bool      // by name: reaches nobody
		changed map[string]time.Time // by name: when it was last killed, cut off or healed
	}
	stop   context.CancelFunc
	ctx    context.Context
	checks sync.WaitGroup
}

type node struct {
	w        *world
	name     string
	serverID string
	stores   raftlog.Stores
	poke     chan struct{}
	mu       struct {
		sync.Mutex
		process
		handlers map[string]link.CallHandler
	}
}

// process is what changes when a node starts again, and what it says of itself.
type process struct {
	clusterID, zone string
	protocol        int
	boot            uint64
	low             bool // its disk is nearly full
	deaf            bool // raft's packets do not come and go
	weights         []float64
	running         bool
	trans           *raft.InmemTransport
	log             *raftlog.Log
	ctl             *Control
	err             error // of Run
	done            chan struct{}
	stop            context.CancelFunc
}

// p returns the present process.
func (n *node) p() process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.process
}

func (n *node) set(fn func(p *process)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	fn(&n.mu.process)
}

func newWorld(t *testing.T) *world {
	w := &world{t: t}
	w.mu.nodes, w.mu.cut, w.mu.changed = map[string]*node{}, map[string]bool{}, map[string]time.Time{}
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.checks.Go(w.watch)
	return w
}

// all returns the nodes by name.
func (w *world) all() map[string]*node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.mu.nodes)
}

func (w *world) node(name string) *node { return w.all()[name] }

func (w *world) ctl(name string) *Control { return w.node(name).p().ctl }

func (w *world) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.mu.nodes, name)
}

// close stops everything; it must be called before the bubble ends.
func (w *world) close() {
	w.stop()
	w.checks.Wait()
	for name, n := range w.all() {
		if n.p().running {
			w.kill(name)
		}
	}
	time.Sleep(time.Minute) // raft's last timers
}

// add makes a node with an empty data folder and starts its first process.
func (w *world) add(name string) *node {
	n := &node{w: w, name: name, serverID: fmt.Sprintf("id-%s-%d", name, len(w.all())), poke: make(chan struct{}, 1)}
	n.mu.protocol = 1
	n.stores = raftlog.Stores{Log: raft.NewInmemStore(), Stable: raft.NewInmemStore(), Snapshots: raft.NewInmemSnapshotStore()}
	n.start()
	w.mu.Lock()
	w.mu.nodes[name] = n
	w.mu.Unlock()
	w.connect()
	return n
}

// start begins another process of a node.
func (n *node) start() {
	n.mu.Lock()
	n.mu.handlers = map[string]link.CallHandler{}
	p := n.mu.process
	n.mu.Unlock()
	p.boot++
	p.low, p.err, p.running, p.done = false, nil, true, make(chan struct{})
	n.set(func(q *process) { q.boot = p.boot })
	_, p.trans = raft.NewInmemTransport(raft.ServerAddress(n.name))
	gossip := &testGossip{n}
	fwd := NewForwarder(n, gossip)
	var err error
	p.log, err = raftlog.Open(raftlog.Config{ServerID: n.serverID, SnapshotEvery: 200, KeepLogs: 100}, n.stores, p.trans, fwd)
	if err != nil {
		n.w.t.Fatal(err)
	}
	fwd.Serve(p.log)
	p.ctl, err = New(Config{
		Self: n.member(), ClusterID: p.clusterID, Protocol: 1, Grace: testGrace, StartGrace: 5 * time.Second,
		Settle: time.Second, MaxMoves: moveBound, Logger: n.logger(),
	}, Deps{Log: p.log, Gossip: gossip, Calls: n, LowSpace: func() bool { return n.p().low }, Weights: func() []float64 { return n.p().weights }})
	if err != nil {
		n.w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	n.set(func(q *process) { *q = p })
	go func() {
		var fanout sync.WaitGroup
		fanout.Go(func() { n.report(ctx, p.ctl) })
		err := p.ctl.Run(ctx)
		n.set(func(q *process) { q.err = err })
		stop()
		fanout.Wait()
		close(p.done)
	}()
	n.w.connect()
}

func (n *node) member() state.Member {
	return state.Member{Name: n.name, ServerID: n.serverID, Boot: n.p().boot, Raft: n.name, Zone: n.p().zone}
}

func (n *node) logger() *slog.Logger {
	if !testing.Verbose() {
		return nil
	}
	start := time.Now()
	return slog.New(slog.NewTextHandler(testOutput{n.w.t}, &slog.HandlerOptions{Level: slog.LevelInfo, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.String("t", fmt.Sprint(time.Since(start)))
		}
		return a
	}})).With("node", n.name)
}

type testOutput struct{ t *testing.T }

func (o testOutput) Write(p []byte) (int, error) {
	o.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// report plays the fanout: it says that the targets of a job are filled when they can
// be reached and are still the same processes.
func (n *node) report(ctx context.Context, ctl *Control) {
	ticker := time.NewTicker(150 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		v := ctl.View()
		for _, j := range v.Jobs {
			if !j.Waiting[n.name] || !n.w.fillable(n.name, j) {
				continue
			}
			actx, cancel := context.WithTimeout(ctx, 3*time.Second)
			_, _ = ctl.Propose(actx, state.Command{Report: &state.Report{Job: j.ID, Node: n.name, Version: v.Versions[n.name], Boots: j.Boots}})
			cancel()
		}
	}
}

func (w *world) fillable(from string, j state.Job) bool {
	for to, boot := range j.Boots {
		if t := w.node(to); t == nil || t.p().boot != boot || !w.reach(from, to) {
			return false
		}
	}
	return true
}

// kill ends a process without a word.
func (w *world) kill(name string) {
	n := w.node(name)
	w.mu.Lock()
	w.mu.changed[name] = time.Now()
	w.mu.Unlock()
	n.set(func(p *process) { p.running = false })
	w.connect()
	p := n.p()
	p.stop()
	<-p.done
	if err := p.log.Close(); err != nil {
		w.t.Error(err)
	}
}

// cut separates a node from all others, heal ends that.
func (w *world) cut(name string)  { w.setCut(name, true) }
func (w *world) heal(name string) { w.setCut(name, false) }

func (w *world) setCut(name string, cut bool) {
	w.mu.Lock()
	w.mu.cut[name] = cut
	w.mu.changed[name] = time.Now()
	w.mu.Unlock()
	w.connect()
}

// reach reports whether a packet from one node comes to another.
func (w *world) reach(from, to string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.mu.nodes[to]
	return from == to || n != nil && n.p().running && !w.mu.cut[from] && !w.mu.cut[to]
}

// connect makes raft's transports as reachable as their nodes.
func (w *world) connect() {
	nodes := w.all()
	for a, na := range nodes {
		for b, nb := range nodes {
			pa, pb := na.p(), nb.p()
			switch {
			case a == b || pa.trans == nil || pb.trans == nil:
			case pa.running && w.reach(a, b) && !pa.deaf && !pb.deaf:
				pa.trans.Connect(raft.ServerAddress(b), pb.trans)
			default:
				pa.trans.Disconnect(raft.ServerAddress(b))
			}
		}
	}
	for _, n := range nodes {
		select {
		case n.poke <- struct{}{}:
		default:
		}
	}
}

// testGossip sees who can be reached, and who cannot after a while.
type testGossip struct{ n *node }

func (g *testGossip) Changed() <-chan struct{} { return g.n.poke }

func (g *testGossip) Peers() (out []gossip.Peer) {
	w := g.n.w
	for name, n := range w.all() {
		p := n.p()
		alive := w.reach(g.n.name, name)
		w.mu.Lock()
		if since := w.mu.changed[name]; !alive && time.Since(since) < detect {
			alive = true
		}
		if since := w.mu.changed[g.n.name]; !alive && time.Since(since) < detect {
			alive = true
		}
		w.mu.Unlock()
		out = append(out, gossip.Peer{Alive: alive, Address: name + ":7946", Meta: gossip.Meta{
			Name: strings.TrimSuffix(name, "'"), ServerID: n.serverID, ClusterID: p.clusterID, Boot: p.boot, Raft: n.name, Protocol: p.protocol, Zone: p.zone,
			HasData: p.clusterID != "",
		}})
	}
	slices.SortFunc(out, func(a, b gossip.Peer) int { return strings.Compare(a.ServerID, b.ServerID) })
	return out
}

// Handle and Call implement Calls.
func (n *node) Handle(method string, fn link.CallHandler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.handlers[method] = fn
}

func (n *node) Call(ctx context.Context, peer, method string, req []byte) ([]byte, error) {
	to := n.w.node(peer)
	if to == nil {
		return nil, link.ErrPeer
	}
	if !to.p().running {
		return nil, link.ErrDown
	}
	type answer struct {
		body []byte
		err  error
	}
	got := make(chan answer, 1)
	if n.w.reach(n.name, peer) {
		to.mu.Lock()
		fn := to.mu.handlers[method]
		to.mu.Unlock()
		go func() {
			body, err := fn(ctx, n.name, slices.Clone(req))
			if n.w.reach(peer, n.name) {
				got <- answer{body, err}
			}
		}()
	}
	select {
	case a := <-got:
		for _, sentinel := range CallErrors() {
			if errors.Is(a.err, sentinel) {
				return nil, fmt.Errorf("call %s of %s: %w", method, peer, sentinel)
			}
		}
		if a.err != nil {
			return nil, &link.CallError{Peer: peer, Method: method, Message: a.err.Error()}
		}
		return a.body, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
