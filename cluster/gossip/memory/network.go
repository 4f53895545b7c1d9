package memory

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// Network connects transports. Its methods may be called from any goroutine.
type Network struct {
	mu struct {
		sync.Mutex
		rng     *rand.Rand
		nodes   map[string]*Transport
		cut     map[pair]bool // one direction
		paused  map[string]bool
		loss    float64
		delay   func(from, to string) time.Duration
		streams map[*stream]struct{}
		stats   Stats
	}
}

type pair struct{ from, to string }

// Stats count what happened on a Network.
type Stats struct{ Packets, Lost, Streams, Refused int }

// New returns a perfect network. The seed decides which packets Loss takes; the order of
// goroutines decides too, so a run cannot be repeated exactly.
func New(seed uint64) *Network {
	n := &Network{}
	n.mu.rng = rand.New(rand.NewPCG(seed, 0))
	n.mu.nodes = map[string]*Transport{}
	n.mu.cut = map[pair]bool{}
	n.mu.paused = map[string]bool{}
	n.mu.streams = map[*stream]struct{}{}
	return n
}

// Transport takes an address, IP:port. It fails when somebody has it.
func (n *Network) Transport(address string) (*Transport, error) {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("memory network: address %q: %w", address, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.nodes[address] != nil {
		return nil, fmt.Errorf("memory network: %s: %w", address, syscall.EADDRINUSE)
	}
	t := newTransport(n, ap)
	n.mu.nodes[address] = t
	return t, nil
}

// Stats returns what has happened so far.
func (n *Network) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.stats
}

// SetLoss makes packets get lost with a probability.
func (n *Network) SetLoss(p float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.loss = p
}

// SetDelay gives every packet a delay; nil ends that. The function is called under the
// network's lock.
func (n *Network) SetDelay(delay func(from, to string) time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.delay = delay
}

// Cut stops everything from one address to another; see CutBoth.
func (n *Network) Cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.cut[pair{from, to}] = true
	n.breakLocked(func(s *stream) bool { return s.joins(from, to) })
}

// CutBoth cuts every address of one side from every one of the other.
func (n *Network) CutBoth(left, right []string) {
	for _, l := range left {
		for _, r := range right {
			n.Cut(l, r)
			n.Cut(r, l)
		}
	}
}

// Heal ends all cuts.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.mu.cut)
}

// Pause keeps everything from and to an address, as if its machine stood still for the
// others. Resume ends that; what was sent meanwhile is lost.
func (n *Network) Pause(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.paused[address] = true
	n.breakLocked(func(s *stream) bool { return s.from == address || s.to == address })
}

// Resume ends Pause.
func (n *Network) Resume(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.mu.paused, address)
}

// Kill takes an address away from its transport, as the death of a process does: its
// streams break and new ones are refused. The address can be taken again. The owner of
// the transport has to be stopped too.
func (n *Network) Kill(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.leaveLocked(n.mu.nodes[address])
}

func (n *Network) leaveLocked(t *Transport) {
	if t == nil || n.mu.nodes[t.address] != t {
		return
	}
	delete(n.mu.nodes, t.address)
	n.breakLocked(func(s *stream) bool { return s.from == t.address || s.to == t.address })
}

func (n *Network) breakLocked(hit func(*stream) bool) {
	for s := range n.mu.streams {
		if hit(s) {
			delete(n.mu.streams, s)
			s.left.Conn.Close()
			s.right.Conn.Close()
		}
	}
}

func (n *Network) openLocked(from, to string) bool {
	return !n.mu.cut[pair{from, to}] && !n.mu.paused[from] && !n.mu.paused[to]
}

// send carries a packet, or loses it.
func (n *Network) send(from *Transport, to string, b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.stats.Packets++
	if n.mu.nodes[from.address] != from || !n.openLocked(from.address, to) ||
		n.mu.loss > 0 && n.mu.rng.Float64() < n.mu.loss {
		n.mu.stats.Lost++
		return
	}
	packet := append([]byte(nil), b...)
	var delay time.Duration
	if n.mu.delay != nil {
		delay = n.mu.delay(from.address, to)
	}
	if delay <= 0 {
		n.deliverLocked(from.address, to, packet)
		return
	}
	time.AfterFunc(delay, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.deliverLocked(from.address, to, packet)
	})
}

func (n *Network) deliverLocked(from, to string, packet []byte) {
	t := n.mu.nodes[to]
	if t == nil || !n.openLocked(from, to) || !t.take(from, packet) {
		n.mu.stats.Lost++
	}
}

// dial opens a stream, or waits for the time-out as a dial into a hole does.
func (n *Network) dial(from *Transport, to string, timeout time.Duration) (net.Conn, error) {
	fail := func(err error) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Addr: addr(to), Err: err}
	}
	n.mu.Lock()
	open := n.openLocked(from.address, to) && n.openLocked(to, from.address)
	switch t := n.mu.nodes[to]; {
	case n.mu.nodes[from.address] != from:
		n.mu.Unlock()
		return fail(net.ErrClosed)
	case open && t != nil:
		defer n.mu.Unlock()
		n.mu.stats.Streams++
		s := n.newStreamLocked(from.address, to)
		select {
		case t.streams <- s.right:
			return s.left, nil
		default: // its backlog is full
			delete(n.mu.streams, s)
			return fail(syscall.ECONNREFUSED)
		}
	case open:
		n.mu.stats.Refused++
		n.mu.Unlock()
		return fail(syscall.ECONNREFUSED)
	}
	n.mu.Unlock()
	t := time.NewTimer(timeout)
	defer t.Stop()
	select {
	case <-t.C:
		return fail(os.ErrDeadlineExceeded)
	case <-from.done:
		return fail(net.ErrClosed)
	}
}
