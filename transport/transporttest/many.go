package transporttest

import (
	"testing"

	"github.com/kvcluster/kvcluster/transport"
)

// counter checks the order of a stream without keeping it.
type counter struct {
	t      *testing.T
	ready  func() // called at the first message
	done   func() // called at the last one
	last   uint64
	probed bool
	next   uint64
}

func (c *counter) OnConnect()    {}
func (c *counter) OnDisconnect() {}
func (c *counter) OnMessage(frames [][]byte) {
	if !c.probed {
		c.probed = true
		c.ready()
	}
	if isProbe(frames) {
		return
	}
	got := bigEndian(frames[1])
	if c.next++; got != c.next {
		c.t.Errorf("got sequence %d, want %d", got, c.next)
		c.next = got
	}
	if got == c.last {
		c.done()
	}
}

func testManySubscriptions(t *testing.T, h Harness) {
	const subscriptions, publishers, n = 1000, 4, 20
	net := h.New(t)
	l := start(t, net, "many")
	ready, done := newCountdown(subscriptions), newCountdown(subscriptions)
	var ps []transport.Publisher
	for range publishers {
		ps = append(ps, publisher(t, net, transport.PublisherConfig{Endpoint: h.Bind(t)}))
	}
	for i := range subscriptions {
		subscribe(t, l, transport.SubscribeConfig{Endpoint: ps[i%publishers].Endpoint()},
			&counter{t: t, ready: ready.done, done: done.done, last: n})
	}
	ready.await(t, "every subscription to stand", func() {
		for _, p := range ps {
			if err := p.SendRaw(nil, make([]byte, 8), []byte(probe)); err != nil {
				t.Errorf("send a probe: %v", err)
			}
		}
	})
	for seq := uint64(1); seq <= n; seq++ {
		for _, p := range ps {
			publish(t, p, "t", seq, []byte("payload"))
		}
	}
	done.await(t, "every subscription to get everything", nil)
	if s := l.Stats(); s.Sockets != subscriptions || s.Connects != subscriptions {
		t.Errorf("stats: %+v", s)
	}
}
