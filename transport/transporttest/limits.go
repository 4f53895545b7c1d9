package transporttest

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/transport"
)

func testMaxMessage(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	l, small, large := start(t, net, "limit"), NewRecorder(), NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint(), MaxMessage: 1000}, small)
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, large)
	small.AwaitStream(t, p, "")
	large.AwaitStream(t, p, "")

	publish(t, p, "", 1, make([]byte, 1000))
	publish(t, p, "", 2, make([]byte, 1001))
	small.Await(t, "the end of the connection", func(s Seen) bool { return s.Disconnects == 1 })
	small.Await(t, "a new connection", func(s Seen) bool { return s.Connects == 2 })
	small.AwaitStream(t, p, "")
	publish(t, p, "", 3, []byte("x"))
	seen := small.Await(t, "the batch behind", func(s Seen) bool { return slices.Contains(s.Sequences(), 3) })
	if got := seen.Sequences(); !slices.Equal(got, []uint64{1, 3}) {
		t.Errorf("got sequences %v, want 1 and 3", got)
	}
	seen = large.Await(t, "all batches", func(s Seen) bool { return len(s.Batches()) == 3 })
	if seen.Disconnects != 0 {
		t.Error("the other subscription lost its connection")
	}
}

func testGarbageFrames(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	l, r := start(t, net, "garbage"), NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")
	r.Forget()

	if err := p.SendRaw(); err == nil {
		t.Error("a message without frames was accepted")
	}
	many := make([][]byte, 2000)
	for i := range many {
		many[i] = fmt.Append(nil, i)
	}
	messages := [][][]byte{
		{{}},
		{{0}},
		{[]byte("topic"), {}},
		{{}, {}, {}},
		{[]byte("topic"), {1, 2, 3}, []byte("short sequence")},
		{[]byte("topic"), {1, 2, 3, 4, 5, 6, 7, 8, 9}, {}},
		{{}, []byte("topic"), {0, 0, 0, 0, 0, 0, 0, 1}, []byte("payload")},
		{{1}, {2}, {3}, {4}, {5}, {6}, {7}},
		many,
		{[]byte("last")},
	}
	for _, m := range messages {
		if err := p.SendRaw(m...); err != nil {
			t.Fatalf("send: %v", err)
		}
	}
	seen := r.Await(t, "all of them", func(s Seen) bool { return len(s.Batches()) >= len(messages) })
	for i, m := range seen.Batches() {
		if !slices.EqualFunc(m, messages[i], bytes.Equal) {
			t.Errorf("message %d: sent %d frames %.80q, got %d frames %.80q", i, len(messages[i]), messages[i], len(m), m)
		}
	}
}

// testHighWater: a subscription that falls behind loses messages, in silence but in
// order, and goes on with what comes when it is free again.
func testHighWater(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t), HighWater: 10})
	l, r := start(t, net, "behind"), NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint(), HighWater: 10}, r)
	r.AwaitStream(t, p, "")
	held, release := make(chan struct{}), make(chan struct{})
	if !l.Post(func() { close(held); <-release }) {
		t.Fatal("the loop has ended")
	}
	<-held
	// More than the buffers of the system take.
	const n = 3000
	payload := make([]byte, 16<<10)
	for seq := uint64(1); seq <= n; seq++ {
		publish(t, p, "", seq, payload)
	}
	on(t, start(t, net, "another"), func() {}) // only this loop is held
	close(release)
	seq := uint64(n)
	seen := r.awaitDoing(t, "a later batch", func() {
		seq++
		publish(t, p, "", seq, nil)
	}, func(s Seen) bool {
		got := s.Sequences()
		return len(got) > 0 && got[len(got)-1] > n
	})
	got := seen.Sequences()
	if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) {
		t.Errorf("what was left is not in order: %v", got)
	}
	if got[0] != 1 || len(got) >= n {
		t.Errorf("%d of %d batches came, the first is %d; want the first ones and a loss", len(got), n, got[0])
	}
	if seen.Connects != 1 || seen.Disconnects != 0 {
		t.Errorf("%d connects and %d disconnects", seen.Connects, seen.Disconnects)
	}
}

func testLargeMessage(t *testing.T, h Harness) {
	net := h.New(t)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)})
	l, r := start(t, net, "large"), NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")
	large := make([]byte, 8<<20)
	for i := range large {
		large[i] = byte(i * 7)
	}
	for seq := range uint64(3) {
		publish(t, p, "", seq, large[:len(large)-int(seq)])
	}
	seen := r.Await(t, "three large batches", func(s Seen) bool { return len(s.Batches()) == 3 })
	for i, m := range seen.Batches() {
		if !bytes.Equal(m[2], large[:len(large)-i]) {
			t.Errorf("batch %d is damaged (%d bytes)", i, len(m[2]))
		}
	}
}
