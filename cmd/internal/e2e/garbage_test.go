package e2e

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// A publisher that sends garbage is counted and named; its good batches count, and
// nobody else notices.
func TestPublisherOfGarbage(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	e := newHandDriven(t, h.net, url, "good", 91, nil)
	p := makePrompt(2, 0, 8, 0)
	rng := rand.New(rand.NewPCG(3, 3))
	noise := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(rng.Uint32())
		}
		return b
	}
	raw := func(frames ...[]byte) {
		if err := e.pub.SendRaw(frames...); err != nil {
			t.Errorf("send: %v", err)
		}
	}
	malformed := 0
	for range 20 { // frames that are no message
		raw(noise(rng.IntN(50)))
		raw(noise(3), noise(5))
		raw(noise(3), noise(7), noise(20)) // a sequence of 7 bytes
		malformed += 3
	}
	for range 20 { // messages whose payload is no batch
		payload := noise(1 + rng.IntN(300))
		payload[0] = 0xc1 // never used in msgpack
		if err := e.pub.Publish("", e.seq, payload); err != nil {
			t.Errorf("publish: %v", err)
		}
		e.seq++
	}
	e.store(p, 0, 8, indexer.Device)
	e.settle(p)
	if n := e.score(p); n != 8 {
		t.Errorf("a good batch behind the garbage scores %d blocks, want 8", n)
	}
	h.unharmed("beside garbage")
	await(t, 10*time.Second, func() string {
		if l := listenerOf(t, url, "91"); l.LastError == "" {
			return fmt.Sprintf("nothing is said of the garbage: %+v", l)
		}
		return ""
	})

	// Events that are none, between good ones.
	good := makePrompt(4, 0, 3, 0)
	e.pending = append(e.pending, encode.Event{Raw: []byte("\x92\xabBlockStored\xa3abc")}, encode.Event{Raw: []byte("\x91\xabFutureEvent")})
	e.store(good, 0, 3, indexer.Device)
	e.pending = append(e.pending, encode.Event{Raw: []byte("\x81\xa4type\xabBlockStored")})
	e.settle(good)
	await(t, 10*time.Second, func() string {
		l := listenerOf(t, url, "91")
		if len(l.Rejected) == 0 || metric(t, url, "kvcluster_stream_rejected_events_total", `instance_id="91"`) == 0 {
			return fmt.Sprintf("no rejected event is counted: %+v", l)
		}
		return ""
	})
	if n := e.score(good); n != 3 {
		t.Errorf("the good event of the batch scores %d blocks, want 3", n)
	}
	// An event that may have been a removal: what it removed is not known, so nothing of
	// the worker is credited until it says it again (rule T6).
	e.pending = append(e.pending, encode.Event{Raw: []byte("\x91\x05")})
	e.send()
	await(t, 10*time.Second, func() string {
		if n := e.score(p); n != 0 {
			return fmt.Sprintf("%d blocks are credited although a removal may have been lost", n)
		}
		return ""
	})
	e.markers = nil
	e.store(p, 0, 5, indexer.Device)
	e.settle(p)
	if n := e.score(p); n != 5 {
		t.Errorf("said again, the prompt scores %d blocks, want 5", n)
	}
	h.unharmed("beside events that are none")
}

// A publisher that names a hundred thousand ranks gets as many as a source may have.
func TestPublisherOfManyRanks(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	e := newHandDriven(t, h.net, url, "good", 92, nil)
	store := encode.Event{Kind: engine.Stored, Hashes: []uint64{7}, Medium: "GPU", Group: -1, Tokens: []uint32{1, 2, 3, 4}, BlockSize: blockTokens}
	for rank := range int64(1500) {
		payload := encode.Append(nil, e.format, &encode.Batch{Rank: rank * 1_000_000, Events: []encode.Event{store}})
		if err := e.pub.Publish("", e.seq, payload); err != nil {
			t.Fatal(err)
		}
		e.seq++
	}
	await(t, 20*time.Second, func() string {
		_, text := call(t, "GET", url+"/workers", nil, nil)
		if !strings.Contains(text, "refused: 1024 ranks already") {
			return "nobody says that there are too many ranks"
		}
		return ""
	})
	h.unharmed("beside a worker of many ranks")
	if n := metric(t, url, "dynamo_kvindexer_listeners"); n > 1026 {
		t.Errorf("%v streams, a source may have 1024 ranks", n)
	}
	if status, ans := call(t, "POST", url+"/unregister", map[string]any{"instance_id": 92, "model_name": "good"}, nil); status != 200 {
		t.Errorf("unregister: HTTP %d %s", status, ans)
	}
	h.unharmed("after it has gone")
}

// Random bytes on a port where engines push do no harm to the engines that do.
func TestNoiseOnABoundPort(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	if status, ans := call(t, "POST", url+"/register", map[string]any{
		"instance_id": 93, "endpoint": fmt.Sprintf("tcp://*:%d", port), "topic": "kv@93@good", "model_name": "good", "block_size": blockTokens,
	}, nil); status != 201 {
		t.Fatalf("register: HTTP %d %s", status, ans)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	var first net.Conn
	await(t, 10*time.Second, func() string {
		if first, err = net.Dial("tcp", address); err != nil {
			return err.Error()
		}
		return ""
	})
	first.Close()
	rng := rand.New(rand.NewPCG(4, 4))
	for i := range 60 {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		noise := make([]byte, rng.IntN(4000))
		for k := range noise {
			noise[k] = byte(rng.Uint32())
		}
		if i%3 == 0 { // as if it spoke the protocol, up to a point
			copy(noise, "\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL")
		}
		c.Write(noise)
		if i%2 == 0 {
			c.Close()
		} else {
			t.Cleanup(func() { c.Close() })
		}
	}
	pub, err := h.net.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://" + address, Connect: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pub.Close() })
	p := makePrompt(5, 0, 4, 0)
	e := &handDriven{tb: t, net: h.net, id: "93", url: url, model: "good", format: encode.VLLMMap}
	e.store(p, 0, 4, indexer.Device)
	payload := e.payload()
	sent := uint64(0)
	await(t, 20*time.Second, func() string {
		// What is published before the connection stands is lost: say it again.
		if err := pub.Publish("kv@93@good", sent, payload); err != nil {
			return err.Error()
		}
		sent++
		if n := e.score(p); n != 4 {
			return fmt.Sprintf("the pushing engine scores %d blocks, want 4", n)
		}
		return ""
	})
	h.unharmed("beside noise on a port")
}
