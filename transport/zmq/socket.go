package zmq

import (
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	zmq4 "github.com/pebbe/zmq4"

	"github.com/kvcluster/kvcluster/transport"
)

// freshFor is how old the last look at the monitors may be for a message to be
// known as one of the connection that stood then: a new connection cannot bring a
// message earlier than reconnectMin after the loss of the old one.
const freshFor = reconnectMin / 2

// receiver gets what a socket receives.
type receiver interface {
	// deliver gets the frames of one message, valid until it returns.
	deliver(frames [][]byte)
	OnConnect()
	OnDisconnect()
}

// writer is a receiver that also sends: it is told when the socket may take more.
type writer interface{ onWritable() }

// socket is a libzmq socket in a loop's epoll set, with its monitor if it has one.
// All of it is touched only by the loop.
//
// A connecting socket keeps the order of messages and connection events: OnConnect
// comes behind the last message of the earlier connection and before the first of
// the new one. libzmq queues both kinds apart, and messages of several connections
// in one pipe, so the border is found by the connection that each message names;
// see drain.
type socket struct {
	loop      *loop
	kind      zmq4.Type
	what      string // for errors and logs: "subscribe tcp://..."
	recv      receiver
	configure func(zs *zmq4.Socket, target string) error
	target    string  // what it binds or connects to
	name      *lookup // where target comes from; nil when it is an address

	zs   *zmq4.Socket
	raw  rawSocket
	fd   int
	slot int32

	monitor     *zmq4.Socket
	monitorRaw  rawSocket
	monitorFD   int
	monitorSlot int32

	queued bool // on loop.ready
	closed bool

	monitored bool
	bound     bool // many peers: events are passed on as they come
	sendOnly  bool // never has messages; its descriptor still asks for attention
	connected bool // connecting only: as of the last event seen
	// pending are connection events that wait behind messages of an earlier
	// connection. Empty or starting with eventConnect.
	pending  []connEvent
	anchored bool
	anchor   anchor // a frame of the connection that messages came through last

	retrying bool            // connecting only: libzmq connects again by itself
	check    transport.Timer // looks whether it does; nil when not set
}

type connEvent uint8

const (
	eventConnect connEvent = iota
	eventDisconnect
)

// socketOptions are the ways in which sockets differ.
type socketOptions struct {
	monitored, bound, sendOnly bool
}

// newSocket makes a socket of the loop; configure must bind or connect it to the
// target.
func (l *loop) newSocket(kind zmq4.Type, what string, e endpoint, recv receiver, o socketOptions, configure func(zs *zmq4.Socket, target string) error) (*socket, error) {
	s := &socket{
		loop: l, kind: kind, what: what, recv: recv, configure: configure, target: e.text,
		monitored: o.monitored, bound: o.bound, sendOnly: o.sendOnly,
		slot: -1, monitorSlot: -1,
	}
	if s.connecting() {
		var err error
		if s.anchor, err = newAnchor(); err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
	}
	if s.connecting() && e.name != "" {
		s.name = &lookup{host: e.name, port: e.port}
		s.lookUp()
	} else if err := s.open(); err != nil {
		s.closed = true
		s.freeAnchor()
		return nil, err
	}
	l.sockets[s] = struct{}{}
	l.count.sockets.Add(1)
	return s, nil
}

// connecting reports a socket with one peer whose connection is followed.
func (s *socket) connecting() bool { return s.monitored && !s.bound }

// open makes the libzmq socket and has it watched.
func (s *socket) open() (err error) {
	defer func() {
		if err != nil {
			s.release()
		}
	}()
	if s.zs, err = s.loop.ctx.NewSocket(s.kind); err != nil {
		s.zs = nil
		return fmt.Errorf("%s: new socket: %w", s.what, err)
	}
	// Whatever goes wrong below, closing must not wait for anything.
	if err = s.zs.SetLinger(0); err != nil {
		return fmt.Errorf("%s: %w", s.what, err)
	}
	if s.raw, err = rawOf(s.zs); err != nil {
		return fmt.Errorf("%s: %w", s.what, err)
	}
	if s.monitored {
		if err = s.openMonitor(); err != nil {
			return fmt.Errorf("%s: monitor: %w", s.what, err)
		}
	}
	if err = s.configure(s.zs, s.target); err != nil {
		return err
	}
	if s.fd, err = s.zs.GetFd(); err == nil {
		s.slot, err = s.loop.watch(s, s.fd, false)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.what, err)
	}
	// Whatever was signalled before it was watched is found by looking once.
	s.loop.enqueue(s)
	return nil
}

const monitorEvents = zmq4.EVENT_HANDSHAKE_SUCCEEDED | zmq4.EVENT_DISCONNECTED | zmq4.EVENT_CONNECT_RETRIED

// openMonitor makes libzmq report the socket's connections through a PAIR socket
// in the same epoll set. There is no other way to learn of them.
func (s *socket) openMonitor() error {
	address := fmt.Sprintf("inproc://monitor-%d", s.loop.net.monitors.Add(1))
	if err := s.zs.Monitor(address, monitorEvents); err != nil {
		return err
	}
	var err error
	if s.monitor, err = s.loop.ctx.NewSocket(zmq4.PAIR); err != nil {
		s.monitor = nil
		return err
	}
	if err = errors.Join(s.monitor.SetLinger(0), s.monitor.SetRcvhwm(0), s.monitor.Connect(address)); err != nil {
		return err
	}
	if s.monitorRaw, err = rawOf(s.monitor); err != nil {
		return err
	}
	// A pipe wakes its reader only after the reader has found it empty once.
	if _, _, err = monitorRecv(s.monitorRaw); err != nil {
		return err
	}
	if s.monitorFD, err = s.monitor.GetFd(); err != nil {
		return err
	}
	s.monitorSlot, err = s.loop.watch(s, s.monitorFD, true)
	return err
}

// readMonitor takes all events off the monitor.
func (s *socket) readMonitor() {
	for !s.closed && s.monitor != nil {
		event, ok, err := monitorRecv(s.monitorRaw)
		if err != nil {
			s.loop.log.Error("monitor failed, connection events are lost", "socket", s.what, "error", err)
			return
		}
		if !ok {
			return
		}
		switch event {
		case zmq4.EVENT_HANDSHAKE_SUCCEEDED:
			s.loop.count.connects.Add(1)
			if s.bound {
				s.recv.OnConnect()
				continue
			}
			s.connected, s.retrying = true, true
			// The pipe may hold messages of the connection before: OnConnect comes when
			// they are out.
			s.pending = append(s.pending, eventConnect)
			s.loop.enqueue(s)
		case zmq4.EVENT_CONNECT_RETRIED:
			s.retrying = true
		case zmq4.EVENT_DISCONNECTED:
			s.checkRetry()
			// On a bound socket this may be a peer that never finished the handshake;
			// its events do not say which peer they are about.
			if !s.bound && !s.connected {
				continue
			}
			s.connected = false
			s.loop.count.disconnects.Add(1)
			if len(s.pending) > 0 {
				s.pending = append(s.pending, eventDisconnect)
				continue
			}
			s.recv.OnDisconnect()
		}
	}
}

// report passes on the first n pending events.
func (s *socket) report(n int) {
	for ; n > 0 && !s.closed; n-- {
		e := s.pending[0]
		s.pending = s.pending[1:]
		if e == eventConnect {
			s.recv.OnConnect()
		} else {
			s.recv.OnDisconnect()
		}
	}
	if len(s.pending) == 0 {
		s.pending = nil
	}
}

// drain receives until the socket is empty or its share of the turn is used up;
// then it reports true.
func (s *socket) drain() (more bool) {
	if s.zs == nil {
		return false // could not be opened again yet
	}
	if s.sendOnly {
		// Asking has libzmq work off what its I/O threads sent: subscriptions of peers
		// and the ends of their connections.
		if _, err := s.zs.GetEvents(); err != nil {
			s.loop.log.Error("socket failed", "socket", s.what, "error", err)
		}
		return false
	}
	for range socketCalls {
		due := len(s.pending)
		n, drained, err := s.loop.batch.recv(s.raw)
		if err != nil {
			s.loop.log.Error("receive failed", "socket", s.what, "error", err)
			return false
		}
		// What was received may come from a connection whose event is unread, unless
		// one stands for sure: as of the last look at the monitors, and too little time
		// has passed for it to be lost and replaced.
		if s.connecting() && (!s.connected || time.Since(s.loop.fresh) > freshFor) {
			s.readMonitor()
		}
		if s.closed {
			return false
		}
		events := len(s.pending)
		s.deliver(n)
		if s.closed {
			return false
		}
		if drained {
			// All messages that came before the events that were known before the receive
			// are out, so these can follow. Later events need another look.
			s.report(max(due-(events-len(s.pending)), 0))
			// The receive call had libzmq work off its commands, so it knows of all the
			// room there is.
			if w, ok := s.recv.(writer); ok && !s.closed {
				w.onWritable()
			}
			return len(s.pending) > 0 && !s.closed
		}
	}
	return true
}

// deliver hands on the first n frames of the loop's batch, and the pending events
// where messages of a new connection begin.
func (s *socket) deliver(n int) {
	l := s.loop
	var messages, bytes uint64
	last := -1
	for i := 0; i < n && !s.closed; {
		if len(s.pending) > 0 && !s.old(i) {
			upTo := 1 + slices.Index(s.pending, eventConnect)
			s.keep(i)
			s.report(upTo)
			if s.closed {
				break
			}
		}
		var next int
		l.frames, next = l.batch.message(l.frames[:0], i)
		for _, f := range l.frames {
			bytes += uint64(len(f))
		}
		messages++
		last, i = next-1, next
		s.recv.deliver(l.frames)
	}
	clear(l.frames)
	if messages > 0 {
		l.count.messages.Add(messages)
		l.count.bytes.Add(bytes)
	}
	if last >= 0 && s.connecting() && !s.closed {
		s.keep(last)
	}
}

// keep makes frame i the measure of old.
func (s *socket) keep(i int) {
	s.anchor.keep(s.loop.batch, i)
	s.anchored = true
}

// old reports whether frame i came through the connection that the last delivered
// message came through.
func (s *socket) old(i int) bool {
	c := s.loop.batch.connection(i)
	return s.anchored && c != unsafe.Pointer(nil) && c == s.anchor.connection()
}

// Close implements transport.Socket.
func (s *socket) Close() {
	if s.closed {
		return
	}
	s.closed = true
	delete(s.loop.sockets, s)
	s.loop.count.sockets.Add(-1)
	s.release()
	s.freeAnchor()
	if s.check != nil {
		s.check.Stop()
	}
}

func (s *socket) freeAnchor() {
	if s.anchor.c != nil {
		s.anchor.free()
		s.anchor.c = nil
	}
}

// release takes the libzmq sockets out of the loop and closes them.
func (s *socket) release() {
	l := s.loop
	l.unwatch(s.slot, s.fd)
	l.unwatch(s.monitorSlot, s.monitorFD)
	s.slot, s.monitorSlot = -1, -1
	var errs []error
	if s.monitor != nil {
		errs = append(errs, s.zs.Monitor("", 0), s.monitor.Close())
		s.monitor = nil
	}
	if s.zs != nil {
		errs = append(errs, s.zs.Close())
		s.zs = nil
	}
	if err := errors.Join(errs...); err != nil {
		l.log.Error("close socket", "socket", s.what, "error", err)
	}
}
