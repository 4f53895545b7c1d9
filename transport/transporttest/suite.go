package transporttest

import (
	"context"
	"testing"

	"github.com/kvcluster/kvcluster/transport"
)

// Harness tells the suite what it cannot know about an implementation.
type Harness struct {
	// New returns a network and closes it at the end of the test.
	New func(t testing.TB) transport.Network
	// Bind returns an endpoint to bind whose address the network chooses.
	Bind func(t testing.TB) string
	// Fixed returns an address that nothing is bound to and that can be bound more
	// than once in turn.
	Fixed func(t testing.TB) string
	// BadEndpoints are texts that can neither be bound nor connected to.
	BadEndpoints []string
	// Run runs one test of the suite: as a subtest, and in a bubble if need be.
	Run func(t *testing.T, name string, f func(t *testing.T))
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	for _, c := range []struct {
		name string
		f    func(*testing.T, Harness)
	}{
		{"Order", testOrder},
		{"TopicPrefix", testTopicPrefix},
		{"BoundSubscription", testBoundSubscription},
		{"ConnectBeforeBind", testConnectBeforeBind},
		{"PublisherRestart", testPublisherRestart},
		{"ConnectionBorder", testConnectionBorder},
		{"UnreachablePeer", testUnreachablePeer},
		{"MaxMessage", testMaxMessage},
		{"GarbageFrames", testGarbageFrames},
		{"HighWater", testHighWater},
		{"LargeMessage", testLargeMessage},
		{"ManySubscriptions", testManySubscriptions},
		{"ReplayThreeFrames", func(t *testing.T, h Harness) { testReplay(t, h, false) }},
		{"ReplayFourFrames", func(t *testing.T, h Harness) { testReplay(t, h, true) }},
		{"ReplayWaitsForPeer", testReplayWaitsForPeer},
		{"ReplayRestart", testReplayRestart},
		{"ReplayBuffer", testReplayBuffer},
		{"Endpoints", testEndpoints},
		{"AddressInUse", testAddressInUse},
		{"Post", testPost},
		{"PostAtEnd", testPostAtEnd},
		{"Timers", testTimers},
		{"TimersEndWithLoop", testTimersEndWithLoop},
		{"CloseInHandler", testCloseInHandler},
		{"CloseWhileBusy", testCloseWhileBusy},
		{"OneAtATime", testOneAtATime},
		{"Stats", testStats},
		{"ClosedPublisher", testClosedPublisher},
	} {
		h.Run(t, c.name, func(t *testing.T) { c.f(t, h) })
	}
}

// start runs a new loop until the end of the test.
func start(t testing.TB, net transport.Network, name string) transport.Loop {
	t.Helper()
	l, _ := startEnding(t, net, name)
	return l
}

// startEnding also returns what ends the loop and waits for that.
func startEnding(t testing.TB, net transport.Network, name string) (transport.Loop, func()) {
	t.Helper()
	l, err := net.NewLoop(name)
	if err != nil {
		t.Fatalf("new loop: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := l.Run(ctx); err != nil {
			t.Errorf("loop %s: %v", name, err)
		}
	}()
	end := func() {
		cancel()
		<-done
	}
	t.Cleanup(end)
	return l, end
}

// on runs fn on the loop and waits for it.
func on(t testing.TB, l transport.Loop, fn func()) {
	t.Helper()
	done := make(chan struct{})
	if !l.Post(func() { defer close(done); fn() }) {
		t.Fatal("the loop has ended")
	}
	<-done
}

func subscribe(t testing.TB, l transport.Loop, cfg transport.SubscribeConfig, h transport.SubscribeHandler) transport.Socket {
	t.Helper()
	var s transport.Socket
	var err error
	on(t, l, func() { s, err = l.Subscribe(cfg, h) })
	if err != nil {
		t.Fatalf("subscribe: %v", err)
	}
	return s
}

func openReplay(t testing.TB, l transport.Loop, endpoint string, h transport.ReplayHandler) transport.ReplaySocket {
	t.Helper()
	var s transport.ReplaySocket
	var err error
	on(t, l, func() { s, err = l.OpenReplay(endpoint, h) })
	if err != nil {
		t.Fatalf("open replay: %v", err)
	}
	return s
}

func request(t testing.TB, l transport.Loop, s transport.ReplaySocket, start uint64) {
	t.Helper()
	var err error
	on(t, l, func() { err = s.Request(start) })
	if err != nil {
		t.Fatalf("request: %v", err)
	}
}

// publisher opens one that is closed at the end of the test at the latest.
func publisher(t testing.TB, net transport.Network, cfg transport.PublisherConfig) transport.Publisher {
	t.Helper()
	p, err := net.NewPublisher(cfg)
	if err != nil {
		t.Fatalf("new publisher: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close publisher: %v", err)
		}
	})
	return p
}

func closePublisher(t testing.TB, p transport.Publisher) {
	t.Helper()
	if err := p.Close(); err != nil {
		t.Fatalf("close publisher: %v", err)
	}
}

func publish(t testing.TB, p transport.Publisher, topic string, seq uint64, payload []byte) {
	t.Helper()
	if err := p.Publish(topic, seq, payload); err != nil {
		t.Fatalf("publish %d: %v", seq, err)
	}
}
