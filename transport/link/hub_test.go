package link

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/memory"
)

var hubSchedules = flag.Int("link.hubs", 40, "random schedules over the in-memory mesh")

// fleet is a few nodes on one in-memory network.
type fleet struct {
	j     *judge
	net   *memory.Network
	rng   *rand.Rand
	mu    sync.Mutex // of rng, which mesh faults use from many goroutines
	nodes []*testNode
	boots uint64
	cfg   func(*Config)
	delay func() time.Duration
}

func newFleet(t testing.TB, seed uint64, names ...string) *fleet {
	f := &fleet{j: newJudge(t), net: memory.New(memory.Config{}), rng: rand.New(rand.NewPCG(seed, 2))}
	f.delay = func() time.Duration { return time.Duration(f.intN(3000)) * time.Microsecond }
	f.nodes = make([]*testNode, len(names))
	for i, name := range names {
		f.nodes[i] = &testNode{name: name}
	}
	return f
}

func (f *fleet) intN(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rng.IntN(n)
}

func (f *fleet) start(i int) {
	f.boots++
	cfg := testConfig(f.nodes[i].name, f.boots, "mem://"+f.nodes[i].name)
	if f.cfg != nil {
		f.cfg(&cfg)
	}
	f.nodes[i] = startNode(f.j, f.net, cfg, f.delay)
	peers := map[string]string{}
	for _, n := range f.nodes {
		peers[n.name] = "mem://" + n.name
	}
	if err := f.nodes[i].SetPeers(peers); err != nil {
		f.j.t.Error(err)
	}
}

func (f *fleet) startAll() {
	for i := range f.nodes {
		f.start(i)
	}
}

func (f *fleet) stopAll() {
	for _, n := range f.nodes {
		n.stop()
	}
}

// pairs calls fn for each direction.
func (f *fleet) pairs(fn func(from, to string)) {
	for _, a := range f.nodes {
		for _, b := range f.nodes {
			if a.name != b.name {
				fn(a.name, b.name)
			}
		}
	}
}

func (f *fleet) heal() {
	f.pairs(func(from, to string) {
		f.net.HealMesh(from, to)
		f.net.SetMeshFault(from, to, nil)
	})
	for _, n := range f.nodes {
		f.net.PauseMesh(n.name, false)
	}
}

// weather makes a direction of the network lose, repeat, delay and reorder.
func (f *fleet) weather(loss, twice, delay int) memory.MeshFault {
	return func([]byte) (arrivals []time.Duration) {
		if f.intN(100) < loss {
			return nil
		}
		for n := 1; n > 0; n-- {
			arrivals = append(arrivals, time.Duration(f.intN(delay+1))*time.Millisecond)
			if f.intN(100) < twice {
				n++
			}
		}
		return arrivals
	}
}

// runFleet lets a random schedule happen to three nodes that send to each other.
func runFleet(t testing.TB, seed uint64, broken mutant) *judge {
	f := newFleet(t, seed, "a", "b", "c")
	f.cfg = func(c *Config) { c.broken = broken }
	f.startAll()
	defer f.stopAll()
	for range 250 {
		for _, n := range f.nodes {
			n.mu.Lock()
			for _, s := range n.mu.up {
				for range f.intN(4) {
					n.mu.Unlock()
					err := n.send(s, f.intN(300))
					n.mu.Lock()
					if err != nil && !errors.Is(err, ErrDown) && !errors.Is(err, ErrFull) {
						t.Errorf("send: %v", err)
					}
				}
			}
			n.mu.Unlock()
			n.checkCurrent()
		}
		a, b := f.nodes[f.intN(3)], f.nodes[f.intN(3)]
		switch f.intN(30) {
		case 0:
			f.net.SetMeshFault(a.name, b.name, f.weather(f.intN(30), f.intN(30), f.intN(200)))
		case 1:
			f.net.CutMesh(a.name, b.name)
		case 2:
			f.net.PauseMesh(a.name, true)
		case 3:
			f.net.SetMeshFault(a.name, b.name, nil)
		case 4, 5:
			f.heal()
		case 6:
			if i := f.intN(9); i < 3 {
				f.nodes[i].stop()
				time.Sleep(time.Duration(f.intN(2000)) * time.Millisecond)
				f.start(i)
			}
		case 7: // no peer for a moment
			if err := a.SetPeers(map[string]string{}); err != nil {
				t.Error(err)
			}
			time.Sleep(time.Duration(f.intN(300)) * time.Millisecond)
			if err := a.SetPeers(map[string]string{"a": "mem://a", "b": "mem://b", "c": "mem://c"}); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(time.Duration(1+f.intN(200)) * time.Millisecond)
	}
	f.heal()
	if err := awaitQuiet(f.nodes, 2*time.Minute); err != nil {
		f.j.mu.Lock()
		f.j.failLocked("%v", err)
		f.j.mu.Unlock()
	}
	return f.j
}

func TestHubRandom(t *testing.T) {
	first, n := uint64(1), *hubSchedules
	if testing.Short() {
		n = min(n, 8)
	}
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	var frames, sessions, lost, silences, resumed, lapses int
	for seed := first; seed < first+uint64(n) && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			j := runFleet(t, seed, mutant{})
			if bad := j.failures(); bad != nil {
				t.Errorf("seed %d:\n%s", seed, lines(bad))
			}
			total := &j.mu.total
			frames, sessions, lost = frames+total.frames, sessions+total.sessions, lost+total.lost
			silences, resumed, lapses = silences+total.silences, resumed+total.resumed, lapses+total.lapses
		})
	}
	t.Logf("%d schedules: %d frames in %d sessions, %d lost, %d silences, %d resumed, %d lapses", n, frames, sessions, lost, silences, resumed, lapses)
	if frames < 500*n || lost == 0 || resumed == 0 || lapses == 0 {
		t.Error("the schedules hardly test anything")
	}
}

// TestHubMutants: the judge of TestHubRandom finds each missing rule.
func TestHubMutants(t *testing.T) {
	for name, broken := range map[string]mutant{
		"duplicates are not detected":   {duplicates: true},
		"acknowledged before applied":   {earlyAck: true},
		"boot ids are ignored":          {ignoreBoot: true},
		"sessions are mixed up":         {mixSessions: true},
		"a paused node trusts old news": {ownClock: true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(100) {
				var bad []string
				synctest.Test(t, func(t *testing.T) { bad = runFleet(t, seed+1, broken).failures() })
				if bad != nil {
					t.Logf("found with seed %d: %s", seed+1, bad[0])
					return
				}
			}
			t.Error("not found")
		})
	}
}

// loseOne loses the k-th and the l-th message of a direction, and returns what went
// wrong with 20 frames meanwhile.
func loseOne(t testing.TB, toA bool, k, l int, broken mutant) (bad []string) {
	f := newFleet(t, 1, "a", "b")
	f.cfg = func(c *Config) { c.broken = broken }
	f.startAll()
	defer f.stopAll()
	a, b := f.nodes[0], f.nodes[1]
	s := a.session("b", Session{})
	b.session("a", Session{})
	from, to := "a", "b"
	if toA {
		from, to = to, from
	}
	count := 0
	f.net.SetMeshFault(from, to, func([]byte) []time.Duration {
		if count++; count == k || count == l {
			return nil
		}
		return []time.Duration{0}
	})
	for range 20 {
		if err := a.send(s, 150); err != nil {
			return []string{err.Error()}
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := awaitQuiet(f.nodes, time.Second); err != nil {
		bad = append(bad, err.Error())
	}
	if now := a.session("b", Session{}); now != s {
		bad = append(bad, fmt.Sprintf("session %v, was %v", now, s))
	}
	return append(bad, f.j.failures()...)
}

// TestLossIsRepaired: any one or two lost messages are made up for within a second,
// in the same session.
func TestLossIsRepaired(t *testing.T) {
	for _, toA := range []bool{false, true} {
		for k := 1; k <= 25; k++ {
			for _, l := range []int{k, k + 1, k + 2, k + 7} {
				synctest.Test(t, func(t *testing.T) {
					if bad := loseOne(t, toA, k, l, mutant{}); bad != nil {
						t.Errorf("to a: %v, messages %d and %d lost:\n%s", toA, k, l, lines(bad))
					}
				})
			}
		}
	}
	found := false
	for k := 1; k <= 5 && !found; k++ { // some are acknowledgements of the other direction
		synctest.Test(t, func(t *testing.T) { found = loseOne(t, false, k, k, mutant{noResend: true}) != nil })
	}
	if !found {
		t.Error("mutant: nothing is resent, and it is not found")
	}
}

// TestPausedReceiver: ten seconds without an acknowledgement lose nothing.
func TestPausedReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, "a", "b")
		f.startAll()
		defer f.stopAll()
		a := f.nodes[0]
		s := a.session("b", Session{})
		f.net.PauseMesh("b", true)
		for range 100 { // 10 s, within the retention
			if err := a.send(s, 500); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			for _, n := range f.nodes {
				n.checkCurrent()
			}
		}
		st := a.PeerStats()["b"]
		if !st.Up || !st.Lapsed && st.Acked > 0 || st.Retained < 50_000 || st.InFlight > 2000 {
			t.Errorf("after 10 s: %+v", st)
		}
		f.net.PauseMesh("b", false)
		start := time.Now()
		if err := awaitQuiet(f.nodes, time.Minute); err != nil {
			t.Fatal(err)
		}
		t.Logf("caught up with 100 frames in %v", time.Since(start))
		if now := a.session("b", Session{}); now != s {
			t.Errorf("session is %v, was %v", now, s)
		}
		if bad := f.j.failures(); bad != nil {
			t.Error(lines(bad))
		}
		if total := &f.j.mu.total; total.silences == 0 || total.resumed != total.silences || total.lost > 0 {
			t.Errorf("%+v", *total)
		}
	})
}

// TestRetention: a receiver that applies nothing costs the retention and then the
// session, and gets a new one.
func TestRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, "a", "b")
		never := make(chan struct{})
		f.delay = func() time.Duration { <-never; return 0 }
		f.startAll()
		defer f.stopAll()
		defer close(never)
		a, b := f.nodes[0], f.nodes[1]
		for _, how := range []string{"bytes", "age"} {
			s := a.session("b", Session{})
			start := time.Now()
			for {
				err := a.send(s, 1000)
				if st := a.PeerStats()["b"]; st.Retained > 100_000 || st.InFlight > 2000 {
					t.Fatalf("%+v", st)
				}
				if err != nil {
					want := ErrFull
					if how == "age" {
						want = ErrDown
					}
					if !errors.Is(err, want) {
						t.Errorf("%s: %v", how, err)
					}
					break
				}
				if how == "age" {
					time.Sleep(time.Second)
				}
			}
			if _, err := a.Send(s, nil); !errors.Is(err, ErrDown) {
				t.Errorf("send in a lost session: %v", err)
			}
			old := b.incoming("a")
			lost := time.Now()
			next := a.session("b", s)
			if next.Number <= s.Number || next.SenderBoot != s.SenderBoot || next.ReceiverBoot != s.ReceiverBoot {
				t.Errorf("session %v follows %v", next, s)
			}
			t.Logf("%s: lost after %v, new session after %v", how, lost.Sub(start), time.Since(lost))
			if b.Current(old) && how == "bytes" {
				synctest.Wait()
				if b.Current(old) {
					t.Error("the old session is current beside the new one")
				}
			}
			// The receiver of the old session is certainly silent a little later.
			time.Sleep(2 * time.Second)
			f.j.mu.Lock()
			if !f.j.mu.ended[key(s)] {
				t.Errorf("%s: no lapse of the lost session", how)
			}
			f.j.mu.Unlock()
		}
		if bad := f.j.failures(); bad != nil {
			t.Error(lines(bad))
		}
	})
}

// TestPeerRemoved: its sessions end, both ways, and lapse; when it is named again
// everything starts anew.
func TestPeerRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, "a", "b")
		f.startAll()
		defer f.stopAll()
		a, b := f.nodes[0], f.nodes[1]
		s, back := a.session("b", Session{}), b.session("a", Session{})
		if err := a.send(s, 10); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		in := a.incoming("b")
		if key(in) != key(back) || !a.Current(in) {
			t.Fatalf("a has %v of b, current %v", in, a.Current(in))
		}
		if err := a.SetPeers(nil); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Send(s, nil); !errors.Is(err, ErrPeer) {
			t.Errorf("send to a removed peer: %v", err)
		}
		if a.Current(in) {
			t.Error("a session of a removed peer is current")
		}
		time.Sleep(2 * time.Second)
		f.j.mu.Lock()
		if !f.j.mu.ended[key(s)] || f.j.mu.total.silences < 2 {
			t.Errorf("no lapse, or no silence on both sides: %+v", &f.j.mu.total)
		}
		f.j.mu.Unlock()
		if err := a.SetPeers(map[string]string{"a": "mem://a", "b": "mem://b"}); err != nil {
			t.Fatal(err)
		}
		if next := a.session("b", s); next.Number <= s.Number {
			t.Errorf("session %v follows %v", next, s)
		}
		if err := awaitQuiet(f.nodes, 10*time.Second); err != nil {
			t.Error(err)
		}
		if bad := f.j.failures(); bad != nil {
			t.Error(lines(bad))
		}
	})
}

// TestSlowPeer: one that is paused, one that applies nothing and one that is cut off
// delay nobody else, in virtual time not by a nanosecond.
func TestSlowPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, "a", "quick", "paused", "idle", "cut", "gone")
		f.startAll()
		defer f.stopAll()
		a, quick := f.nodes[0], f.nodes[1]
		never := make(chan struct{})
		f.nodes[3].delay = func() time.Duration { <-never; return 0 }
		defer close(never)
		sessions := map[string]Session{}
		for _, n := range f.nodes[1:] {
			sessions[n.name] = a.session(n.name, Session{})
		}
		f.net.PauseMesh("paused", true)
		f.net.CutMesh("a", "cut")
		f.nodes[5].stop()
		var worst time.Duration
		for i := range 1000 {
			for _, n := range f.nodes[2:] {
				if s, ok := sessions[n.name]; ok && a.send(s, 400) != nil {
					delete(sessions, n.name) // retention
				}
			}
			start := time.Now()
			if err := a.send(sessions["quick"], 400); err != nil {
				t.Fatal(err)
			}
			for {
				synctest.Wait()
				f.j.mu.Lock()
				got := f.j.mu.delivered[key(sessions["quick"])]
				f.j.mu.Unlock()
				if got == i+1 {
					break
				}
				time.Sleep(time.Millisecond)
				if time.Since(start) > time.Second {
					t.Fatalf("frame %d is late: %+v", i, a.PeerStats()["quick"])
				}
			}
			worst = max(worst, time.Since(start))
			time.Sleep(20 * time.Millisecond)
		}
		if most := a.cfg.FlushDelay; worst > most {
			t.Errorf("a frame to the quick peer took %v, at most %v wanted", worst, most)
		}
		if len(sessions) != 1 {
			t.Errorf("sessions that should have exceeded the retention still stand: %v", sessions)
		}
		quick.checkCurrent()
		f.net.PauseMesh("paused", false)
		if bad := f.j.failures(); bad != nil {
			t.Error(lines(bad))
		}
	})
}

// TestRefused: nodes of another cluster or version are kept out, and told why.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, "a", "b", "stranger")
		f.cfg = func(c *Config) {
			if c.Name == "b" {
				c.Cluster = "other"
			}
		}
		f.startAll()
		defer f.stopAll()
		a, b := f.nodes[0], f.nodes[1]
		time.Sleep(time.Minute)
		for _, n := range []*testNode{a, b} {
			peer := map[string]string{"a": "b", "b": "a"}[n.name]
			st := n.PeerStats()[peer]
			want := fmt.Sprintf("node %s belongs to cluster %q, not to %q another", peer, map[string]string{"a": "other", "b": "test"}[n.name], map[string]string{"a": "test", "b": "other"}[n.name])
			if st.Up || st.SessionsIn != 0 || st.Refused != want || n.Stats().Refused < 50 {
				t.Errorf("%s, want %q: %+v, %+v", n.name, want, st, n.Stats())
			}
		}
		if _, err := a.Call(t.Context(), "b", "echo", nil); !errors.Is(err, ErrRefused) {
			t.Errorf("call: %v", err)
		}
		a.session("stranger", Session{})

		// Another version, and garbage.
		raw, err := f.net.NewMesh(transport.MeshConfig{Name: "c", Bind: "mem://c", Handler: func(_ string, m []byte) {
			if m[3] != byte(kindRefuse) {
				return
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer raw.Close()
		if err := raw.SetPeer("a", "mem://a"); err != nil {
			t.Fatal(err)
		}
		raw.Send("a", []byte("who is that"))
		synctest.Wait()
		if s := a.Stats(); s.Strangers != 1 {
			t.Errorf("stranger: %+v", s)
		}
		if err := a.SetPeers(map[string]string{"c": "mem://c", "stranger": "mem://stranger"}); err != nil {
			t.Fatal(err)
		}
		before := a.Stats()
		good := appendHeader(nil, kindOpen, clusterTag("test"))
		newer := append([]byte(nil), good...)
		newer[2]++
		raw.Send("a", newer)
		for k := kindOpen; k <= kindCancel+1; k++ {
			if k != kindRefuse {
				raw.Send("a", appendHeader(nil, k, clusterTag("test")), []byte("short"))
			}
		}
		raw.Send("a", []byte("KL"))
		raw.Send("a")
		synctest.Wait()
		after := a.Stats()
		if after.Refused != before.Refused+1 || after.Malformed != before.Malformed+11 {
			t.Errorf("before %+v, after %+v", before, after)
		}
	})
}

func TestConfig(t *testing.T) {
	good := testConfig("a", 1, "mem://a")
	for name, change := range map[string]func(*Config){
		"no name": func(c *Config) { c.Name = "" }, "no cluster": func(c *Config) { c.Cluster = "" }, "no boot": func(c *Config) { c.Boot = 0 },
		"negative": func(c *Config) { c.Window = -1 }, "timeout": func(c *Config) { c.Timeout = c.Heartbeat },
		"payload": func(c *Config) { c.MaxPayload = int(c.Retention) }, "code": func(c *Config) { c.Errors = map[string]error{"busy": ErrBusy} },
		"empty code": func(c *Config) { c.Errors = map[string]error{"": ErrBusy} },
	} {
		c := good
		change(&c)
		if _, err := New(c, memory.New(memory.Config{}), nil); !errors.Is(err, ErrConfig) && !errors.Is(err, transport.ErrMeshConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	h, err := New(good, memory.New(memory.Config{}), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []map[string]string{{"": "mem://x"}, {"b": ""}} {
		if err := h.SetPeers(bad); err == nil {
			t.Errorf("%v was taken", bad)
		}
	}
	if _, err := h.Send(Session{Peer: "x"}, nil); !errors.Is(err, ErrPeer) {
		t.Errorf("send: %v", err)
	}
}
