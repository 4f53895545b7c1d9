package fanout

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/transport/link"
)

// peer is a node that gets frames; this node itself is number 0. A number is never
// given out again, so it indexes what slots know of their receivers.
type peer struct {
	name  string
	index int
	cur   atomic.Pointer[session] // nil = cannot be sent to
	count peerCount
	// filling is how many fills of it are under way, avoid until when it is not asked for
	// dumps if others can be (by Fanout.clock).
	filling, avoid atomic.Int64
}

type peerCount struct {
	sent                sendCount // of writers that do not count by themselves
	control             atomic.Uint64
	fillFrames, filled  atomic.Uint64 // frames, bytes
	fills, failed       atomic.Uint64 // of this target
	sendErrors, session atomic.Uint64
}

// sendCount is what has been sent to a peer as frames of batches.
type sendCount struct{ frames, blocks, bytes atomic.Uint64 }

// self reports whether the peer is this node.
func (p *peer) self() bool { return p.index == 0 }

// up reports whether the peer can be sent to.
func (p *peer) up() bool {
	s := p.cur.Load()
	return s != nil && !s.broken.Load()
}

// session is one outgoing session of a link. What is open at a peer is open in one
// session and in no other.
type session struct {
	id    link.Session
	peer  *peer
	last  atomic.Uint64 // number of the latest frame sent
	acked atomic.Uint64
	// broken: something that was meant for the session has not gone into it, so it
	// proves nothing any more. It is over, or about to be.
	broken atomic.Bool
	// lapsed: the peer does not answer reads from what came by the session.
	lapsed atomic.Bool
	news   watch // acked, broken
}

// sent notes the number of a frame; several writers send to one session.
func (s *session) sent(n uint64) {
	for {
		old := s.last.Load()
		if old >= n || s.last.CompareAndSwap(old, n) {
			return
		}
	}
}

// peers is the table of peers and their sessions.
type peers struct {
	byIndex atomic.Pointer[[]*peer]
	// counted are the sessions that an acknowledgement may have to wait for: those that
	// stand, and those that are over whose receivers may not know it yet.
	counted atomic.Pointer[[]*session]
	mu      struct {
		sync.Mutex
		byName map[string]*peer
	}
}

func (ps *peers) init(self string) {
	ps.mu.byName = map[string]*peer{}
	ps.byIndex.Store(&[]*peer{})
	ps.counted.Store(&[]*session{})
	ps.get(self)
}

// get returns the peer of a name; it makes a new one.
func (ps *peers) get(name string) *peer {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.getLocked(name)
}

func (ps *peers) getLocked(name string) *peer {
	p := ps.mu.byName[name]
	if p == nil {
		all := *ps.byIndex.Load()
		p = &peer{name: name, index: len(all)}
		if p.self() {
			p.cur.Store(&session{peer: p})
		}
		all = append(slices.Clip(all), p)
		ps.mu.byName[name] = p
		ps.byIndex.Store(&all)
	}
	return p
}

func (ps *peers) all() []*peer { return *ps.byIndex.Load() }
func (ps *peers) self() *peer  { return (*ps.byIndex.Load())[0] }

func (ps *peers) findLocked(id link.Session) *session {
	for _, s := range *ps.counted.Load() {
		if s.id == id {
			return s
		}
	}
	return nil
}

func (ps *peers) forgetLocked(s *session) {
	rest := slices.DeleteFunc(slices.Clone(*ps.counted.Load()), func(o *session) bool { return o == s })
	ps.counted.Store(&rest)
}

// OnPeer is the outgoing half of link.Handler: a session stands, or is over.
func (f *Fanout) OnPeer(id link.Session, up bool) {
	ps := &f.peers
	ps.mu.Lock()
	p := ps.getLocked(id.Peer)
	if up {
		s := &session{id: id, peer: p}
		all := append(slices.Clip(*ps.counted.Load()), s)
		ps.counted.Store(&all)
		p.cur.Store(s)
		p.count.session.Add(1)
	} else if s := ps.findLocked(id); s != nil {
		// First broken, then gone: who finds no session finds one to wait for.
		s.broken.Store(true)
		p.cur.CompareAndSwap(s, nil)
		if s.lapsed.Load() {
			ps.forgetLocked(s)
		}
		s.news.notify()
	}
	ps.mu.Unlock()
	f.wakeUp()
}

// OnAck is the outgoing half of link.Handler: the peer has applied all up to n.
func (f *Fanout) OnAck(id link.Session, n uint64) {
	ps := &f.peers
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p := ps.mu.byName[id.Peer]; p != nil {
		if s := p.cur.Load(); s != nil && s.id == id {
			s.acked.Store(n)
			s.news.notify()
			if f.reporting.Load() {
				f.wakeUp()
			}
		}
	}
}

// OnLapse is the outgoing half of link.Handler: the peer does not answer from what
// came by the session, so nobody needs to wait for it; or is about to answer again.
func (f *Fanout) OnLapse(id link.Session, lapsed bool) {
	ps := &f.peers
	ps.mu.Lock()
	defer ps.mu.Unlock()
	s := ps.findLocked(id)
	if s == nil {
		return
	}
	s.lapsed.Store(lapsed)
	if lapsed && s.peer.cur.Load() != s {
		ps.forgetLocked(s)
	}
}

// watch lets any number of goroutines wait for the next change of something.
type watch struct {
	mu sync.Mutex
	ch chan struct{} // closed by the next notify; nil = nobody waits
}

// next returns a channel that the next notify closes. Take it before looking at the
// thing, so that no change is missed.
func (w *watch) next() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch == nil {
		w.ch = make(chan struct{})
	}
	return w.ch
}

func (w *watch) notify() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ch != nil {
		close(w.ch)
		w.ch = nil
	}
}
