package gossip

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/gossip/memory"
)

// world is some nodes on a network in memory, in virtual time.
type world struct {
	t     *testing.T
	net   *memory.Network
	nodes map[string]*node // that have not been stopped
	all   []*node
	boot  uint64
}

type node struct {
	*Gossip
	name, addr string
	stop       context.CancelFunc
	done       chan error
	log        *logBuffer
}

// logBuffer is where a node's log goes.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func newWorld(t *testing.T) *world {
	return &world{t: t, net: memory.New(1), nodes: map[string]*node{}}
}

// inWorld runs fn in virtual time and stops all nodes behind it.
func inWorld(t *testing.T, fn func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer func() { // after a failed test too
			for _, n := range w.all {
				w.end(n)
			}
			time.Sleep(10 * time.Second) // memberlist's last probes and timers
		}()
		fn(t, w)
	})
}

func addrOf(i int) string { return fmt.Sprintf("10.0.0.%d:7946", i) }

// config is that of node number i.
func (w *world) config(i int) Config {
	w.boot++
	return Config{
		Meta: Meta{Name: fmt.Sprintf("n%d", i), ServerID: fmt.Sprintf("server-%d", i), ClusterID: "c1", Boot: w.boot,
			Raft: fmt.Sprintf("10.0.0.%d:1", i), Link: fmt.Sprintf("10.0.0.%d:2", i), HTTP: fmt.Sprintf("10.0.0.%d:3", i), Protocol: 1},
	}
}

// tryStart starts a node that runs at an address.
func (w *world) tryStart(cfg Config, addr string) (*node, error) {
	tr, err := w.net.Transport(addr)
	if err != nil {
		return nil, err
	}
	n := &node{name: cfg.Meta.Name, addr: addr, log: &logBuffer{}, done: make(chan error, 1)}
	cfg.Transport = tr
	cfg.Logger = slog.New(slog.NewTextHandler(n.log, nil))
	if n.Gossip, err = New(cfg); err != nil {
		return nil, err
	}
	if err := n.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	go func() { n.done <- n.Run(ctx) }()
	w.all = append(w.all, n)
	return n, nil
}

// start starts node number i and lets it join at the seeds.
func (w *world) start(i int, seeds ...string) *node {
	w.t.Helper()
	return w.startConfig(w.config(i), addrOf(i), seeds...)
}

func (w *world) startConfig(cfg Config, addr string, seeds ...string) *node {
	w.t.Helper()
	n, err := w.tryStart(cfg, addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.nodes[n.name] = n
	if len(seeds) > 0 {
		if err := n.Join(w.t.Context(), seeds); err != nil {
			w.t.Fatalf("%s joins: %v", n.name, err)
		}
	}
	return n
}

// cluster starts n nodes that know each other.
func (w *world) cluster(n int) {
	w.t.Helper()
	for i := 1; i <= n; i++ {
		if i == 1 {
			w.start(i)
		} else {
			w.start(i, addrOf(1))
		}
	}
	w.await("all see all", 5*time.Second, func() bool { return w.allSee(n) })
}

func (w *world) allSee(n int) bool {
	for _, node := range w.nodes {
		if node.alive() != n {
			return false
		}
	}
	return true
}

func (n *node) alive() (count int) {
	for _, p := range n.Peers() {
		if p.Alive {
			count++
		}
	}
	return count
}

// peer returns the node of a name, one that is alive rather than one that is dead.
func (n *node) peer(name string) (found Peer) {
	for _, p := range n.Peers() {
		if p.Name == name && (p.Alive || found.Name == "") {
			found = p
		}
	}
	return found
}

// stop ends a node without a word: for the others it dies.
func (w *world) stop(name string) {
	w.t.Helper()
	w.end(w.nodes[name])
	delete(w.nodes, name)
}

func (w *world) end(n *node) {
	if n.stop == nil {
		return
	}
	n.stop()
	n.stop = nil
	if err := <-n.done; !errors.Is(err, context.Canceled) {
		w.t.Errorf("%s: Run: %v", n.name, err)
	}
}

// await lets virtual time pass until ok, and returns how much it took.
func (w *world) await(what string, limit time.Duration, ok func() bool) time.Duration {
	w.t.Helper()
	begin := time.Now()
	for !ok() {
		if time.Since(begin) > limit {
			var seen strings.Builder
			for name, n := range w.nodes {
				fmt.Fprintf(&seen, "\n%s at %s sees", name, n.addr)
				for _, p := range n.Peers() {
					fmt.Fprintf(&seen, " %s@%s(%x):%v", p.Name, p.Address, p.Boot, p.Alive)
				}
			}
			w.t.Fatalf("not within %v: %s%s", limit, what, seen.String())
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begin)
}
