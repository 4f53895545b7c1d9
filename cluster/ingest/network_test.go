package ingest

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// scriptNet is a transport in which the test decides when a connection stands, breaks,
// and what arrives: the faults themselves, not the sockets that have them. It keeps the
// contract of transport.Loop and runs in a synctest bubble.
type scriptNet struct {
	mu      sync.Mutex
	engines map[string]*mockEngine // by endpoint
	replays map[string]*mockEngine // by replay endpoint
	bound   map[string]*scriptSub
}

func newScriptNet() *scriptNet {
	return &scriptNet{engines: map[string]*mockEngine{}, replays: map[string]*mockEngine{}, bound: map[string]*scriptSub{}}
}

func (n *scriptNet) NewLoop(name string) (transport.Loop, error) {
	return &scriptLoop{net: n, name: name, wake: make(chan struct{}, 1)}, nil
}

func (n *scriptNet) NewPublisher(transport.PublisherConfig) (transport.Publisher, error) {
	return nil, fmt.Errorf("script network has no publishers")
}

type scriptLoop struct {
	net  *scriptNet
	name string
	wake chan struct{}

	mu     sync.Mutex
	queue  []func()
	closed bool
}

func (l *scriptLoop) Run(ctx context.Context) error {
	for {
		l.mu.Lock()
		q := l.queue
		l.queue = nil
		l.mu.Unlock()
		for _, fn := range q {
			if ctx.Err() != nil {
				break
			}
			fn()
		}
		select {
		case <-ctx.Done():
			l.mu.Lock()
			l.closed = true
			l.mu.Unlock()
			return nil
		case <-l.wake:
		}
	}
}

func (l *scriptLoop) Post(fn func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.queue = append(l.queue, fn)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

type scriptTimer struct{ t *time.Timer }

func (t scriptTimer) Stop() bool { return t.t.Stop() }

func (l *scriptLoop) AfterFunc(d time.Duration, fn func()) transport.Timer {
	return scriptTimer{time.AfterFunc(d, func() { l.Post(fn) })}
}

func (l *scriptLoop) Now() time.Time             { return time.Now() }
func (l *scriptLoop) Stats() transport.LoopStats { return transport.LoopStats{Name: l.name} }

// scriptSub is a subscription.
type scriptSub struct {
	loop   *scriptLoop
	cfg    transport.SubscribeConfig
	h      transport.SubscribeHandler
	closed bool // touched only by the loop
}

func (s *scriptSub) Close() {
	s.closed = true
	s.loop.net.mu.Lock()
	defer s.loop.net.mu.Unlock()
	if s.loop.net.bound[s.cfg.Endpoint] == s {
		delete(s.loop.net.bound, s.cfg.Endpoint)
	}
	if e := s.loop.net.engines[s.cfg.Endpoint]; e != nil && e.sub == s {
		e.sub = nil
	}
}

func (s *scriptSub) do(fn func()) {
	s.loop.Post(func() {
		if !s.closed {
			fn()
		}
	})
}

func (l *scriptLoop) Subscribe(cfg transport.SubscribeConfig, h transport.SubscribeHandler) (transport.Socket, error) {
	n := l.net
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &scriptSub{loop: l, cfg: cfg, h: h}
	if cfg.Bind {
		if n.bound[cfg.Endpoint] != nil {
			return nil, fmt.Errorf("bind %s: %w", cfg.Endpoint, transport.ErrAddressInUse)
		}
		n.bound[cfg.Endpoint] = s
		return s, nil
	}
	e := n.engines[cfg.Endpoint]
	if e == nil {
		e = &mockEngine{net: n, endpoint: cfg.Endpoint, down: true}
		n.engines[cfg.Endpoint] = e
	}
	e.sub = s
	if !e.down {
		s.do(h.OnConnect)
	}
	return s, nil
}

type scriptReplay struct {
	loop   *scriptLoop
	h      transport.ReplayHandler
	e      *mockEngine
	closed bool
}

func (r *scriptReplay) Close() { r.closed = true }

func (r *scriptReplay) Request(start uint64) error {
	r.e.answer(start, func(frames ...[]byte) {
		r.loop.Post(func() {
			if !r.closed {
				r.h.OnReply(frames)
			}
		})
	})
	return nil
}

func (l *scriptLoop) OpenReplay(endpoint string, h transport.ReplayHandler) (transport.ReplaySocket, error) {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	e := l.net.replays[endpoint]
	if e == nil {
		return nil, fmt.Errorf("replay %q: %w", endpoint, transport.ErrEndpoint)
	}
	return &scriptReplay{loop: l, h: h, e: e}, nil
}

// mockEngine publishes and answers replays, with every fault a test may ask for.
// The test may change fields before it waits.
type mockEngine struct {
	net              *scriptNet
	endpoint, replay string
	topic            string
	push             bool // connects to a bound endpoint
	down             bool
	sub              *scriptSub

	next   uint64
	buffer []stored
	size   int // batches kept for replay; 0 = all

	threeFrames bool           // replay replies without a topic
	hang        bool           // replay never answers
	drip        []uint64       // replay answers with these batches again and again instead
	noMarker    bool           // the end marker is lost
	dropReplies map[int]bool   // replies lost on the way, by their number within a request
	stopAfter   int            // replies per request; the rest and the marker are lost; 0 = all
	onRequest   func(s uint64) // called with each request
	requests    []uint64
}

type stored struct {
	seq     uint64
	payload []byte
}

func seqFrame(s uint64) []byte { return binary.BigEndian.AppendUint64(nil, s) }

// record numbers a batch and keeps it for replay without sending it.
func (e *mockEngine) record(payload []byte) uint64 {
	seq := e.next
	e.next++
	e.buffer = append(e.buffer, stored{seq, payload})
	if e.size > 0 && len(e.buffer) > e.size {
		e.buffer = e.buffer[len(e.buffer)-e.size:]
	}
	return seq
}

// publish sends a batch and keeps it.
func (e *mockEngine) publish(payload []byte) uint64 {
	seq := e.record(payload)
	e.send(seq, payload)
	return seq
}

// send sends a message and keeps nothing.
func (e *mockEngine) send(seq uint64, payload []byte) {
	e.sendRaw([]byte(e.topic), seqFrame(seq), payload)
}

func (e *mockEngine) sendRaw(frames ...[]byte) {
	if s := e.subscription(); s != nil && !e.down {
		s.do(func() { s.h.OnMessage(frames) })
	}
	synctest.Wait() // the test and the loops take turns
}

func (e *mockEngine) subscription() *scriptSub {
	e.net.mu.Lock()
	defer e.net.mu.Unlock()
	if e.push {
		return e.net.bound[e.endpoint]
	}
	return e.sub
}

func (e *mockEngine) connect() {
	e.down = false
	if s := e.subscription(); s != nil {
		s.do(s.h.OnConnect)
	}
	synctest.Wait()
}

func (e *mockEngine) disconnect() {
	if s := e.subscription(); s != nil && !e.down {
		s.do(s.h.OnDisconnect)
	}
	e.down = true
	synctest.Wait()
}

// restart is a new run: another sequence from start on, an empty buffer, a new connection.
func (e *mockEngine) restart(start uint64) {
	e.disconnect()
	e.next, e.buffer = start, nil
	e.connect()
}

func (e *mockEngine) answer(start uint64, reply func(...[]byte)) {
	takeTurn(&e.net.mu) // see world.wait
	e.requests = append(e.requests, start)
	if e.onRequest != nil {
		e.onRequest(start)
	}
	if e.hang || e.down {
		return
	}
	if e.drip != nil {
		for i := range 240 { // for two minutes
			b := e.buffer[e.drip[i%len(e.drip)]]
			time.AfterFunc(time.Duration(i)*500*time.Millisecond, func() { reply(nil, []byte(e.topic), seqFrame(b.seq), b.payload) })
		}
		return
	}
	n := 0
	for _, b := range e.buffer {
		if b.seq < start {
			continue
		}
		n++
		if e.stopAfter > 0 && n > e.stopAfter {
			return
		}
		if e.dropReplies[n] {
			continue
		}
		if e.threeFrames {
			reply(nil, seqFrame(b.seq), b.payload)
		} else {
			reply(nil, []byte(e.topic), seqFrame(b.seq), b.payload)
		}
	}
	if e.noMarker {
		return
	}
	if e.threeFrames {
		reply(nil, seqFrame(^uint64(0)), nil)
	} else {
		reply(nil, nil, seqFrame(^uint64(0)), nil)
	}
}
