package zmq_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/transporttest"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

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
