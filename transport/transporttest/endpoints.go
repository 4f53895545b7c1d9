package transporttest

import (
	"errors"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/transport"
)

func testEndpoints(t *testing.T, h Harness) {
	net := h.New(t)
	l := start(t, net, "endpoints")
	r := NewRecorder()
	for _, bad := range h.BadEndpoints {
		on(t, l, func() {
			if _, err := l.Subscribe(transport.SubscribeConfig{Endpoint: bad}, r); !errors.Is(err, transport.ErrEndpoint) {
				t.Errorf("subscribe %q: %v, want ErrEndpoint", bad, err)
			}
			if _, err := l.Subscribe(transport.SubscribeConfig{Endpoint: bad, Bind: true}, r); !errors.Is(err, transport.ErrEndpoint) {
				t.Errorf("bind %q: %v, want ErrEndpoint", bad, err)
			}
			if _, err := l.OpenReplay(bad, r); !errors.Is(err, transport.ErrEndpoint) {
				t.Errorf("replay %q: %v, want ErrEndpoint", bad, err)
			}
		})
		for _, connect := range []bool{false, true} {
			if _, err := net.NewPublisher(transport.PublisherConfig{Endpoint: bad, Connect: connect}); !errors.Is(err, transport.ErrEndpoint) {
				t.Errorf("publisher %q: %v, want ErrEndpoint", bad, err)
			}
		}
		if bad == "" {
			continue // means no replay
		}
		if _, err := net.NewPublisher(transport.PublisherConfig{Endpoint: h.Bind(t), ReplayEndpoint: bad}); !errors.Is(err, transport.ErrEndpoint) {
			t.Errorf("publisher replay %q: %v, want ErrEndpoint", bad, err)
		}
	}
	if s := l.Stats(); s.Sockets != 0 {
		t.Errorf("%d sockets are left over", s.Sockets)
	}
}

func testAddressInUse(t *testing.T, h Harness) {
	net := h.New(t)
	l, r := start(t, net, "in use"), NewRecorder()
	first, second := h.Fixed(t), h.Fixed(t)
	s := subscribe(t, l, transport.SubscribeConfig{Endpoint: first, Bind: true}, r)
	p := publisher(t, net, transport.PublisherConfig{Endpoint: second})
	for _, taken := range []string{first, second} {
		on(t, l, func() {
			if _, err := l.Subscribe(transport.SubscribeConfig{Endpoint: taken, Bind: true}, r); !errors.Is(err, transport.ErrAddressInUse) {
				t.Errorf("bind %s: %v, want ErrAddressInUse", taken, err)
			}
		})
		if _, err := net.NewPublisher(transport.PublisherConfig{Endpoint: taken}); !errors.Is(err, transport.ErrAddressInUse) {
			t.Errorf("publisher %s: %v, want ErrAddressInUse", taken, err)
		}
		if _, err := net.NewPublisher(transport.PublisherConfig{Endpoint: h.Bind(t), ReplayEndpoint: taken}); !errors.Is(err, transport.ErrAddressInUse) {
			t.Errorf("replay %s: %v, want ErrAddressInUse", taken, err)
		}
	}
	// Those that hold the addresses are not disturbed.
	q := publisher(t, net, transport.PublisherConfig{Endpoint: first, Connect: true})
	r.AwaitStream(t, q, "")
	other := NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: second}, other)
	other.AwaitStream(t, p, "")
	// And the addresses are free again once they are closed.
	closePublisher(t, p)
	publisher(t, net, transport.PublisherConfig{Endpoint: second})
	on(t, l, s.Close)
	// The loop does not wait for the system to close the address.
	other.awaitDoing(t, "the address of a closed subscription", func() {
		on(t, l, func() {
			if b, err := l.Subscribe(transport.SubscribeConfig{Endpoint: first, Bind: true}, r); err == nil {
				other.OnMessage([][]byte{[]byte("bound")})
				b.Close()
			} else if !errors.Is(err, transport.ErrAddressInUse) {
				t.Errorf("bind again: %v", err)
			}
		})
	}, func(s Seen) bool {
		return slices.ContainsFunc(s.Messages, func(m [][]byte) bool { return string(m[0]) == "bound" })
	})
}
