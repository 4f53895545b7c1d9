package transporttest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// numbers returns from..to, both included.
func numbers(from, to uint64) []uint64 {
	var out []uint64
	for i := from; i <= to; i++ {
		out = append(out, i)
	}
	return out
}

func testOrder(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	l, r := start(t, net, "order"), NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")

	const n = 2000
	payload := func(i uint64) []byte { return bytes.Repeat([]byte{byte(i)}, int(i%700)) }
	for i := uint64(1); i <= n; i++ {
		publish(t, p, "topic", i, payload(i))
	}
	seen := r.Await(t, "all batches", func(s Seen) bool { return len(s.Batches()) >= n })
	if got := seen.Sequences(); !slices.Equal(got, numbers(1, n)) {
		t.Fatalf("sequences are not 1..%d in order: %v", n, got)
	}
	for i, m := range seen.Batches() {
		if string(m[0]) != "topic" || !bytes.Equal(m[2], payload(uint64(i+1))) {
			t.Fatalf("batch %d came as %q", i+1, m)
		}
	}
	if seen.Connects != 1 || seen.Disconnects != 0 {
		t.Errorf("%d connects and %d disconnects, want one connection that stands", seen.Connects, seen.Disconnects)
	}
	if seen.Log[0] != "+" {
		t.Errorf("a message came before OnConnect: %q", seen.Log[:3])
	}
}

func testTopicPrefix(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	l := start(t, net, "topics")
	topics := []string{"", "kv", "kv-events", "kv@", "kv@a@m", "other", "k", "kv@b\x00\xff"}
	for _, prefix := range []string{"", "kv", "kv@", "kv@a@m"} {
		r := NewRecorder()
		s := subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint(), Topic: prefix}, r)
		r.AwaitStream(t, p, prefix)
		var want []string
		for i, topic := range topics {
			publish(t, p, topic, uint64(i), nil)
			if strings.HasPrefix(topic, prefix) {
				want = append(want, topic)
			}
		}
		publish(t, p, prefix+"!", 99, nil) // comes behind all others
		want = append(want, prefix+"!")
		seen := r.Await(t, "the last topic", func(s Seen) bool {
			return slices.Contains(s.Sequences(), 99)
		})
		var got []string
		for _, m := range seen.Batches() {
			got = append(got, string(m[0]))
		}
		if !slices.Equal(got, want) {
			t.Errorf("prefix %q: got topics %q, want %q", prefix, got, want)
		}
		on(t, l, s.Close)
	}
}

func testBoundSubscription(t *testing.T, h Harness) {
	net := h.New(t)
	l, r := start(t, net, "bound"), NewRecorder()
	address := h.Fixed(t)
	subscribe(t, l, transport.SubscribeConfig{Endpoint: address, Bind: true}, r)

	const publishers, n = 5, 200
	var ps []transport.Publisher
	for i := range publishers {
		p := publisher(t, net, transport.PublisherConfig{Endpoint: address, Connect: true})
		r.AwaitStream(t, p, fmt.Sprint("p", i))
		ps = append(ps, p)
	}
	if c := r.Seen().Connects; c != publishers {
		t.Errorf("OnConnect came %d times for %d publishers", c, publishers)
	}
	var wg sync.WaitGroup
	for i, p := range ps {
		wg.Go(func() {
			for seq := uint64(1); seq <= n; seq++ {
				if err := p.Publish(fmt.Sprint("p", i), seq, nil); err != nil {
					t.Errorf("publish: %v", err)
				}
			}
		})
	}
	wg.Wait()
	seen := r.Await(t, "the batches of all publishers", func(s Seen) bool { return len(s.Batches()) >= publishers*n })
	next := map[string]uint64{}
	for i, m := range seen.Batches() {
		topic := string(m[0])
		next[topic]++
		if got := seen.Sequences()[i]; got != next[topic] {
			t.Fatalf("%s: sequence %d, want %d: the order of one publisher is not kept", topic, got, next[topic])
		}
		if i > publishers*n {
			break
		}
	}
	closePublisher(t, ps[2])
	r.Await(t, "a publisher's leaving", func(s Seen) bool { return s.Disconnects == 1 })

	publish(t, ps[0], "still", 7, []byte("here"))
	r.Await(t, "a batch of one that stayed", func(s Seen) bool {
		return slices.ContainsFunc(s.Batches(), func(m [][]byte) bool { return string(m[0]) == "still" })
	})
}

func testConnectBeforeBind(t *testing.T, h Harness) {
	net := h.New(t)
	l, r := start(t, net, "early"), NewRecorder()
	address := h.Fixed(t)
	subscribe(t, l, transport.SubscribeConfig{Endpoint: address}, r)
	if s := r.Seen(); s.Connects != 0 {
		t.Errorf("connected to nothing: %+v", s)
	}
	p := publisher(t, net, transport.PublisherConfig{Endpoint: address})
	r.AwaitStream(t, p, "")
	publish(t, p, "", 1, []byte("x"))
	r.Await(t, "the batch", func(s Seen) bool { return slices.Equal(s.Sequences(), []uint64{1}) && s.Connects == 1 })
}

func testPublisherRestart(t *testing.T, h Harness) {
	net := h.New(t)
	l, r := start(t, net, "restart"), NewRecorder()
	address := h.Fixed(t)
	subscribe(t, l, transport.SubscribeConfig{Endpoint: address}, r)
	for life := 1; life <= 3; life++ {
		p := publisher(t, net, transport.PublisherConfig{Endpoint: address})
		r.AwaitStream(t, p, "")
		for seq := range uint64(10) {
			publish(t, p, fmt.Sprint("life", life), seq, []byte("x"))
		}
		r.Await(t, "this life's batches", func(s Seen) bool { return len(s.Batches()) == 10*life })
		closePublisher(t, p)
		r.Await(t, "OnDisconnect", func(s Seen) bool { return s.Disconnects == life })
	}
	seen := r.Seen()
	if seen.Connects != 3 {
		t.Errorf("%d connects in 3 lives", seen.Connects)
	}
	checkBorders(t, seen.Log, "life")
}

// checkBorders checks that the batches whose topic is prefix and a number of one
// digit stand between the connects that have that number.
func checkBorders(t *testing.T, log []string, prefix string) {
	t.Helper()
	life := 0
	for i, e := range log {
		switch {
		case e == "+":
			life++
		case strings.HasPrefix(e, prefix):
			if got := int(e[len(prefix)] - '0'); got != life {
				t.Fatalf("%q came after %d connects: %q", e, life, log[max(i-5, 0):min(i+5, len(log))])
			}
		}
	}
}

// testConnectionBorder has a publisher restart while the loop is held up and then
// slow, so that messages of both connections wait behind one another.
func testConnectionBorder(t *testing.T, h Harness) {
	net := h.New(t)
	address := h.Fixed(t)
	l, r := start(t, net, "held"), NewRecorder()
	witnessLoop, witness := start(t, net, "witness"), NewRecorder()
	r.Do = func(m [][]byte) bool {
		if string(m[0]) == "life1" {
			time.Sleep(50 * time.Microsecond) // is slow, waits for nothing
		}
		return true
	}
	subscribe(t, l, transport.SubscribeConfig{Endpoint: address}, r)
	subscribe(t, witnessLoop, transport.SubscribeConfig{Endpoint: address}, witness)

	p := publisher(t, net, transport.PublisherConfig{Endpoint: address})
	r.AwaitStream(t, p, "")
	witness.AwaitStream(t, p, "")
	publish(t, p, "life1", 0, nil)
	r.Await(t, "the first batch", func(s Seen) bool { return len(s.Batches()) == 1 })

	held, release := make(chan struct{}), make(chan struct{})
	if !l.Post(func() { close(held); <-release }) {
		t.Fatal("the loop has ended")
	}
	<-held
	const n = 3000
	for seq := uint64(1); seq <= n; seq++ {
		publish(t, p, "life1", seq, nil)
	}
	witness.Await(t, "the first life", func(s Seen) bool { return len(s.Batches()) == n+1 })
	closePublisher(t, p)
	witness.Await(t, "the end of the first life", func(s Seen) bool { return s.Disconnects == 1 })
	p = publisher(t, net, transport.PublisherConfig{Endpoint: address})
	// The held socket connects in its own time, and cannot say so.
	witness.AwaitStream(t, p, "")
	close(release)

	seq := uint64(0)
	seen := r.awaitDoing(t, "the second life", func() {
		for range 20 {
			seq++
			publish(t, p, "life2", seq, nil)
		}
	}, func(s Seen) bool {
		m := s.Batches()
		return len(m) > n+100 && string(m[len(m)-1][0]) == "life2"
	})
	if seen.Connects != 2 || seen.Disconnects != 1 {
		t.Errorf("%d connects and %d disconnects, want 2 and 1", seen.Connects, seen.Disconnects)
	}
	checkBorders(t, seen.Log, "life")
	if got := seen.Sequences()[:n+1]; !slices.Equal(got, numbers(0, n)) {
		t.Errorf("the first life is not complete: %v", got)
	}
}

func testUnreachablePeer(t *testing.T, h Harness) {
	net := h.New(t)
	l := start(t, net, "unreachable")
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	lost, r := NewRecorder(), NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: h.Fixed(t)}, lost)
	openReplay(t, l, h.Fixed(t), lost)
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")
	if s := lost.Seen(); s.Connects+s.Disconnects+len(s.Messages) != 0 {
		t.Errorf("events of an unreachable peer: %+v", s)
	}
}
