package link

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/transport"
)

// Hub has the links of one node to all its peers. All methods may be called from
// any goroutine, and none but Call, Listen and Run waits for anything.
//
// Locks, in the order in which they are taken:
//
//	turn        one thing happens at a time: a message, a tick. Handler runs under it
//	peer.out    the outgoing machine of one peer; Handler does not run under it
//	peer.acks   what the user has acknowledged
//	mu, calls   peers, running calls
type Hub struct {
	cfg     Config
	net     transport.MeshNetwork
	handler Handler
	log     *slog.Logger
	tag     uint32
	start   time.Time
	wake    chan struct{}
	ready   chan struct{} // closed when Run begins
	running atomic.Bool
	news    atomic.Bool                      // a tick has something to do
	peers   atomic.Pointer[map[string]*peer] // replaced under mu
	calls   *calls

	attempts atomic.Uint64 // openings of sessions

	turn struct {
		sync.Mutex
		granted uint64 // sessions
		events  []outEvent
		ack     []byte
		odd     map[string]bool // what has been logged once, by peer and reason
		leaving []*peer         // no peers any more, but their last sessions may not have lapsed
	}

	mu struct {
		sync.Mutex
		mesh    transport.Mesh // nil before Listen and after Run
		removed []*peer        // their machines must be stopped
		started bool
		ended   bool
	}

	count struct {
		strangers, refused, malformed atomic.Uint64
	}
}

// peer is a node that SetPeers named.
type peer struct {
	name     string
	endpoint string
	tx       transmit
	dirty    atomic.Bool // out has something to flush

	in *incoming // under turn

	// live is the current incoming session, for those who do not have the turn.
	live atomic.Pointer[liveSession]

	out struct {
		sync.Mutex
		*outgoing
	}
	acks struct {
		sync.Mutex
		session   Session
		delivered uint64
		applied   uint64
		dirty     bool
		at        clock // when it was last acknowledged
	}

	serving atomic.Int64 // calls
}

type liveSession struct {
	session Session
	until   atomic.Int64 // clock; 0 = not current
}

// New returns a hub that holds nothing yet.
func New(cfg Config, net transport.MeshNetwork, handler Handler) (*Hub, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	h := &Hub{
		cfg: cfg, net: net, handler: handler,
		log:   cfg.Logger.With("link", cfg.Name),
		tag:   clusterTag(cfg.Cluster),
		wake:  make(chan struct{}, 1),
		ready: make(chan struct{}),
		// So that a clock never is 0.
		start: time.Now().Add(-1),
	}
	h.turn.odd = map[string]bool{}
	h.peers.Store(&map[string]*peer{})
	h.calls = newCalls(h)
	return h, nil
}

func (h *Hub) now() clock { return time.Since(h.start) }

// Listen binds and returns the address in use. What comes in waits for Run, so a hub
// that is never run must not listen.
func (h *Hub) Listen() (endpoint string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.ended {
		return "", fmt.Errorf("link %s: listen: %w", h.cfg.Name, ErrClosed)
	}
	if h.mu.mesh != nil {
		return h.mu.mesh.Endpoint(), nil
	}
	mesh, err := h.net.NewMesh(transport.MeshConfig{
		Name: h.cfg.Name, Boot: h.cfg.Boot, Bind: h.cfg.Bind, Handler: h.receive, Logger: h.cfg.Logger,
		// One payload alone is the largest message.
		MaxMessage: int64(h.cfg.MaxPayload) + packBytes,
	})
	if err != nil {
		return "", fmt.Errorf("link %s: %w", h.cfg.Name, err)
	}
	for _, p := range *h.peers.Load() {
		if err := mesh.SetPeer(p.name, p.endpoint); err != nil {
			mesh.Close()
			return "", fmt.Errorf("link %s: %w", h.cfg.Name, err)
		}
	}
	h.mu.mesh = mesh
	return mesh.Endpoint(), nil
}

// Run works until ctx is done; it listens if Listen was not called. When it returns
// the handler is no longer called, calls have ended and the address is free. A hub
// can be run once.
func (h *Hub) Run(ctx context.Context) error {
	h.mu.Lock()
	started := h.mu.started
	h.mu.started = true
	h.mu.Unlock()
	if started {
		return fmt.Errorf("link %s: run: %w", h.cfg.Name, ErrClosed)
	}
	if _, err := h.Listen(); err != nil {
		return err
	}
	h.running.Store(true)
	close(h.ready)
	timer := time.NewTimer(0)
	defer timer.Stop()
	every := tickEvery(&h.cfg)
	for next := clock(0); ctx.Err() == nil; {
		now := h.now()
		soon := (now/every + 1) * every
		if h.news.Swap(false) || now >= next {
			next = max(soon, h.tick())
		}
		due, sent := h.flush()
		if sent {
			next = min(next, soon)
		}
		timer.Reset(max(min(next, due)-h.now(), 0))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-h.wake:
			// What comes soon after the last goes together. The first goes at once.
			if rest := now + h.cfg.FlushDelay - h.now(); sent && rest > 0 {
				timer.Reset(rest)
				select {
				case <-ctx.Done():
				case <-timer.C:
				}
			}
		}
	}
	h.running.Store(false)
	h.mu.Lock()
	h.mu.ended = true
	mesh := h.mu.mesh
	h.mu.mesh = nil
	h.mu.Unlock()
	h.calls.end()
	return mesh.Close()
}

// tickSoon has Run look after the links now.
func (h *Hub) tickSoon() {
	h.news.Store(true)
	h.signal()
}

func (h *Hub) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// transmitTo sends to a peer as far as there is a mesh.
func (h *Hub) transmitTo(name string) transmit {
	return func(parts ...[]byte) bool {
		h.mu.Lock()
		mesh := h.mu.mesh
		h.mu.Unlock()
		return mesh != nil && mesh.Send(name, parts...)
	}
}

// SetPeers says who the peers are and where they listen. Sessions with those that
// are no longer named end; those whose endpoint has changed go on. A bad name or
// endpoint is refused, and then nothing changes.
func (h *Hub) SetPeers(peers map[string]string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.ended {
		return fmt.Errorf("link %s: set peers: %w", h.cfg.Name, ErrClosed)
	}
	old := *h.peers.Load()
	next := make(map[string]*peer, len(peers))
	for name, endpoint := range peers {
		p := old[name]
		if name == h.cfg.Name {
			continue
		}
		if err := transport.CheckNodeName(name); err != nil {
			return fmt.Errorf("link %s: set peers: %w", h.cfg.Name, err)
		}
		if endpoint == "" {
			return fmt.Errorf("link %s: set peers: %w: %s has no endpoint", h.cfg.Name, transport.ErrEndpoint, name)
		}
		if p == nil {
			p = h.newPeer(name)
		}
		next[name] = p
	}
	if mesh := h.mu.mesh; mesh != nil {
		set := map[string]string{}
		for name := range next {
			if err := mesh.SetPeer(name, peers[name]); err != nil {
				for name, endpoint := range set {
					mesh.SetPeer(name, endpoint)
				}
				return fmt.Errorf("link %s: set peers: %w", h.cfg.Name, err)
			}
			set[name] = next[name].endpoint
		}
		for name := range old {
			if next[name] == nil {
				mesh.SetPeer(name, "")
			}
		}
	}
	for name, p := range next {
		p.endpoint = peers[name]
	}
	for name, p := range old {
		if next[name] == nil {
			h.mu.removed = append(h.mu.removed, p)
		}
	}
	h.peers.Store(&next)
	h.tickSoon()
	return nil
}

func (h *Hub) newPeer(name string) *peer {
	p := &peer{name: name, tx: h.transmitTo(name)}
	p.in = newIncoming(&h.cfg, name, &h.turn.granted, &inSink{h, p})
	p.out.outgoing = newOutgoing(&h.cfg, name, &h.attempts)
	p.out.rider = func(boot uint64) (ack, bool) { return p.dueAck(&h.cfg, h.now(), boot) }
	p.out.begin(0)
	return p
}

// Send gives a frame to an outgoing session and returns its number. The hub keeps
// payload until the peer has applied it: it must not be changed any more, and may be
// given to several peers. ErrDown: the session is over. ErrFull: it is over now.
func (h *Hub) Send(s Session, payload []byte) (uint64, error) {
	p := (*h.peers.Load())[s.Peer]
	if p == nil {
		return 0, fmt.Errorf("send to %s: %w", s.Peer, ErrPeer)
	}
	if len(payload) > h.cfg.MaxPayload {
		return 0, fmt.Errorf("send to %s: %w: %d bytes, at most %d", s.Peer, ErrTooLarge, len(payload), h.cfg.MaxPayload)
	}
	p.out.Lock()
	n, err := p.out.send(h.now(), s, payload)
	p.out.Unlock()
	if err != nil {
		h.tickSoon() // there may be news for the handler
		return 0, fmt.Errorf("send to %s: %w", s.Peer, err)
	}
	if !p.dirty.Swap(true) {
		h.signal()
	}
	return n, nil
}

// Ack says that every frame of an incoming session up to n has been applied. What
// was not delivered, or belongs to a session that is over, is not acknowledged.
func (h *Hub) Ack(s Session, n uint64) {
	p := (*h.peers.Load())[s.Peer]
	if p == nil {
		return
	}
	p.acks.Lock()
	defer p.acks.Unlock()
	if p.acks.session != s || n > p.acks.delivered || n <= p.acks.applied {
		return
	}
	p.acks.applied = n
	if !p.acks.dirty {
		p.acks.dirty = true
		h.signal()
	}
}

// Current reports that an incoming session is neither over nor silent at this
// moment: whatever its sender acknowledged without us, it did later. For the answer
// to a read it must be asked after the reading.
func (h *Hub) Current(s Session) bool {
	p := (*h.peers.Load())[s.Peer]
	if p == nil {
		return false
	}
	l := p.live.Load()
	return l != nil && l.session == s && h.now() <= clock(l.until.Load())
}
