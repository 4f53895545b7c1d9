package zmq_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/transporttest"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

func startLoop(t testing.TB, n *zmq.Network) transport.Loop {
	t.Helper()
	l, err := n.NewLoop(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return l
}

func subscribe(t testing.TB, l transport.Loop, cfg transport.SubscribeConfig, h transport.SubscribeHandler) transport.Socket {
	t.Helper()
	var s transport.Socket
	var err error
	onLoop(l, func() { s, err = l.Subscribe(cfg, h) })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newPublisher(t testing.TB, n *zmq.Network, cfg transport.PublisherConfig) transport.Publisher {
	t.Helper()
	p, err := n.NewPublisher(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestConfig(t *testing.T) {
	for _, c := range []zmq.Config{
		{IOThreads: -1}, {IOThreads: 1000}, {MaxSockets: 1}, {MaxSockets: 65_536}, {PublisherLoops: -1},
		{IOThreads: -1, MaxSockets: -1},
	} {
		if _, err := zmq.New(c); err == nil {
			t.Errorf("%+v was accepted", c)
		}
	}
	err := zmq.Config{IOThreads: -1, MaxSockets: 3}.Validate()
	if err == nil || !strings.Contains(err.Error(), "IOThreads") || !strings.Contains(err.Error(), "MaxSockets") {
		t.Errorf("not all faults are named: %v", err)
	}
	if err := (zmq.Config{}).Validate(); err != nil {
		t.Errorf("the zero value: %v", err)
	}
}

func TestCloseNetwork(t *testing.T) {
	n, err := zmq.New(zmq.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l, err := n.NewLoop("one")
	if err != nil {
		t.Fatal(err)
	}
	p, err := n.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.NewPublisher(transport.PublisherConfig{Endpoint: p.Endpoint()}); err == nil {
		t.Error("an address was bound twice")
	}
	if err := n.Close(); !errors.Is(err, zmq.ErrOpen) {
		t.Errorf("close with a loop and a publisher: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := n.Close(); !errors.Is(err, zmq.ErrOpen) {
		t.Errorf("close with a loop that has not run: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Run(ctx); err != nil {
		t.Errorf("run: %v", err)
	}
	if err := l.Run(ctx); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("second run: %v", err)
	}
	for range 2 {
		if err := n.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, err := n.NewLoop("late"); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("new loop on a closed network: %v", err)
	}
	if _, err := n.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*"}); !errors.Is(err, transport.ErrClosed) {
		t.Errorf("new publisher on a closed network: %v", err)
	}
}

// TestOutOfSockets: the limit is an error of one call, and nothing is lost or left.
func TestOutOfSockets(t *testing.T) {
	n := newNetwork(t, zmq.Config{MaxSockets: 40})
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*"})
	l := startLoop(t, n)
	r := transporttest.NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	for range 3 {
		before := openFiles(t)
		var open []transport.Socket
		var err error
		onLoop(l, func() {
			for err == nil && len(open) < 100 {
				var s transport.Socket
				if s, err = l.Subscribe(transport.SubscribeConfig{Endpoint: "tcp://127.0.0.1:1"}, transporttest.NewRecorder()); err == nil {
					open = append(open, s)
				}
			}
		})
		if err == nil || errors.Is(err, transport.ErrEndpoint) {
			t.Fatalf("after %d sockets: %v", len(open), err)
		}
		if len(open) < 5 {
			t.Errorf("only %d subscriptions fit in 40 sockets", len(open))
		}
		onLoop(l, func() {
			for _, s := range open {
				s.Close()
			}
		})
		r.AwaitStream(t, p, "") // the one that was there still works
		await(t, "the descriptors to be closed", func() (string, bool) {
			now := openFiles(t)
			return fmt.Sprintf("%d before, %d now", before, now), now <= before+2
		})
	}
}

// await polls for something that nobody signals.
func await(t testing.TB, what string, ok func() (seen string, ok bool)) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		seen, done := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s: %s", what, seen)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestIPCFiles: a file left by a process that died is taken over, one that is
// served is not.
func TestIPCFiles(t *testing.T) {
	n := newNetwork(t, zmq.Config{})
	path := filepath.Join(t.TempDir(), "socket")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if _, err := n.NewPublisher(transport.PublisherConfig{Endpoint: "ipc://" + path}); !errors.Is(err, transport.ErrAddressInUse) {
		t.Errorf("bind to a served socket: %v", err)
	}
	ln.Close()
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the stale file is gone: %v", err)
	}
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "ipc://" + path})
	r := transporttest.NewRecorder()
	subscribe(t, startLoop(t, n), transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")
	if _, err := n.NewPublisher(transport.PublisherConfig{Endpoint: "ipc:///no/such/directory/socket"}); !errors.Is(err, transport.ErrEndpoint) {
		t.Errorf("bind in a directory that is not there: %v", err)
	}
}

func TestIPv6(t *testing.T) {
	n := newNetwork(t, zmq.Config{})
	p, err := n.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://[::1]:*"})
	if ln, lerr := net.Listen("tcp6", "[::1]:0"); lerr != nil {
		// No IPv6 here: then it must be an error like any other address that is not ours.
		if !errors.Is(err, transport.ErrEndpoint) {
			t.Errorf("bind without IPv6: %v", err)
		}
		return
	} else {
		ln.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	r := transporttest.NewRecorder()
	subscribe(t, startLoop(t, n), transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")
}

// slowHandler takes a while for each message.
type slowHandler struct {
	took    time.Duration
	handled atomic.Int64
}

func (*slowHandler) OnConnect()    {}
func (*slowHandler) OnDisconnect() {}
func (h *slowHandler) OnMessage([][]byte) {
	for end := time.Now().Add(h.took); time.Now().Before(end); {
	}
	h.handled.Add(1)
}

// TestBusySocketStarvesNobody: while one socket has far more than the loop can
// handle, another one's messages, posts and timers come through, and few of the
// busy one's messages are handled before them.
func TestBusySocketStarvesNobody(t *testing.T) {
	n := newNetwork(t, zmq.Config{PublisherLoops: 2})
	l := startLoop(t, n)
	busy := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*"})
	quiet := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*"})
	slow := &slowHandler{took: 20 * time.Microsecond}
	subscribe(t, l, transport.SubscribeConfig{Endpoint: busy.Endpoint()}, slow)
	r := transporttest.NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: quiet.Endpoint()}, r)
	r.AwaitStream(t, quiet, "")

	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for seq := uint64(0); ; seq++ {
			select {
			case <-stop:
				return
			default:
				if err := busy.Publish("", seq, []byte("x")); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	await(t, "the flood", func() (string, bool) {
		h := slow.handled.Load()
		return fmt.Sprint(h, " handled"), h > 5_000
	})
	var worst int64
	for seq := uint64(1); seq <= 10; seq++ {
		before := slow.handled.Load()
		if err := quiet.Publish("", seq, nil); err != nil {
			t.Fatal(err)
		}
		r.Await(t, "a message of the quiet socket", func(s transporttest.Seen) bool {
			return slices.Contains(s.Sequences(), seq)
		})
		fired := make(chan struct{})
		onLoop(l, func() { l.AfterFunc(time.Millisecond, func() { close(fired) }) })
		<-fired
		worst = max(worst, slow.handled.Load()-before)
	}
	// A turn handles 256 messages of one socket at most. The rest is the way of the
	// quiet message through two busy processors.
	t.Logf("at most %d messages of the busy socket came first", worst)
	if worst > 50_000 {
		t.Errorf("%d messages of the busy socket came before one of the quiet socket", worst)
	}
}

// TestNothingIsLeftUndrained sends one message at a time to sockets that have been
// read empty: each must be signalled anew.
func TestNothingIsLeftUndrained(t *testing.T) {
	n := newNetwork(t, zmq.Config{IOThreads: 2})
	l := startLoop(t, n)
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*", ReplayEndpoint: "tcp://127.0.0.1:*"})
	const sockets, rounds = 50, 300
	replies := transporttest.NewRecorder()
	var replay transport.ReplaySocket
	onLoop(l, func() {
		var err error
		if replay, err = l.OpenReplay(p.ReplayEndpoint(), replies); err != nil {
			t.Error(err)
		}
	})
	got := make(chan uint64, sockets)
	for range sockets {
		r := transporttest.NewRecorder()
		r.Do = func(m [][]byte) bool {
			if string(m[2]) != "round" {
				return true // a probe
			}
			// A send on another socket in between, as ingest does on a gap.
			if err := replay.Request(1 << 62); err != nil {
				t.Error(err)
			}
			got <- binary.BigEndian.Uint64(m[1])
			return false
		}
		subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
		r.AwaitStream(t, p, "")
	}
	deadline := time.After(30 * time.Second)
	for round := uint64(1); round <= rounds; round++ {
		if err := p.Publish("", round, []byte("round")); err != nil {
			t.Fatal(err)
		}
		for i := range sockets {
			select {
			case seq := <-got:
				if seq != round {
					t.Fatalf("got %d in round %d", seq, round)
				}
			case <-deadline:
				t.Fatalf("round %d: %d of %d sockets got the message", round, i, sockets)
			}
		}
	}
	replies.Await(t, "an answer to every request", func(s transporttest.Seen) bool {
		return len(s.Messages) == sockets*rounds
	})
}

// TestPublishAndClose: publishing from many goroutines ends with ErrClosed, and
// nobody is left waiting for room.
func TestPublishAndClose(t *testing.T) {
	n := newNetwork(t, zmq.Config{})
	for range 3 {
		p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*", ReplayEndpoint: "tcp://127.0.0.1:*", Buffer: 10})
		var wg sync.WaitGroup
		var sent atomic.Int64
		for range 4 {
			wg.Go(func() {
				payload := make([]byte, 64<<10)
				for seq := uint64(0); ; seq++ {
					if err := p.Publish("", seq, payload); errors.Is(err, transport.ErrClosed) {
						return
					} else if err != nil {
						t.Error(err)
						return
					}
					sent.Add(1)
				}
			})
		}
		await(t, "some batches", func() (string, bool) { return fmt.Sprint(sent.Load()), sent.Load() > 1200 })
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// TestQueuedIsSentOnClose: what was published before Close arrives.
func TestQueuedIsSentOnClose(t *testing.T) {
	n := newNetwork(t, zmq.Config{})
	l := startLoop(t, n)
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*"})
	r := transporttest.NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: p.Endpoint()}, r)
	r.AwaitStream(t, p, "")
	const batches = 5000
	for seq := uint64(1); seq <= batches; seq++ {
		if err := p.Publish("", seq, make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	seen := r.Await(t, "OnDisconnect", func(s transporttest.Seen) bool { return s.Disconnects == 1 })
	if len(seen.Sequences()) != batches {
		// They may still be in the pipe: the loss is told at once.
		r.Await(t, "all batches", func(s transporttest.Seen) bool { return len(s.Sequences()) == batches })
	}
}
