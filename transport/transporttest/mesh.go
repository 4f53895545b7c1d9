package transporttest

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// MeshHarness is Harness for meshes.
type MeshHarness struct {
	// New returns a network and closes it at the end of the test.
	New func(t testing.TB) transport.MeshNetwork
	// Fixed returns an address that nothing is bound to and that can be bound more
	// than once in turn.
	Fixed        func(t testing.TB) string
	BadEndpoints []string
	Run          func(t *testing.T, name string, f func(t *testing.T))
}

// RunMesh runs the suite of meshes.
func RunMesh(t *testing.T, h MeshHarness) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, MeshHarness)
	}{
		{"OrderBothWays", testMeshOrder},
		{"Parts", testMeshParts},
		{"Restart", testMeshRestart},
		{"TwoRunsOfOneName", testMeshHandover},
		{"UnknownAndGone", testMeshGone},
		{"TooLong", testMeshTooLong},
		{"Endpoints", testMeshEndpoints},
		{"SendFromManyGoroutines", testMeshConcurrent},
		{"CloseWhileBusy", testMeshClose},
	} {
		h.Run(t, c.name, func(t *testing.T) { c.f(t, h) })
	}
}

// meshNode is a mesh that remembers what came.
type meshNode struct {
	transport.Mesh
	t    testing.TB
	name string
	mu   sync.Mutex
	got  []string // "from:message"
}

func newMeshNode(t testing.TB, net transport.MeshNetwork, cfg transport.MeshConfig) *meshNode {
	t.Helper()
	n := &meshNode{t: t, name: cfg.Name}
	cfg.Handler = func(from string, message []byte) {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.got = append(n.got, from+":"+string(message))
	}
	m, err := net.NewMesh(cfg)
	if err != nil {
		t.Fatalf("new mesh: %v", err)
	}
	n.Mesh = m
	t.Cleanup(n.close)
	return n
}

func (n *meshNode) close() {
	if err := n.Close(); err != nil {
		n.t.Errorf("close mesh %s: %v", n.name, err)
	}
}

func (n *meshNode) peer(name, endpoint string) {
	n.t.Helper()
	if err := n.SetPeer(name, endpoint); err != nil {
		n.t.Fatal(err)
	}
}

func (n *meshNode) messages() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]string(nil), n.got...)
}

// await waits until done says so about what has come.
func (n *meshNode) await(what string, done func(got []string) bool) []string {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		got := n.messages()
		if done(got) {
			return got
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("node %s: %s did not come; last seen %d messages: %.200q", n.name, what, len(got), got)
		}
	}
}

// reach sends until a message arrives: a mesh may lose what is sent before the
// connection stands.
func (n *meshNode) reach(to *meshNode, message string) {
	n.t.Helper()
	want := n.name + ":" + message
	to.await(want, func(got []string) bool {
		for _, g := range got {
			if g == want {
				return true
			}
		}
		n.Send(to.name, []byte(message))
		return false
	})
}

func (n *meshNode) mustSend(to string, parts ...[]byte) {
	n.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !n.Send(to, parts...); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			n.t.Fatalf("%s cannot send to %s", n.name, to)
		}
	}
}

func meshPair(t testing.TB, h MeshHarness) (a, b *meshNode) {
	net := h.New(t)
	a = newMeshNode(t, net, transport.MeshConfig{Name: "a", Boot: 1, Bind: h.Fixed(t)})
	b = newMeshNode(t, net, transport.MeshConfig{Name: "b", Boot: 2, Bind: h.Fixed(t)})
	a.peer("b", b.Endpoint())
	b.peer("a", a.Endpoint())
	a.reach(b, "hello")
	b.reach(a, "hello")
	return a, b
}

// numbered picks the messages of a sender that are numbers.
func numbered(got []string, from string) []string {
	var out []string
	for _, g := range got {
		if rest, ok := strings.CutPrefix(g, from+":#"); ok {
			out = append(out, rest)
		}
	}
	return out
}

func testMeshOrder(t *testing.T, h MeshHarness) {
	a, b := meshPair(t, h)
	const n = 2000
	for i := range n {
		a.mustSend("b", fmt.Append(nil, "#", i))
		b.mustSend("a", fmt.Append(nil, "#", i))
	}
	for _, c := range []struct{ from, to *meshNode }{{a, b}, {b, a}} {
		got := numbered(c.to.await("the last number", func(got []string) bool { return len(numbered(got, c.from.name)) >= n }), c.from.name)
		for i, g := range got {
			if g != fmt.Sprint(i) {
				t.Fatalf("from %s: message %d is %s", c.from.name, i, g)
			}
		}
	}
}

func testMeshParts(t *testing.T, h MeshHarness) {
	a, b := meshPair(t, h)
	part := []byte("part")
	a.mustSend("b", part, nil, []byte{}, part, []byte("!"))
	copy(part, "XXXX") // was copied
	b.await("the joined message", func(got []string) bool { return got[len(got)-1] == "a:partpart!" })
	a.mustSend("b")
	b.await("the empty message", func(got []string) bool { return got[len(got)-1] == "a:" })
	long := []byte(strings.Repeat("0123456789", 300_000))
	a.mustSend("b", []byte("#"), long)
	got := b.await("the long message", func(got []string) bool { return len(numbered(got, "a")) > 0 })
	if g := numbered(got, "a")[0]; g != string(long) {
		t.Fatalf("the long message came with %d bytes, want %d", len(g), len(long))
	}
}

func testMeshRestart(t *testing.T, h MeshHarness) {
	net := h.New(t)
	at := h.Fixed(t)
	a := newMeshNode(t, net, transport.MeshConfig{Name: "a", Boot: 1, Bind: h.Fixed(t)})
	for boot := range uint64(3) {
		b := newMeshNode(t, net, transport.MeshConfig{Name: "b", Boot: boot, Bind: at})
		a.peer("b", b.Endpoint())
		b.peer("a", a.Endpoint())
		a.reach(b, fmt.Sprint("to run ", boot))
		b.reach(a, fmt.Sprint("from run ", boot))
		b.close() // the address is free when it returns
	}
}

func testMeshHandover(t *testing.T, h MeshHarness) {
	net := h.New(t)
	a := newMeshNode(t, net, transport.MeshConfig{Name: "a", Boot: 1, Bind: h.Fixed(t)})
	first := newMeshNode(t, net, transport.MeshConfig{Name: "b", Boot: 1, Bind: h.Fixed(t)})
	first.peer("a", a.Endpoint())
	first.reach(a, "first")
	// The predecessor is still connected when its successor comes, with another boot id
	// and even with the same.
	for i, boot := range []uint64{2, 1} {
		next := newMeshNode(t, net, transport.MeshConfig{Name: "b", Boot: boot, Bind: h.Fixed(t)})
		next.peer("a", a.Endpoint())
		next.reach(a, fmt.Sprint("successor ", i))
	}
}

func testMeshGone(t *testing.T, h MeshHarness) {
	a, b := meshPair(t, h)
	if a.Send("nobody", []byte("x")) {
		t.Error("sent to an unknown node")
	}
	a.peer("b", "")
	if a.Send("b", []byte("x")) {
		t.Error("sent to a forgotten node")
	}
	a.peer("b", b.Endpoint())
	a.reach(b, "again")
	b.close()
	for deadline := time.Now().Add(20 * time.Second); a.Send("b", []byte("x")); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a closed node can still be sent to")
		}
	}
	if b.Send("a", []byte("x")) {
		t.Error("a closed mesh sends")
	}
	if err := b.SetPeer("c", a.Endpoint()); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("a closed mesh takes a peer: %v", err)
	}
}

func testMeshTooLong(t *testing.T, h MeshHarness) {
	net := h.New(t)
	a := newMeshNode(t, net, transport.MeshConfig{Name: "a", Boot: 1, Bind: h.Fixed(t), MaxMessage: 1000})
	b := newMeshNode(t, net, transport.MeshConfig{Name: "b", Boot: 1, Bind: h.Fixed(t), MaxMessage: 1000})
	a.peer("b", b.Endpoint())
	a.reach(b, "hello")
	if a.Send("b", make([]byte, 600), make([]byte, 401)) {
		t.Error("a message above the limit was taken")
	}
	a.mustSend("b", make([]byte, 1000))
	b.await("the longest message", func(got []string) bool { return len(got[len(got)-1]) == 1002 })
}

func testMeshEndpoints(t *testing.T, h MeshHarness) {
	net := h.New(t)
	a := newMeshNode(t, net, transport.MeshConfig{Name: "a", Bind: h.Fixed(t)})
	ignore := func(string, []byte) {}
	for _, bad := range h.BadEndpoints {
		if _, err := net.NewMesh(transport.MeshConfig{Name: "b", Bind: bad, Handler: ignore}); !errors.Is(err, transport.ErrEndpoint) {
			t.Errorf("bind %q: %v", bad, err)
		}
		if bad == "" {
			continue // forgets the peer
		}
		if err := a.SetPeer("b", bad); !errors.Is(err, transport.ErrEndpoint) {
			t.Errorf("set peer at %q: %v", bad, err)
		}
	}
	if _, err := net.NewMesh(transport.MeshConfig{Name: "b", Bind: a.Endpoint(), Handler: ignore}); !errors.Is(err, transport.ErrAddressInUse) {
		t.Errorf("bind where another mesh is bound: %v", err)
	}
	for _, cfg := range []transport.MeshConfig{
		{Bind: a.Endpoint(), Handler: ignore},
		{Name: "with blank", Handler: ignore},
		{Name: strings.Repeat("x", 201), Handler: ignore},
		{Name: "b"},
		{Name: "b", Handler: ignore, MaxMessage: -1},
	} {
		if _, err := net.NewMesh(cfg); !errors.Is(err, transport.ErrMeshConfig) {
			t.Errorf("config %+v: %v", cfg, err)
		}
	}
}

func testMeshConcurrent(t *testing.T, h MeshHarness) {
	a, b := meshPair(t, h)
	const senders, each = 4, 500
	var wg sync.WaitGroup
	for s := range senders {
		wg.Go(func() {
			for i := range each {
				a.mustSend("b", fmt.Append(nil, "#", s, " ", i))
			}
		})
	}
	wg.Wait()
	got := numbered(b.await("everything", func(got []string) bool { return len(numbered(got, "a")) >= senders*each }), "a")
	next := map[string]int{}
	for _, g := range got {
		sender, i, _ := strings.Cut(g, " ")
		if i != fmt.Sprint(next[sender]) {
			t.Fatalf("sender %s: got %s, want %d", sender, i, next[sender])
		}
		next[sender]++
	}
}

func testMeshClose(t *testing.T, h MeshHarness) {
	a, b := meshPair(t, h)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if !a.Send("b", []byte("#x")) {
					time.Sleep(time.Millisecond)
				}
			}
		}
	})
	b.await("traffic", func(got []string) bool { return len(numbered(got, "a")) > 10 })
	b.close()
	after := len(b.messages())
	a.close()
	close(stop)
	wg.Wait()
	if n := len(b.messages()); n != after {
		t.Errorf("%d messages came after Close had returned", n-after)
	}
}
