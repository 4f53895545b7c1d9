package gossip

import (
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// maxPending bounds the streams whose first byte has not come yet.
const maxPending = 128

// mux stands between memberlist and its transport and takes the greetings out of the
// incoming streams. Packets pass by.
type mux struct {
	memberlist.NodeAwareTransport
	greet   func(net.Conn) // gets the whole stream; closes nothing
	timeout time.Duration
	streams chan net.Conn
	stop    chan struct{}
	once    sync.Once
	wg      sync.WaitGroup

	mu struct {
		sync.Mutex
		pending map[net.Conn]struct{}
	}
}

func newMux(inner memberlist.NodeAwareTransport, timeout time.Duration, greet func(net.Conn)) *mux {
	m := &mux{NodeAwareTransport: inner, greet: greet, timeout: timeout,
		streams: make(chan net.Conn), stop: make(chan struct{})}
	m.mu.pending = map[net.Conn]struct{}{}
	m.wg.Go(m.accept)
	return m
}

// StreamCh implements memberlist.Transport.
func (m *mux) StreamCh() <-chan net.Conn { return m.streams }

func (m *mux) accept() {
	for {
		select {
		case c := <-m.NodeAwareTransport.StreamCh():
			if !m.note(c) {
				_ = c.Close()
				continue
			}
			m.wg.Go(func() { m.sort(c) })
		case <-m.stop:
			return
		}
	}
}

func (m *mux) note(c net.Conn) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.mu.pending) >= maxPending {
		return false
	}
	m.mu.pending[c] = struct{}{}
	return true
}

func (m *mux) forget(c net.Conn) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mu.pending, c)
}

// sort looks at the first byte of a stream.
func (m *mux) sort(c net.Conn) {
	defer m.forget(c)
	var first [1]byte
	_ = c.SetDeadline(time.Now().Add(m.timeout))
	if n, err := c.Read(first[:]); n == 0 || err != nil {
		_ = c.Close()
		return
	}
	whole := &peeked{Conn: c, first: first[:]}
	if first[0] == greetingMagic[0] {
		m.greet(whole)
		_ = c.Close()
		return
	}
	select {
	case m.streams <- whole:
	case <-m.stop:
		_ = c.Close()
	}
}

// Shutdown implements memberlist.Transport. Streams are taken until the inner transport
// has stopped, because it waits to hand them over.
func (m *mux) Shutdown() error {
	err := m.NodeAwareTransport.Shutdown()
	m.once.Do(func() { close(m.stop) })
	m.mu.Lock()
	for c := range m.mu.pending {
		_ = c.Close()
	}
	m.mu.Unlock()
	m.wg.Wait()
	return err
}

// peeked is a stream with its first byte put back. Reads come from one goroutine.
type peeked struct {
	net.Conn
	first []byte
}

func (p *peeked) Read(b []byte) (int, error) {
	if len(p.first) > 0 && len(b) > 0 {
		n := copy(b, p.first)
		p.first = p.first[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}

// plain makes a transport that knows no node names one that does.
type plain struct{ memberlist.Transport }

func (t plain) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, a.Addr)
}

func (t plain) DialAddressTimeout(a memberlist.Address, d time.Duration) (net.Conn, error) {
	return t.DialTimeout(a.Addr, d)
}
