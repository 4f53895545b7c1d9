package link

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcluster/kvcluster/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// judge knows what was sent and checks what every handler is told.
type judge struct {
	t  testing.TB
	mu struct {
		sync.Mutex
		failures  []string
		sent      map[Session][]string // without the peer's name
		lapsed    map[Session]bool
		without   map[Session]int // frames that the sender acknowledged without the receiver
		ended     map[Session]bool
		applied   map[Session]uint64
		delivered map[Session]int
		acked     map[Session]uint64
		newest    map[string]Session // by "receiver boot < sender name"
		total     struct{ frames, sessions, lost, silences, resumed, lapses int }
	}
}

func newJudge(t testing.TB) *judge {
	j := &judge{t: t}
	j.mu.sent, j.mu.lapsed, j.mu.without, j.mu.ended = map[Session][]string{}, map[Session]bool{}, map[Session]int{}, map[Session]bool{}
	j.mu.applied, j.mu.delivered, j.mu.acked, j.mu.newest = map[Session]uint64{}, map[Session]int{}, map[Session]uint64{}, map[string]Session{}
	return j
}

func (j *judge) failLocked(format string, args ...any) {
	if len(j.mu.failures) < 10 {
		j.mu.failures = append(j.mu.failures, fmt.Sprintf(format, args...))
	}
}

func (j *judge) failures() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]string(nil), j.mu.failures...)
}

// testNode is a hub with a user: what is delivered is applied by a goroutine, later.
type testNode struct {
	*Hub
	j      *judge
	name   string
	cancel context.CancelFunc
	done   chan struct{}
	delay  func() time.Duration // until a frame is applied; nil = applied at once

	apply chan applyItem
	mu    struct {
		sync.Mutex
		up   map[string]Session // outgoing
		in   map[string]Session
		news chan struct{} // closed at the next change
	}
}

type applyItem struct {
	s Session
	n uint64
}

func testConfig(name string, boot uint64, bind string) Config {
	return Config{
		Name: name, Cluster: "test", Boot: boot, Bind: bind, Window: 2000, Retention: 100_000, MaxPayload: 50_000,
		Heartbeat: 100 * time.Millisecond, Timeout: time.Second,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
}

func startNode(j *judge, net transport.MeshNetwork, cfg Config, delay func() time.Duration) *testNode {
	n := &testNode{j: j, name: cfg.Name, done: make(chan struct{}), delay: delay, apply: make(chan applyItem, 100_000)}
	n.mu.up, n.mu.in, n.mu.news = map[string]Session{}, map[string]Session{}, make(chan struct{})
	var err error
	if n.Hub, err = New(cfg, net, n); err != nil {
		j.t.Fatal(err)
	}
	if _, err = n.Listen(); err != nil {
		j.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := n.Run(ctx); err != nil {
			j.t.Errorf("run: %v", err)
		}
	})
	wg.Go(func() { n.applier(ctx) })
	go func() {
		wg.Wait()
		close(n.done)
	}()
	return n
}

func (n *testNode) stop() {
	n.cancel()
	<-n.done
}

func (n *testNode) applier(ctx context.Context) {
	for {
		select {
		case it := <-n.apply:
			if n.delay != nil {
				select {
				case <-time.After(n.delay()):
				case <-ctx.Done():
					return
				}
			}
			n.ack(it)
		case <-ctx.Done():
			return
		}
	}
}

func (n *testNode) ack(it applyItem) {
	n.j.mu.Lock()
	n.j.mu.applied[key(it.s)] = it.n
	n.j.mu.Unlock()
	n.Ack(it.s, it.n)
}

func (n *testNode) changed() {
	close(n.mu.news)
	n.mu.news = make(chan struct{})
}

// session waits for an outgoing session other than not.
func (n *testNode) session(peer string, not Session) Session {
	n.j.t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		n.mu.Lock()
		s, ok := n.mu.up[peer]
		news := n.mu.news
		n.mu.Unlock()
		if ok && s != not {
			return s
		}
		select {
		case <-news:
		case <-deadline:
			n.j.t.Fatalf("%s has no new session to %s: %+v", n.name, peer, n.PeerStats()[peer])
		}
	}
}

// incoming is the newest session of a peer.
func (n *testNode) incoming(peer string) Session {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.in[peer]
}

// send sends a frame that says where it belongs, and more if long.
func (n *testNode) send(s Session, long int) error {
	j := n.j
	j.mu.Lock()
	defer j.mu.Unlock()
	k := key(s)
	payload := fmt.Sprintf("%s %v %d %s", n.name, k, len(j.mu.sent[k])+1, make([]byte, long))
	number, err := n.Send(s, []byte(payload))
	if err != nil {
		return err
	}
	j.mu.sent[k] = append(j.mu.sent[k], payload)
	if int(number) != len(j.mu.sent[k]) {
		j.failLocked("frame %d of %v has number %d", len(j.mu.sent[k]), s, number)
	}
	if j.mu.lapsed[k] {
		j.mu.without[k] = len(j.mu.sent[k])
	}
	return nil
}

func (n *testNode) OnSession(s Session) {
	j := n.j
	j.mu.Lock()
	defer j.mu.Unlock()
	j.mu.total.sessions++
	at := fmt.Sprint(n.cfg.Boot, "<", s.Peer)
	if s.ReceiverBoot != n.cfg.Boot || s.Number <= j.mu.newest[at].Number {
		j.failLocked("%s takes up %v after %v", n.name, s, j.mu.newest[at])
	}
	j.mu.newest[at] = s
	n.mu.Lock()
	n.mu.in[s.Peer] = s
	n.changed()
	n.mu.Unlock()
}

func (n *testNode) OnFrame(s Session, number uint64, payload []byte) {
	j := n.j
	j.mu.Lock()
	defer j.mu.Unlock()
	k := key(s)
	j.mu.total.frames++
	if cur := j.mu.newest[fmt.Sprint(n.cfg.Boot, "<", s.Peer)]; cur != s {
		j.failLocked("%s gets frame %d of %v, current is %v", n.name, number, s, cur)
	}
	if int(number) != j.mu.delivered[k]+1 {
		j.failLocked("%s gets frame %d of %v after %d", n.name, number, s, j.mu.delivered[k])
	}
	if sent := j.mu.sent[k]; number == 0 || len(sent) < int(number) || sent[number-1] != string(payload) {
		j.failLocked("%s gets as frame %d of %v: %.60q", n.name, number, s, payload)
	}
	j.mu.delivered[k] = int(number)
	n.apply <- applyItem{s, number}
}

func (n *testNode) OnSilence(s Session) {
	n.j.mu.Lock()
	defer n.j.mu.Unlock()
	n.j.mu.total.silences++
}

func (n *testNode) OnResume(s Session) {
	n.j.mu.Lock()
	defer n.j.mu.Unlock()
	n.j.mu.total.resumed++
}

func (n *testNode) OnPeer(s Session, up bool) {
	n.j.mu.Lock()
	if !up {
		n.j.mu.total.lost++
	}
	n.j.mu.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	if up {
		n.mu.up[s.Peer] = s
	} else {
		delete(n.mu.up, s.Peer)
	}
	n.changed()
}

func (n *testNode) OnAck(s Session, number uint64) {
	j := n.j
	j.mu.Lock()
	defer j.mu.Unlock()
	k := key(s)
	if number > j.mu.applied[k] || number <= j.mu.acked[k] {
		j.failLocked("%s hears that %d of %v is applied after %d, applied is %d", n.name, number, s, j.mu.acked[k], j.mu.applied[k])
	}
	j.mu.acked[k] = number
}

func (n *testNode) OnLapse(s Session, lapsed bool) {
	j := n.j
	j.mu.Lock()
	defer j.mu.Unlock()
	k := key(s)
	j.mu.lapsed[k] = lapsed
	if lapsed {
		j.mu.total.lapses++
		j.mu.without[k] = len(j.mu.sent[k])
		n.mu.Lock()
		if n.mu.up[s.Peer] != s {
			j.mu.ended[k] = true
		}
		n.mu.Unlock()
	}
}

// checkCurrent looks at what must hold whenever a session is current.
func (n *testNode) checkCurrent() {
	n.mu.Lock()
	in := make([]Session, 0, len(n.mu.in))
	for _, s := range n.mu.in {
		in = append(in, s)
	}
	n.mu.Unlock()
	j := n.j
	for _, s := range in {
		j.mu.Lock()
		k := key(s)
		if n.Current(s) && (j.mu.delivered[k] < j.mu.without[k] || j.mu.ended[k]) {
			j.failLocked("%s is current in %v with %d frames; acknowledged without it: %d, over: %v", n.name, s, j.mu.delivered[k], j.mu.without[k], j.mu.ended[k])
		}
		j.mu.Unlock()
	}
}

// quiet reports that everything sent to a peer is delivered, applied and known so.
func (n *testNode) quiet(to *testNode) bool {
	n.mu.Lock()
	s, ok := n.mu.up[to.name]
	n.mu.Unlock()
	if !ok {
		return false
	}
	to.mu.Lock()
	in := to.mu.in[n.name]
	to.mu.Unlock()
	j := n.j
	j.mu.Lock()
	defer j.mu.Unlock()
	k := key(s)
	return key(in) == k && j.mu.delivered[k] == len(j.mu.sent[k]) && j.mu.acked[k] == uint64(len(j.mu.sent[k])) && !j.mu.lapsed[k] && to.Current(in)
}

// awaitQuiet waits for that, in both directions of all pairs.
func awaitQuiet(nodes []*testNode, limit time.Duration) error {
	deadline := time.Now().Add(limit)
	for {
		busy := ""
		for _, a := range nodes {
			for _, b := range nodes {
				if a != b && !a.quiet(b) {
					busy = fmt.Sprintf("%s to %s: out %+v; in %+v", a.name, b.name, a.PeerStats()[b.name], b.PeerStats()[a.name])
				}
			}
		}
		if busy == "" {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not quiet after %v: %s", limit, busy)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
