package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
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
	t     *testing.T
	nodes map[string]*node // by name; a node keeps its stores over its processes
	mu    struct {
		sync.Mutex
		cut     map[string]bool // by name: reaches nobody
		changed map[string]time.Time
	}
	stop   context.CancelFunc
	ctx    context.Context
	checks sync.WaitGroup
}

type node struct {
	w         *world
	name      string
	serverID  string
	clusterID string
	protocol  int
	zone      string
	boot      uint64
	low       bool
	stores    raftlog.Stores
	poke      chan struct{}
	trans     *raft.InmemTransport
	log       *raftlog.Log
	ctl       *Control
	running   bool
	err       error // of Run
	done      chan struct{}
	stop      context.CancelFunc
	mu        struct {
		sync.Mutex
		handlers map[string]link.CallHandler
	}
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, nodes: map[string]*node{}}
	w.mu.cut, w.mu.changed = map[string]bool{}, map[string]time.Time{}
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.checks.Go(w.watch)
	return w
}

// close stops everything; it must be called before the bubble ends.
func (w *world) close() {
	w.stop()
	w.checks.Wait()
	for _, n := range w.nodes {
		if n.running {
			w.kill(n.name)
		}
	}
	time.Sleep(time.Minute) // raft's last timers
}

// add makes a node with an empty data folder and starts its first process.
func (w *world) add(name string) *node {
	n := &node{w: w, name: name, serverID: fmt.Sprintf("id-%s-%d", name, len(w.nodes)), protocol: 1, poke: make(chan struct{}, 1)}
	n.stores = raftlog.Stores{Log: raft.NewInmemStore(), Stable: raft.NewInmemStore(), Snapshots: raft.NewInmemSnapshotStore()}
	w.nodes[name] = n
	n.start()
	return n
}

// start begins another process of a node.
func (n *node) start() {
	n.boot++
	n.mu.Lock()
	n.mu.handlers = map[string]link.CallHandler{}
	n.mu.Unlock()
	n.low, n.err = false, nil
	_, n.trans = raft.NewInmemTransport(raft.ServerAddress(n.name))
	gossip := &testGossip{n}
	fwd := NewForwarder(n, gossip)
	var err error
	n.log, err = raftlog.Open(raftlog.Config{ServerID: n.serverID, SnapshotEvery: 200, KeepLogs: 100}, n.stores, n.trans, fwd)
	if err != nil {
		n.w.t.Fatal(err)
	}
	fwd.Serve(n.log)
	n.ctl, err = New(Config{
		Self: n.member(), ClusterID: n.clusterID, Protocol: 1, Grace: testGrace, StartGrace: 5 * time.Second,
		Settle: time.Second, MaxMoves: moveBound, Logger: n.logger(),
	}, Deps{Log: n.log, Gossip: gossip, Calls: n, LowSpace: func() bool { return n.low }})
	if err != nil {
		n.w.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop, n.done, n.running = stop, make(chan struct{}), true
	ctl := n.ctl
	go func() {
		var fanout sync.WaitGroup
		fanout.Go(func() { n.report(ctx, ctl) })
		n.err = ctl.Run(ctx)
		stop()
		fanout.Wait()
		close(n.done)
	}()
	n.w.connect()
}

func (n *node) member() state.Member {
	return state.Member{Name: n.name, ServerID: n.serverID, Boot: n.boot, Raft: n.name, Zone: n.zone}
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
		if t := w.nodes[to]; t == nil || t.boot != boot || !w.reach(from, to) {
			return false
		}
	}
	return true
}

// kill ends a process without a word.
func (w *world) kill(name string) {
	n := w.nodes[name]
	w.mu.Lock()
	w.mu.changed[name] = time.Now()
	w.mu.Unlock()
	n.running = false
	w.connect()
	n.stop()
	<-n.done
	if err := n.log.Close(); err != nil {
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
	n := w.nodes[to]
	return from == to || n != nil && n.running && !w.mu.cut[from] && !w.mu.cut[to]
}

// connect makes raft's transports as reachable as their nodes.
func (w *world) connect() {
	for a, na := range w.nodes {
		for b, nb := range w.nodes {
			switch {
			case a == b || na.trans == nil || nb.trans == nil:
			case na.running && w.reach(a, b):
				na.trans.Connect(raft.ServerAddress(b), nb.trans)
			default:
				na.trans.Disconnect(raft.ServerAddress(b))
			}
		}
	}
	for _, n := range w.nodes {
		select {
		case n.poke <- struct{}{}:
		default:
		}
	}
}

// testGossip sees who can be reached, and who cannot after a while.
type testGossip struct{ n *node }

func (g *testGossip) Changed() <-chan struct{} { return g.n.poke }

func (g *testGossip) Peers() (out []Peer) {
	w := g.n.w
	for name, n := range w.nodes {
		if n.boot == 0 {
			continue
		}
		alive := w.reach(g.n.name, name)
		w.mu.Lock()
		if since := w.mu.changed[name]; !alive && time.Since(since) < detect {
			alive = true
		}
		if since := w.mu.changed[g.n.name]; !alive && time.Since(since) < detect {
			alive = true
		}
		w.mu.Unlock()
		out = append(out, Peer{Alive: alive, Address: name + ":7946", Meta: Meta{
			Name: strings.TrimSuffix(name, "'"), ServerID: n.serverID, ClusterID: n.clusterID, Boot: n.boot, Raft: n.name, Protocol: n.protocol, Zone: n.zone,
			HasData: n.clusterID != "",
		}})
	}
	slices.SortFunc(out, func(a, b Peer) int { return strings.Compare(a.ServerID, b.ServerID) })
	return out
}

// Handle and Call implement Calls.
func (n *node) Handle(method string, fn link.CallHandler) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.handlers[method] = fn
}

func (n *node) Call(ctx context.Context, peer, method string, req []byte) ([]byte, error) {
	to := n.w.nodes[peer]
	if to == nil {
		return nil, link.ErrPeer
	}
	if !to.running {
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

// found begins a cluster at the first node.
func (w *world) found(name string) *node {
	n := w.add(name)
	id, err := Found(w.t.Context(), n.log, &testGossip{n}, Founding{First: n.member(), ClusterID: "c", Partitions: parts, Replicas: 2})
	if err != nil {
		w.t.Fatal(err)
	}
	n.clusterID = id
	return n
}

func (w *world) join(names ...string) {
	for _, name := range names {
		w.add(name).clusterID = "c"
	}
}

// cluster founds and joins n nodes n0, n1, ... and waits until all is in order.
func (w *world) cluster(n int) {
	w.found("n0")
	for i := 1; i < n; i++ {
		w.join(fmt.Sprint("n", i))
	}
	w.settle()
}

func (w *world) register(at string, n int) {
	w.t.Helper()
	w.registerAt(at, n, "", fmt.Sprintf("tcp://127.0.0.1:%d", n))
}

func (w *world) registerAt(at string, n int, home, endpoint string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
	defer cancel()
	r, err := w.nodes[at].ctl.Propose(ctx, state.Command{Register: &state.Registration{Node: home, Registration: catalog.Registration{
		Instance: fmt.Sprint(n), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: endpoint}}})
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		w.t.Fatalf("register at %s: %v", at, err)
	}
}

// leader returns the node that leads and can be reached by a quorum, or nil.
func (w *world) leader() *node {
	for _, n := range w.nodes {
		if n.running {
			if _, err := n.log.ReadIndex(w.ctx); err == nil {
				return n
			}
		}
	}
	return nil
}
