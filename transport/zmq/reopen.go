package zmq

import "time"

// reopenAfter is how long after the loss of a connection libzmq must have begun to
// connect again. It begins at once or never.
const reopenAfter = time.Second

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
	if s.check == nil {
		s.check = s.loop.AfterFunc(reopenAfter, s.reopen)
	}
}

// reopen replaces the libzmq socket if it has given up.
func (s *socket) reopen() {
	s.check = nil
	if s.zs != nil {
		s.readMonitor()
		if s.closed || s.connected || s.retrying || s.check != nil {
			return
		}
		// What came before the loss still counts.
		for s.drain() {
		}
		if s.closed {
			return
		}
		s.release()
	}
	s.anchored = false
	if err := s.open(); err != nil {
		s.loop.log.Error("open socket again", "socket", s.what, "error", err, "retry_in", reopenAfter)
		s.check = s.loop.AfterFunc(reopenAfter, s.reopen)
	}
}
