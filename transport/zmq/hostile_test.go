package zmq_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/transporttest"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

// greeting is ZMTP 3.0's: signature, version, mechanism NULL, not a server.
func greeting() []byte {
	g := make([]byte, 64)
	g[0], g[9], g[10] = 0xff, 0x7f, 3
	copy(g[12:], "NULL")
	return g
}

// ready is the command that ends a handshake, as a PUB sends it.
func ready() []byte {
	body := append([]byte{5}, "READY"...)
	body = append(body, 11)
	body = append(body, "Socket-Type"...)
	body = binary.BigEndian.AppendUint32(body, 3)
	body = append(body, "PUB"...)
	return append([]byte{4, byte(len(body))}, body...)
}

// hostile returns bytes that get further and further into the protocol before they
// go wrong.
func hostile(r *rand.Rand) []byte {
	junk := make([]byte, r.IntN(4000))
	for i := range junk {
		junk[i] = byte(r.Uint32())
	}
	switch r.IntN(8) {
	case 0:
		return junk
	case 1:
		return greeting()[:r.IntN(64)]
	case 2:
		return append(greeting(), junk...)
	case 3:
		return slices.Concat(greeting(), ready(), junk)
	case 4: // a frame of almost 2^64 bytes
		return slices.Concat(greeting(), ready(), []byte{2, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, junk)
	case 5: // a message that never ends
		return slices.Concat(greeting(), ready(), bytes.Repeat([]byte{1, 1, 'x'}, 1000))
	case 6: // ZMTP 1.0: length, flags
		return append([]byte{1, 0}, junk...)
	default:
		return []byte("GET / HTTP/1.1\r\nHost: engine\r\n\r\n")
	}
}

// throw writes bytes to a port and waits for the other side to have read them or
// to have hung up.
func throw(addr string, data []byte) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
	_, _ = c.Write(data)
	_ = c.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, c)
}

// TestHostileBytesOnBoundPort throws bytes at a port that publishers push to. What
// they push arrives complete and in order all the same.
func TestHostileBytesOnBoundPort(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	n := newNetwork(t, zmq.Config{})
	address := freePort(t)
	l := startLoop(t, n)
	r := transporttest.NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: address, Bind: true, MaxMessage: 1 << 20}, r)
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: address, Connect: true})
	r.AwaitStream(t, p, "good")

	var wg sync.WaitGroup
	for g := range 4 {
		random := rand.New(rand.NewPCG(seed, uint64(g)))
		wg.Go(func() {
			for range 60 {
				throw(strings.TrimPrefix(address, "tcp://"), hostile(random))
			}
		})
	}
	var last uint64
	attacked := make(chan struct{})
	go func() { wg.Wait(); close(attacked) }()
	for running := true; running; {
		select {
		case <-attacked:
			running = false
		case <-time.After(100 * time.Microsecond): // paces the publisher
			last++
			if err := p.Publish("good", last, []byte("payload")); err != nil {
				t.Fatal(err)
			}
		}
	}
	good := func(s transporttest.Seen) (seqs []uint64) {
		for _, m := range s.Batches() {
			if string(m[0]) == "good" && len(m) == 3 {
				seqs = append(seqs, binary.BigEndian.Uint64(m[1]))
			}
		}
		return seqs
	}
	seen := r.Await(t, "the last good batch", func(s transporttest.Seen) bool {
		g := good(s)
		return len(g) > 0 && g[len(g)-1] == last
	})
	for i, seq := range good(seen) {
		if seq != uint64(i+1) {
			t.Fatalf("batch %d came in place of %d", seq, i+1)
		}
	}
	t.Logf("%d batches among the attacks, %d messages in all", last, len(seen.Messages))
}

// FuzzBoundPort is the same with one connection and chosen bytes.
func FuzzBoundPort(f *testing.F) {
	f.Add([]byte{})
	f.Add(greeting())
	f.Add(slices.Concat(greeting(), ready()))
	f.Add(slices.Concat(greeting(), ready(), []byte{0, 1, 'x'}))
	f.Add([]byte{1, 0, 0xff})
	f.Add([]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x01"))
	n := newNetwork(f, zmq.Config{})
	address := freePort(f)
	l := startLoop(f, n)
	r := transporttest.NewRecorder()
	subscribe(f, l, transport.SubscribeConfig{Endpoint: address, Bind: true, Topic: "good", MaxMessage: 1 << 20}, r)
	p := newPublisher(f, n, transport.PublisherConfig{Endpoint: address, Connect: true})
	r.AwaitStream(f, p, "good")
	var seq uint64
	f.Fuzz(func(t *testing.T, data []byte) {
		throw(strings.TrimPrefix(address, "tcp://"), data)
		seq++
		if err := p.Publish("good", seq, data); err != nil {
			t.Fatal(err)
		}
		r.Await(t, "the batch behind the bytes", func(s transporttest.Seen) bool {
			return slices.Contains(s.Sequences(), seq)
		})
		r.Forget()
	})
}

// stranger answers whoever connects with something that is not ZMTP.
func stranger(t *testing.T, address string, answer []byte) (stop func(), met <-chan struct{}) {
	t.Helper()
	ln, err := net.Listen("tcp", strings.TrimPrefix(address, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	c := make(chan struct{}, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write(answer)
			_ = conn.(*net.TCPConn).CloseWrite()
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			_, _ = io.Copy(io.Discard, conn) // until the other side gives up
			conn.Close()
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return func() { ln.Close(); <-done }, c
}

// TestStrangerOnThePort has something else listen where the engine should be, and
// then the engine. After some of the answers libzmq alone would have given up.
func TestStrangerOnThePort(t *testing.T) {
	for name, answer := range map[string][]byte{
		"HTTP":     []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" + strings.Repeat("x", 100)),
		"nothing":  nil,
		"greeting": greeting(),
		"no READY": append(greeting(), 4, 9, 5, 'E', 'R', 'A', 'D', 'Y', 0, 0, 0),
		"no frame": append(greeting(), bytes.Repeat([]byte{0xff}, 64)...),
	} {
		t.Run(name, func(t *testing.T) { testStranger(t, answer) })
	}
}

func testStranger(t *testing.T, answer []byte) {
	n := newNetwork(t, zmq.Config{})
	address, replayAddress := freePort(t), freePort(t)
	stop, met := stranger(t, address, answer)
	stopReplay, metReplay := stranger(t, replayAddress, answer)
	l := startLoop(t, n)
	r, rr := transporttest.NewRecorder(), transporttest.NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: address}, r)
	onLoop(l, func() {
		s, err := l.OpenReplay(replayAddress, rr)
		if err == nil {
			err = s.Request(0)
		}
		if err != nil {
			t.Error(err)
		}
	})
	<-met
	<-metReplay
	stop()
	stopReplay()
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: address, ReplayEndpoint: replayAddress})
	r.AwaitStream(t, p, "")
	if err := p.Publish("", 1, []byte("x")); err != nil {
		t.Fatal(err)
	}
	seen := r.Await(t, "the batch", func(s transporttest.Seen) bool { return slices.Equal(s.Sequences(), []uint64{1}) })
	if seen.Connects != 1 || seen.Disconnects != 0 {
		t.Errorf("%d connects and %d disconnects: the stranger was taken for an engine", seen.Connects, seen.Disconnects)
	}
	// The request was made before there was an engine, and is still answered.
	rr.Await(t, "the answer", func(s transporttest.Seen) bool { return len(s.Messages) > 0 && s.Connects == 1 })
}

// dealer is a bare requester, without the manners of the real one.
func dealer(t *testing.T, endpoint string, highWater int) *zmq4.Socket {
	t.Helper()
	ctx, err := zmq4.NewContext()
	if err != nil {
		t.Fatal(err)
	}
	s, err := ctx.NewSocket(zmq4.DEALER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := ctx.Term(); err != nil {
			t.Error(err)
		}
	})
	for _, err := range []error{s.SetLinger(0), s.SetRcvhwm(highWater), s.SetRcvtimeo(5 * time.Second), s.Connect(endpoint)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestReplayRequestShapes: whatever is not exactly [empty][8 bytes] gets silence.
func TestReplayRequestShapes(t *testing.T) {
	n := newNetwork(t, zmq.Config{})
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*", ReplayEndpoint: "tcp://127.0.0.1:*"})
	s := dealer(t, p.ReplayEndpoint(), 0)
	start := make([]byte, 8)
	for _, bad := range [][][]byte{
		{start},
		{{}},
		{{}, {}},
		{{}, start[:7]},
		{{}, append(start[:8:8], 0)},
		{{0}, start},
		{{}, start, {}},
		{{}, {}, start},
		{start, {}},
	} {
		if _, err := s.SendMessage(bad); err != nil {
			t.Fatal(err)
		}
	}
	// Requests are answered in turn: were one of those answered, it would come first.
	if _, err := s.SendMessage([][]byte{{}, bytes.Repeat([]byte{0xff}, 8)}); err != nil {
		t.Fatal(err)
	}
	reply, err := s.RecvMessageBytes(0)
	if err != nil {
		t.Fatal(err)
	}
	if want := [][]byte{{}, bytes.Repeat([]byte{0xff}, 8), {}}; !slices.EqualFunc(reply, want, bytes.Equal) {
		t.Errorf("got %q, want the end marker", reply)
	}
	if _, err := s.RecvMessageBytes(zmq4.DONTWAIT); zmq4.AsErrno(err) != zmq4.Errno(11) {
		t.Errorf("a second reply came (error %v)", err)
	}
}

// TestRouterDropsSilently: a requester that does not drain loses parts of a long
// replay, in the middle and at the end, and nobody says so.
func TestRouterDropsSilently(t *testing.T) {
	n := newNetwork(t, zmq.Config{})
	const batches = 10_000
	p := newPublisher(t, n, transport.PublisherConfig{
		Endpoint: "tcp://127.0.0.1:*", ReplayEndpoint: "tcp://127.0.0.1:*", Buffer: batches,
	})
	for seq := range uint64(batches) {
		if err := p.Record("", seq, make([]byte, 8000)); err != nil {
			t.Fatal(err)
		}
	}
	s := dealer(t, p.ReplayEndpoint(), 1000)
	if _, err := s.SendMessage([][]byte{{}, make([]byte, 8)}); err != nil {
		t.Fatal(err)
	}
	// A second requester is answered after the first, so its answer says that the
	// first replay is over.
	second := dealer(t, p.ReplayEndpoint(), 0)
	if _, err := s.SendMessage([][]byte{{}, bytes.Repeat([]byte{0xff}, 8)}); err != nil {
		t.Fatal(err)
	}
	if _, err := second.SendMessage([][]byte{{}, bytes.Repeat([]byte{0xff}, 8)}); err != nil {
		t.Fatal(err)
	}
	if _, err := second.RecvMessageBytes(0); err != nil {
		t.Fatal(err)
	}
	if err := s.SetRcvtimeo(300 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	got, ends, last := 0, 0, int64(-1)
	for {
		m, err := s.RecvMessageBytes(0)
		if err != nil {
			break
		}
		if len(m) != 3 {
			t.Fatalf("reply of %d frames", len(m))
		}
		if len(m[2]) == 0 {
			ends++
			continue
		}
		seq := int64(binary.BigEndian.Uint64(m[1]))
		if seq <= last {
			t.Fatalf("batch %d behind batch %d", seq, last)
		}
		last = seq
		got++
	}
	if got == 0 || got >= batches {
		t.Errorf("%d of %d batches came, want a part", got, batches)
	}
	t.Logf("%d of %d batches came, %d end markers", got, batches, ends)
}

func TestUnknownHostIsNotAnError(t *testing.T) {
	n := newNetwork(t, zmq.Config{})
	l := startLoop(t, n)
	r := transporttest.NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: "tcp://no-such-host.invalid:5557"}, r)
	p := newPublisher(t, n, transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:*"})
	ok := transporttest.NewRecorder()
	subscribe(t, l, transport.SubscribeConfig{Endpoint: strings.Replace(p.Endpoint(), "127.0.0.1", "localhost", 1)}, ok)
	ok.AwaitStream(t, p, "")
	if s := r.Seen(); s.Connects != 0 || s.Disconnects != 0 {
		t.Errorf("connection events of a host that is not there: %+v", fmt.Sprint(s.Log))
	}
}
