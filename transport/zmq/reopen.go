package zmq

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

const (
	// reopenAfter is how long after the loss of a connection libzmq must have begun to
	// connect again. It begins at once or never.
	reopenAfter = time.Second
	// lookupEvery is how often a name is looked up while there is no connection, and
	// lookupFor how long that may take.
	lookupEvery = reconnectMax
	lookupFor   = 10 * time.Second
)

// checkRetry is called at the loss of a connection, or of an attempt at one.
//
// libzmq gives up a connecting socket for good when the peer breaks the protocol:
// one frame above the limit, or a moment in which something else listened on the
// port, and the stream would be dead until a restart. Such a socket is replaced.
func (s *socket) checkRetry() {
	if s.bound {
		return
	}
	s.retrying = false
	s.checkAfter(reopenAfter)
}

func (s *socket) checkAfter(d time.Duration) {
	if s.check == nil {
		s.check = s.loop.AfterFunc(d, s.reopen)
	}
}

// reopen sees to a socket that may have no future as it is: libzmq has given up, or
// the engine's name has moved to another address.
func (s *socket) reopen() {
	s.check = nil
	if s.zs != nil {
		s.readMonitor()
		if s.closed || s.connected || s.check != nil {
			return
		}
	}
	switch {
	case s.name != nil:
		s.lookUp()
	case s.zs == nil || !s.retrying:
		s.replace()
	}
}

// replace makes a new libzmq socket in place of the old one.
func (s *socket) replace() {
	// What came before the loss still counts.
	for s.drain() {
	}
	if s.closed {
		return
	}
	s.release()
	s.anchored = false
	if err := s.open(); err != nil {
		s.loop.log.Error("open socket again", "socket", s.what, "error", err, "retry_in", reopenAfter)
		s.checkAfter(reopenAfter)
	}
}

// lookup is the name of a host and what is known of it. libzmq would look it up on
// an I/O thread, and a name server that does not answer would hold up every other
// stream of that thread.
type lookup struct {
	host, port string
	address    netip.Addr // the one in use
	failed     bool       // the last time; it is logged once
}

// lookUp asks for the addresses of the socket's host; found comes with the answer.
func (s *socket) lookUp() {
	l := s.loop
	if l.closing {
		return
	}
	host := s.name.host
	l.lookups.wait.Go(func() {
		ctx, cancel := context.WithTimeout(l.lookups.ctx, lookupFor)
		defer cancel()
		addresses, err := l.net.cfg.Resolve(ctx, host)
		if err == nil && len(addresses) == 0 {
			err = fmt.Errorf("look up %s: no IPv4 address", host)
		}
		l.Post(func() { s.found(addresses, err) }) // refused when nobody needs it any more
	})
}

// found goes on with the addresses of the socket's host.
func (s *socket) found(addresses []netip.Addr, err error) {
	if s.closed || s.connected {
		return
	}
	// Until a connection stands the name may move.
	s.checkAfter(lookupEvery)
	n := s.name
	if err != nil {
		if !n.failed {
			s.loop.log.Warn("host is not known, it is tried again", "socket", s.what, "error", err, "retry_in", lookupEvery)
		}
		n.failed = true
	} else {
		n.failed = false
		if !slices.Contains(addresses, n.address) {
			n.address = addresses[0]
			s.target = "tcp://" + n.address.Unmap().String() + ":" + n.port
			s.replace()
			return
		}
	}
	if n.address.IsValid() && (s.zs == nil || !s.retrying) {
		s.replace()
	}
}
