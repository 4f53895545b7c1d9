package zmq_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/transporttest"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

// names is a name service that a test controls.
type names struct {
	mu struct {
		sync.Mutex
		hosts map[string]string // "" = no answer until the asker gives up
		asked map[string]int
	}
}

func (n *names) set(host, address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.hosts == nil {
		n.mu.hosts, n.mu.asked = map[string]string{}, map[string]int{}
	}
	n.mu.hosts[host] = address
}

func (n *names) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	n.mu.Lock()
	address, known := n.mu.hosts[host]
	n.mu.asked[host]++
	n.mu.Unlock()
	switch {
	case !known:
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	case address == "":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return []netip.Addr{netip.MustParseAddr(address)}, nil
}

// TestSlowNameServer: hosts whose names are not answered hold up nobody, and the
// loop ends all the same.
func TestSlowNameServer(t *testing.T) {
	var ns names
	ns.set("slow", "")
	ns.set("engine", "127.0.0.1")
	n := newNetwork(t, zmq.Config{Resolve: ns.resolve})
	l := startLoop(t, n)
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*"})
	for range 50 {
		subscribe(t, l, transport.SubscribeConfig{Endpoint: "tcp://slow:5557"}, transporttest.NewRecorder())
		subscribe(t, l, transport.SubscribeConfig{Endpoint: "tcp://unknown:5557"}, transporttest.NewRecorder())
	}
	r := transporttest.NewRecorder()
	s := subscribe(t, l, transport.SubscribeConfig{Endpoint: strings.Replace(p.Endpoint(), "127.0.0.1", "engine", 1)}, r)
	r.AwaitStream(t, p, "")
	if got := l.Stats().Sockets; got != 101 {
		t.Errorf("%d sockets, want 101", got)
	}
	onLoop(l, s.Close)
	if got := l.Stats().Sockets; got != 100 {
		t.Errorf("%d sockets, want 100", got)
	}
}

// TestNameMoves: an engine that comes back under another address is found by its
// name, as a pod that is rescheduled is.
func TestNameMoves(t *testing.T) {
	var ns names
	ns.set("engine", "127.0.0.1")
	n := newNetwork(t, zmq.Config{Resolve: ns.resolve})
	l := startLoop(t, n)
	first := freePort(t)
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: first, ReplayEndpoint: "tcp://127.0.0.1:*"})
	r := transporttest.NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: strings.Replace(first, "127.0.0.1", "engine", 1)}, r)
	r.AwaitStream(t, p, "")
	if err := p.Publish("life1", 1, nil); err != nil {
		t.Fatal(err)
	}
	r.Await(t, "the first life", func(s transporttest.Seen) bool { return slices.Equal(s.Sequences(), []uint64{1}) })

	ns.set("engine", "127.0.0.2")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	r.Await(t, "OnDisconnect", func(s transporttest.Seen) bool { return s.Disconnects == 1 })
	p = newPublisher(t, n, transport.PublisherConfig{Endpoint: strings.Replace(first, "127.0.0.1", "127.0.0.2", 1)})
	r.AwaitStream(t, p, "")
	if err := p.Publish("life2", 2, nil); err != nil {
		t.Fatal(err)
	}
	seen := r.Await(t, "the second life", func(s transporttest.Seen) bool { return slices.Equal(s.Sequences(), []uint64{1, 2}) })
	if seen.Connects != 2 {
		t.Errorf("%d connects: %q", seen.Connects, seen.Log)
	}
}

// TestNameAppears: a host that is not known yet is asked for again.
func TestNameAppears(t *testing.T) {
	var ns names
	ns.set("other", "127.0.0.1")
	n := newNetwork(t, zmq.Config{Resolve: ns.resolve})
	l := startLoop(t, n)
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*", ReplayEndpoint: "tcp://127.0.0.1:*"})
	r := transporttest.NewRecorder()
	onLoop(l, func() {
		s, err := l.OpenReplay(strings.Replace(p.ReplayEndpoint(), "127.0.0.1", "engine", 1), r)
		if err == nil {
			err = s.Request(0)
		}
		if err != nil {
			t.Error(err)
		}
	})
	await(t, "the name to be asked for", func() (string, bool) {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		return "", ns.mu.asked["engine"] > 0
	})
	ns.set("engine", "127.0.0.1")
	r.Await(t, "the answer", func(s transporttest.Seen) bool { return len(s.Messages) == 1 && s.Connects == 1 })
}

// TestClosedLoopSaysSo: posts that run at the end of a loop can open nothing any
// more, and are told why.
func TestClosedLoopSaysSo(t *testing.T) {
	n := newNetwork(t, zmq.Config{})
	l, err := n.NewLoop("ending")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	result := make(chan error, 2)
	l.Post(func() {
		_, err := l.Subscribe(transport.SubscribeConfig{Endpoint: "tcp://127.0.0.1:5557"}, transporttest.NewRecorder())
		result <- err
		_, err = l.OpenReplay("tcp://127.0.0.1:5557", transporttest.NewRecorder())
		result <- err
	})
	if err := l.Run(ctx); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := <-result; !errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrEndpoint) {
			t.Errorf("on a loop that ends: %v", err)
		}
	}
}
