package zmq_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
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
