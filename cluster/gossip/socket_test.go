package gossip

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// onLoopback starts a node on real sockets.
func onLoopback(t *testing.T, name string, change func(*Config)) *Gossip {
	t.Helper()
	cfg := Config{Meta: Meta{Name: name, ServerID: "server-" + name, ClusterID: "c", Boot: 7, Protocol: 1}, Bind: "127.0.0.1:0",
		Probe: 100 * time.Millisecond, Rejoin: 200 * time.Millisecond, DialTimeout: time.Second, Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&cfg)
	}
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Run: %v", name, err)
		}
	})
	return g
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func living(g *Gossip) (n int) {
	for _, p := range g.Peers() {
		if p.Alive {
			n++
		}
	}
	return n
}

// Three nodes on sockets, encrypted, one of them known by name only.
func TestSockets(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) }) // last: it waits a little for the last probes
	secret := func(c *Config) { c.Key, c.Label = keyB, "prod" }
	a, b := onLoopback(t, "a", secret), onLoopback(t, "b", secret)
	if err := b.Join(t.Context(), []string{a.Address()}); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(a.Address())
	if err != nil {
		t.Fatal(err)
	}
	c := onLoopback(t, "c", func(c *Config) {
		secret(c)
		c.Bind, c.Seeds = "nodes.example:0", []string{"nodes.example:" + port}
		c.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("::1"), netip.MustParseAddr("127.0.0.1")}, nil
		}
	})
	await(t, "all see all", func() bool { return living(a) == 3 && living(b) == 3 && living(c) == 3 })
	if host, _, _ := net.SplitHostPort(c.Address()); host != "127.0.0.1" {
		t.Errorf("c is bound to %s", c.Address())
	}
	stranger := onLoopback(t, "d", func(c *Config) { c.Label, c.Key = "prod", keyA })
	wantTold(t, stranger.Join(t.Context(), []string{a.Address()}), ErrWrongKey, a.Address())
	if err := c.Leave(time.Second); err != nil {
		t.Fatal(err)
	}
	await(t, "c has left", func() bool { return living(a) == 2 && living(b) == 2 })
}

func TestSocketsThatAreNone(t *testing.T) {
	g := onLoopback(t, "a", nil)
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	wantTold(t, g.Join(t.Context(), []string{web.Listener.Addr().String()}), ErrNotGossip, web.Listener.Addr().String())
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	wantTold(t, g.Join(t.Context(), []string{address}), ErrNobody, address, "refused")
	// The resolver of the system, with a name that cannot exist (RFC 2606).
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	wantTold(t, g.Join(ctx, []string{"nobody.invalid:1"}), ErrUnresolved, `"nobody.invalid"`)
}

func TestBindErrors(t *testing.T) {
	taken := onLoopback(t, "a", nil)
	for name, c := range map[string]struct {
		change func(*Config)
		kind   error
		words  []string
	}{
		"port in use":       {func(c *Config) { c.Bind = taken.Address() }, ErrBind, []string{taken.Address(), "address already in use"}},
		"not of this host":  {func(c *Config) { c.Bind = "192.0.2.1:0" }, ErrBind, []string{"192.0.2.1:0"}},
		"no address":        {func(c *Config) { c.Bind = "what:ever:1" }, ErrUnresolved, nil},
		"all, advertised":   {func(c *Config) { c.Bind, c.Advertise = "127.0.0.1:0", "0.0.0.0" }, ErrBind, []string{"advertise"}},
		"all v6, not told":  {func(c *Config) { c.Bind = "[::]:0" }, ErrBind, []string{"advertise"}},
		"advertise unknown": {func(c *Config) { c.Advertise = "nobody.invalid" }, ErrUnresolved, []string{"nobody.invalid"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{Meta: Meta{Name: "n", ServerID: "s", Boot: 1}, Bind: "127.0.0.1:0"}
			c.change(&cfg)
			g, err := New(cfg)
			if err != nil {
				t.Fatal(err)
			}
			wantTold(t, g.Start(), c.kind, c.words...)
			if err := g.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAdvertise(t *testing.T) {
	for advertise, want := range map[string]string{
		"192.0.2.7:99":    "192.0.2.7:99",
		"192.0.2.7":       "192.0.2.7:", // with the port that is bound
		"[2001:db8::1]:9": "[2001:db8::1]:9",
	} {
		g := onLoopback(t, "a", func(c *Config) { c.Advertise = advertise })
		if got := g.Address(); !strings.HasPrefix(got, want) || strings.HasSuffix(got, ":0") {
			t.Errorf("advertise %s: others are told %s", advertise, got)
		}
	}
}
