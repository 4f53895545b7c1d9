package memory

import (
	"encoding/binary"
	"fmt"

	"github.com/kvcluster/kvcluster/transport"
)

// Defaults of the real transport.
const (
	defaultReceiveHighWater = 200_000
	defaultMaxMessage       = 64 << 20
	defaultSendHighWater    = 100_000
	defaultReplayBuffer     = 10_000
)

// spoiled is what frames are overwritten with when their handler has returned.
const spoiled = 0xdb

type eventKind uint8

const (
	eventMessage eventKind = iota
	eventConnect
	eventDisconnect
)

type event struct {
	kind   eventKind
	frames [][]byte
}

// receiver gets the events of a socket, on its loop.
type receiver interface {
	deliver(frames [][]byte)
	OnConnect()
	OnDisconnect()
}

// socket is an end on a loop. Messages and connection events wait in one inbox, in
// the order in which they happened.
type socket struct {
	loop       *loop
	what       string
	recv       receiver
	maxMessage int64
	end        *end
	closed     bool // touched only by the loop

	inbox struct { // guarded by loop.mu
		events   []event
		messages int
		queued   bool // on loop.mu.ready
		closed   bool
	}
}

func (l *loop) newSocket(what string, r role, maxMessage int64, recv receiver) *socket {
	s := &socket{loop: l, what: what, recv: recv, maxMessage: maxMessage}
	s.end = &end{role: r, sock: s}
	return s
}

// opened counts a socket that is at its address.
func (s *socket) opened() {
	s.loop.sockets[s] = struct{}{}
	s.loop.count.sockets.Add(1)
}

// push adds an event to the inbox. Any goroutine may call it.
func (s *socket) push(e event) {
	l := s.loop
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.inbox.closed {
		return
	}
	s.inbox.events = append(s.inbox.events, e)
	if e.kind == eventMessage {
		s.inbox.messages++
	}
	if !s.inbox.queued {
		s.inbox.queued = true
		l.mu.ready = append(l.mu.ready, s)
		l.signal()
	}
}

// waiting is how many messages the handler has not had yet.
func (s *socket) waiting() int {
	s.loop.mu.Lock()
	defer s.loop.mu.Unlock()
	return s.inbox.messages
}

// drain handles the events of the inbox, up to a share.
func (s *socket) drain() {
	l := s.loop
	for range share {
		l.mu.Lock()
		if s.inbox.closed || len(s.inbox.events) == 0 {
			s.inbox.queued = false
			l.mu.Unlock()
			return
		}
		e := s.inbox.events[0]
		s.inbox.events[0] = event{}
		s.inbox.events = s.inbox.events[1:]
		if e.kind == eventMessage {
			s.inbox.messages--
		}
		l.mu.Unlock()
		s.handle(e)
	}
	l.mu.Lock()
	l.mu.ready = append(l.mu.ready, s)
	l.mu.Unlock()
}

func (s *socket) handle(e event) {
	c := &s.loop.count
	switch e.kind {
	case eventConnect:
		c.connects.Add(1)
		s.recv.OnConnect()
	case eventDisconnect:
		c.disconnects.Add(1)
		s.recv.OnDisconnect()
	case eventMessage:
		c.messages.Add(1)
		for _, f := range e.frames {
			c.bytes.Add(uint64(len(f)))
		}
		s.recv.deliver(e.frames)
		for _, f := range e.frames {
			for i := range f {
				f[i] = spoiled
			}
		}
	}
}

// Close implements transport.Socket.
func (s *socket) Close() {
	if s.closed {
		return
	}
	s.closed = true
	delete(s.loop.sockets, s)
	s.loop.count.sockets.Add(-1)
	s.loop.mu.Lock()
	s.inbox.closed = true
	s.inbox.events = nil
	s.loop.mu.Unlock()

	n := s.loop.net
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closeLocked(s.end)
}

// subscription passes messages to the handler as they are.
type subscription struct{ transport.SubscribeHandler }

func (s subscription) deliver(frames [][]byte) { s.OnMessage(frames) }

// Subscribe implements transport.Loop.
func (l *loop) Subscribe(cfg transport.SubscribeConfig, h transport.SubscribeHandler) (transport.Socket, error) {
	what := "subscribe " + cfg.Endpoint
	if l.closing {
		return nil, fmt.Errorf("%s: %w", what, transport.ErrClosed)
	}
	if err := checkName(cfg.Endpoint, cfg.Bind); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if cfg.HighWater < 0 || cfg.MaxMessage < 0 {
		return nil, fmt.Errorf("%s: HighWater %d and MaxMessage %d must not be negative", what, cfg.HighWater, cfg.MaxMessage)
	}
	if cfg.HighWater == 0 {
		cfg.HighWater = defaultReceiveHighWater
	}
	if cfg.MaxMessage == 0 {
		cfg.MaxMessage = defaultMaxMessage
	}
	s := l.newSocket(what, roleSub, cfg.MaxMessage, subscription{h})
	s.end.topic, s.end.highWater = cfg.Topic, cfg.HighWater
	if err := s.attach(cfg.Endpoint, cfg.Bind); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *socket) attach(name string, bind bool) error {
	n := s.loop.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if bind {
		if err := n.bindLocked(name, s.end); err != nil {
			return err
		}
	} else {
		n.connectLocked(name, s.end)
	}
	s.opened()
	return nil
}

// replay implements transport.ReplaySocket.
type replay struct {
	*socket
	transport.ReplayHandler
}

// deliver takes off the empty delimiter.
func (r *replay) deliver(frames [][]byte) {
	if len(frames) > 0 && len(frames[0]) == 0 {
		frames = frames[1:]
	}
	r.OnReply(frames)
}

// OpenReplay implements transport.Loop.
func (l *loop) OpenReplay(name string, h transport.ReplayHandler) (transport.ReplaySocket, error) {
	what := "replay " + name
	if l.closing {
		return nil, fmt.Errorf("%s: %w", what, transport.ErrClosed)
	}
	if err := checkName(name, false); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	r := &replay{ReplayHandler: h}
	r.socket = l.newSocket(what, roleDealer, defaultMaxMessage, r)
	if err := r.attach(name, false); err != nil {
		return nil, err
	}
	return r, nil
}

func sequence(seq uint64) []byte {
	return binary.BigEndian.AppendUint64(nil, seq)
}

func requestFrames(start uint64) [][]byte { return [][]byte{{}, sequence(start)} }

// Request implements transport.ReplaySocket.
func (r *replay) Request(start uint64) error {
	if r.closed {
		return fmt.Errorf("%s: request: %w", r.what, transport.ErrClosed)
	}
	n := r.loop.net
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(r.end.conns) == 0 {
		r.end.waiting = append(r.end.waiting, start)
		return nil
	}
	r.end.conns[0].toEngine.sendLocked(requestFrames(start))
	return nil
}
