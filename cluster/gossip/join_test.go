package gossip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// wantTold checks the kind of an error and that its text is one or two plain sentences.
func wantTold(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Fatalf("error is %v, want kind %v", err, kind)
	}
	text := err.Error()
	if !strings.HasSuffix(text, ".") || strings.Contains(text, "\n") || strings.Count(text, ". ") > 1 {
		t.Errorf("not one or two plain sentences: %q", text)
	}
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}

var (
	keyA = []byte("0123456789abcdef")
	keyB = []byte("0123456789abcdefghijklmnopqrstuv")
)

// Every reason for which a node cannot join is told apart and in words, and after it
// neither side has the other among its peers.
func TestJoinRefused(t *testing.T) {
	for name, c := range map[string]struct {
		member, joiner func(*Config)
		kind           error
		words          []string
	}{
		"wrong key":         {func(c *Config) { c.Key = keyA }, func(c *Config) { c.Key = keyB }, ErrWrongKey, []string{addrOf(1), "another gossip key"}},
		"no key":            {func(c *Config) { c.Key = keyA }, nil, ErrWrongKey, []string{addrOf(1), "is encrypted", "no key"}},
		"key too many":      {nil, func(c *Config) { c.Key = keyA }, ErrWrongKey, []string{addrOf(1), "has no key"}},
		"label":             {func(c *Config) { c.Label = "prod" }, func(c *Config) { c.Label = "staging" }, ErrOtherLabel, []string{addrOf(1), `"prod"`, `"staging"`}},
		"label before key":  {func(c *Config) { c.Label = "prod"; c.Key = keyA }, func(c *Config) { c.Label = "staging"; c.Key = keyB }, ErrOtherLabel, nil},
		"cluster":           {nil, func(c *Config) { c.Meta.ClusterID = "c2" }, ErrOtherCluster, []string{addrOf(1), "c1", "c2", `"n1"`}},
		"protocol":          {func(c *Config) { c.Meta.Version = "v9" }, func(c *Config) { c.Meta.Protocol = 2 }, ErrOtherProtocol, []string{addrOf(1), "version 1", "this node 2", "v9"}},
		"same name":         {nil, func(c *Config) { c.Meta.Name = "n1" }, ErrNameInUse, []string{addrOf(1), `"n1"`}},
		"same server id":    {nil, func(c *Config) { c.Meta.ServerID = "server-1" }, ErrIdentityInUse, []string{addrOf(1), "server-1", "copied"}},
		"clock ahead":       {nil, func(c *Config) { c.Clock = clockOff(42 * time.Second) }, ErrClock, []string{addrOf(1), "42s ahead of", `"n1"`}},
		"clock behind":      {nil, func(c *Config) { c.Clock = clockOff(-time.Hour) }, ErrClock, []string{"1h0m0s behind"}},
		"name of a third":   {nil, func(c *Config) { c.Meta.Name = "n2" }, ErrNameInUse, []string{addrOf(2), `"n2"`}},
		"server id of such": {nil, func(c *Config) { c.Meta.ServerID = "server-2" }, ErrIdentityInUse, []string{addrOf(2), "server-2"}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				for i := 1; i <= 2; i++ {
					cfg := w.config(i)
					if c.member != nil {
						c.member(&cfg)
					}
					w.startConfig(cfg, addrOf(i), seedFor(i)...)
				}
				w.await("members see each other", time.Second, func() bool { return w.allSee(2) })
				cfg := w.config(3)
				if c.joiner != nil {
					c.joiner(&cfg)
				}
				joiner, err := w.tryStart(cfg, addrOf(3))
				if err != nil {
					t.Fatal(err)
				}
				err = joiner.Join(t.Context(), []string{addrOf(1)})
				wantTold(t, err, c.kind, c.words...)
				t.Log(err)
				time.Sleep(20 * time.Second)
				for name, n := range w.nodes {
					if n.alive() != 2 {
						t.Errorf("%s sees %d nodes", name, n.alive())
					}
				}
				if joiner.alive() != 1 {
					t.Errorf("the one that was refused sees %d nodes", joiner.alive())
				}
			})
		})
	}
}

// seedFor is the first node, except for itself.
func seedFor(i int) []string {
	if i == 1 {
		return nil
	}
	return []string{addrOf(1)}
}

func clockOff(d time.Duration) func() time.Time { return func() time.Time { return time.Now().Add(d) } }

func TestJoinAlmostRefused(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"nothing":                  func(*Config) {},
		"clock a little off":       func(c *Config) { c.Clock = clockOff(9 * time.Second) },
		"clock off, and allowed":   func(c *Config) { c.Clock = clockOff(time.Minute); c.MaxSkew = time.Hour },
		"no cluster yet":           func(c *Config) { c.Meta.ClusterID = "" },
		"another zone and version": func(c *Config) { c.Meta.Zone, c.Meta.Version, c.Meta.Weight = "z", "v2", 2.5 },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.start(1)
				cfg := w.config(2)
				change(&cfg)
				w.startConfig(cfg, addrOf(2), addrOf(1))
				w.await("both see both", time.Second, func() bool { return w.allSee(2) })
				if got := w.nodes["n1"].peer("n2"); got.Meta != w.nodes["n2"].Meta() {
					t.Errorf("n1 has %+v, n2 says %+v", got.Meta, w.nodes["n2"].Meta())
				}
			})
		})
	}
}

func TestJoinEncrypted(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		for i := 1; i <= 3; i++ {
			cfg := w.config(i)
			cfg.Key, cfg.Label = keyB, "a label"
			w.startConfig(cfg, addrOf(i), seedFor(i)...)
		}
		w.await("all see all", 2*time.Second, func() bool { return w.allSee(3) })
	})
}

func TestJoinNobody(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		n := w.start(1)
		join := func(addrs ...string) error { return n.Join(t.Context(), addrs) }
		wantTold(t, join(addrOf(9)), ErrNobody, addrOf(9), "Nobody listens", "refused")
		wantTold(t, join(), ErrNobody, "no address")
		wantTold(t, join(addrOf(1)), ErrNobody, "Only this node itself", addrOf(1))
		w.net.Cut(addrOf(1), addrOf(8))
		begin := time.Now()
		wantTold(t, join(addrOf(8)), ErrNobody, addrOf(8), "does not answer within 2s", "firewall")
		if took := time.Since(begin); took != 2*time.Second {
			t.Errorf("gave up after %v", took)
		}
		for _, bad := range []string{"10.0.0.1:seven", "10.0.0.1:70000", ":7946", "a:b:c"} {
			wantTold(t, join(bad), ErrUnresolved, "host:port")
		}
		both := join(addrOf(9), addrOf(8))
		if !errors.Is(both, ErrNobody) || !strings.Contains(both.Error(), addrOf(8)) || !strings.Contains(both.Error(), addrOf(9)) {
			t.Errorf("two reasons: %v", both)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := n.Join(ctx, []string{addrOf(8)}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a context that ends: %v", err)
		}
		// One of several is enough, wherever it stands.
		w.start(2)
		if err := join(addrOf(9), addrOf(1), addrOf(2)); err != nil {
			t.Errorf("one of three: %v", err)
		}
	})
}

func TestJoinByName(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(1)
		cfg := w.config(2)
		cfg.Resolve = func(_ context.Context, host string) ([]netip.Addr, error) {
			switch host {
			case "nodes.example":
				return []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("10.0.0.7")}, nil
			case "empty.example":
				return nil, nil
			}
			return nil, errors.New("no such host")
		}
		n := w.startConfig(cfg, addrOf(2))
		wantTold(t, n.Join(t.Context(), []string{"typo.example:7946"}), ErrUnresolved, `"typo.example"`, "no such host")
		wantTold(t, n.Join(t.Context(), []string{"empty.example"}), ErrUnresolved, `"empty.example"`)
		// The name stands for this node, for one that answers and for one that does not.
		if err := n.Join(t.Context(), []string{"typo.example", "nodes.example"}); err != nil {
			t.Fatal(err)
		}
		w.await("both see both", time.Second, func() bool { return w.allSee(2) })
	})
}

// What listens there is something else.
func TestJoinNoGossipPort(t *testing.T) {
	for name, serve := range map[string]string{
		"http":    "HTTP/1.1 400 Bad Request\r\n\r\n",
		"closes":  "",
		"half":    greetingMagic,
		"garbage": strings.Repeat("KVGOSSIP\xff\xff\xff\xff\xff\xff", 9),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				n := w.start(1)
				other, err := w.net.Transport(addrOf(5))
				if err != nil {
					t.Fatal(err)
				}
				go func() {
					conn := <-other.StreamCh()
					buf := make([]byte, 1024)
					_, _ = conn.Read(buf)
					_, _ = conn.Write([]byte(serve))
					conn.Close()
				}()
				wantTold(t, n.Join(t.Context(), []string{addrOf(5)}), ErrNotGossip, addrOf(5), "Check the port")
				go func() { // takes the stream and says nothing
					conn := <-other.StreamCh()
					buf := make([]byte, 1024)
					for err == nil {
						_, err = conn.Read(buf)
					}
				}()
				wantTold(t, n.Join(t.Context(), []string{addrOf(5)}), ErrNobody, addrOf(5), "does not answer")
			})
		})
	}
}

// A node that died a moment ago holds neither its name nor its identity, although the
// others still take it for alive.
func TestDeadNodeHoldsNoName(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"restart, same address":  func(*Config) {},
		"wiped folder":           func(c *Config) { c.Meta.ServerID = "server-new" },
		"new name, same folder":  func(c *Config) { c.Meta.Name = "other" },
		"restart, other address": nil,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.cluster(3)
				w.stop("n2")
				cfg, addr := w.config(2), addrOf(2)
				if change != nil {
					change(&cfg)
				} else {
					addr = addrOf(22)
				}
				w.startConfig(cfg, addr, addrOf(1))
				took := w.await("the new run is known to all", 1500*time.Millisecond, func() bool {
					for _, n := range w.nodes {
						if p := n.peer(cfg.Meta.Name); !p.Alive || p.Boot != cfg.Meta.Boot || p.Address != addr {
							return false
						}
					}
					return true
				})
				t.Logf("after %v", took)
				time.Sleep(30 * time.Second)
				if !w.allSee(3) {
					t.Error("not all three are alive 30 s later")
				}
				for name, n := range w.nodes {
					if c := n.Conflicts(); len(c) != 0 {
						t.Errorf("%s has conflicts %+v", name, c)
					}
				}
			})
		})
	}
}

// Two nodes of one name join at different ends in the same moment: neither can be
// refused, and both learn of it.
func TestConflictIsFound(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"name":      func(c *Config) { c.Meta.Name = "n2" },
		"server id": func(c *Config) { c.Meta.ServerID = "server-2" },
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				w.start(1)
				n2 := w.start(2)
				cfg := w.config(3)
				change(&cfg)
				n3, err := w.tryStart(cfg, addrOf(3))
				if err != nil {
					t.Fatal(err)
				}
				if err := n2.Join(t.Context(), []string{addrOf(1)}); err != nil {
					t.Fatal(err)
				}
				// n3 enters behind the back of the greeting.
				if _, err := n3.mu.list.Join([]string{addrOf(1)}); err != nil {
					t.Fatal(err)
				}
				changed := n3.Watch()
				w.await("both know", 20*time.Second, func() bool { return len(n2.Conflicts()) == 1 && len(n3.Conflicts()) == 1 })
				if c := n2.Conflicts()[0]; c.Address != addrOf(3) {
					t.Errorf("n2 is in conflict with %+v", c)
				}
				time.Sleep(time.Second)
				select {
				case <-changed:
				default:
					t.Error("nobody was told")
				}
				if log := n2.log.String(); !strings.Contains(log, "level=ERROR") || !strings.Contains(log, "in use") && !strings.Contains(log, "identity of this node") {
					t.Errorf("the log does not tell: %s", log)
				}
				w.end(n3)
				w.await("it is over", 20*time.Second, func() bool { return len(n2.Conflicts()) == 0 })
			})
		})
	}
}

// A node without a cluster does not become the bridge between two.
func TestNoBridge(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.start(1)
		other := w.config(2)
		other.Meta.ClusterID = "c2"
		w.startConfig(other, addrOf(2))
		fresh := w.config(3)
		fresh.Meta.ClusterID = ""
		n := w.startConfig(fresh, addrOf(3), addrOf(1))
		wantTold(t, n.Join(t.Context(), []string{addrOf(2)}), ErrOtherCluster, "c1", "c2")
		// Even where memberlist is made to merge, nobody takes the stranger.
		_, _ = n.mu.list.Join([]string{addrOf(2)})
		time.Sleep(30 * time.Second)
		if got := w.nodes["n1"].alive(); got != 2 {
			t.Errorf("n1 sees %d nodes", got)
		}
		if p := n.peer("n2"); p.Alive {
			t.Error("the fresh node has the other cluster's node")
		}
		if p := w.nodes["n2"].peer("n1"); p.Alive {
			t.Error("the other cluster has n1")
		}
	})
}

func TestNotRunning(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		tr, err := w.net.Transport(addrOf(1))
		if err != nil {
			t.Fatal(err)
		}
		cfg := w.config(1)
		cfg.Transport = tr
		g, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{g.Join(t.Context(), nil), g.Run(t.Context())} {
			if !errors.Is(err, ErrStopped) {
				t.Errorf("before Start: %v", err)
			}
		}
		if err := errors.Join(g.Leave(time.Second), g.Close()); err != nil {
			t.Errorf("before Start: %v", err)
		}
		if err := g.Start(); !errors.Is(err, ErrStopped) {
			t.Errorf("Start after Close: %v", err)
		}
		if g.Health() != 0 || len(g.Peers()) != 0 {
			t.Error("not empty")
		}
		_ = tr.Shutdown()
	})
}

func TestConfigValidate(t *testing.T) {
	ok := Config{Meta: Meta{Name: "n", ServerID: "s", Boot: 1}}
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"name":   func(c *Config) { c.Meta.Name = "" },
		"id":     func(c *Config) { c.Meta.ServerID = "" },
		"boot":   func(c *Config) { c.Meta.Boot = 0 },
		"key":    func(c *Config) { c.Key = []byte("short") },
		"label":  func(c *Config) { c.Label = strings.Repeat("x", 65) },
		"probe":  func(c *Config) { c.Probe = -1 },
		"probes": func(c *Config) { c.Probe, c.ProbeTimeout = time.Second, time.Second },
		"weight": func(c *Config) { c.Meta.Weight = -1 },
	} {
		c := ok
		change(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("%s was accepted", name)
		} else if _, err2 := New(c); err2 == nil {
			t.Errorf("%s: New accepted it", name)
		}
	}
	long := ok
	long.Meta.Name, long.Meta.Zone = strings.Repeat("n", 100), strings.Repeat("z", 250)
	long.Meta.Raft, long.Meta.Link, long.Meta.HTTP = strings.Repeat("r", 80), "l", "h"
	long.Meta.Version = strings.Repeat("v", 200)
	wantTold(t, long.Validate(), ErrTooLong, "zone", "250 bytes", fmt.Sprint(MetaMaxSize))
}
