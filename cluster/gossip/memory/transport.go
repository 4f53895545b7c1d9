package memory

import (
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

const (
	packetBacklog = 256
	streamBacklog = 64
)

// Transport is one node's end of a Network. It implements memberlist.NodeAwareTransport.
type Transport struct {
	net     *Network
	address string
	at      netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
	done    chan struct{}
	once    sync.Once
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

func newTransport(n *Network, at netip.AddrPort) *Transport {
	return &Transport{net: n, address: at.String(), at: at, done: make(chan struct{}),
		packets: make(chan *memberlist.Packet, packetBacklog), streams: make(chan net.Conn, streamBacklog)}
}

// FinalAdvertiseAddr implements memberlist.Transport: the address that was taken,
// whatever the configuration says.
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.at.Addr().AsSlice(), int(t.at.Port()), nil
}

// WriteTo implements memberlist.Transport.
func (t *Transport) WriteTo(b []byte, address string) (time.Time, error) {
	t.net.send(t, address, b)
	return time.Now(), nil
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *Transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

// PacketCh implements memberlist.Transport.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// DialTimeout implements memberlist.Transport.
func (t *Transport) DialTimeout(address string, timeout time.Duration) (net.Conn, error) {
	return t.net.dial(t, address, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *Transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, timeout)
}

// StreamCh implements memberlist.Transport.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport and gives the address free.
func (t *Transport) Shutdown() error {
	t.once.Do(func() {
		close(t.done)
		t.net.mu.Lock()
		defer t.net.mu.Unlock()
		t.net.leaveLocked(t)
	})
	return nil
}

// take queues a packet; it does not wait.
func (t *Transport) take(from string, b []byte) bool {
	select {
	case t.packets <- &memberlist.Packet{Buf: b, From: addr(from), Timestamp: time.Now()}:
		return true
	default:
		return false
	}
}

type addr string

func (addr) Network() string  { return "memory" }
func (a addr) String() string { return string(a) }

// stream is a connection; its ends close together.
type stream struct {
	from, to    string
	left, right *end
}

func (s *stream) joins(a, b string) bool {
	return s.from == a && s.to == b || s.from == b && s.to == a
}

type end struct {
	net.Conn
	stream *stream
	net    *Network
	local  addr
	remote addr
}

func (n *Network) newStreamLocked(from, to string) *stream {
	a, b := net.Pipe()
	s := &stream{from: from, to: to}
	s.left = &end{a, s, n, addr(from), addr(to)}
	s.right = &end{b, s, n, addr(to), addr(from)}
	n.mu.streams[s] = struct{}{}
	return s
}

// Close closes the connection for both ends.
func (e *end) Close() error {
	e.net.mu.Lock()
	delete(e.net.mu.streams, e.stream)
	e.net.mu.Unlock()
	return e.Conn.Close()
}

func (e *end) LocalAddr() net.Addr  { return e.local }
func (e *end) RemoteAddr() net.Addr { return e.remote }
