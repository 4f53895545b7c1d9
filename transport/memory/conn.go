package memory

import (
	"slices"
	"time"
)

// role says what an end is; only two of a pair talk.
type role uint8

const (
	rolePub role = iota
	roleSub
	roleRouter
	roleDealer
)

func (r role) fits(other role) bool {
	return r == rolePub && other == roleSub || r == roleSub && other == rolePub ||
		r == roleRouter && other == roleDealer || r == roleDealer && other == roleRouter
}

// end is one socket at one address. Everything but the constants is guarded by
// Network.mu.
type end struct {
	role role
	sock *socket    // for SUB and DEALER: where its events go
	pub  *publisher // for PUB and ROUTER

	at     *address
	dialer bool
	closed bool
	conns  []*conn     // a dialer has at most one
	redial *time.Timer // set while a dialer waits to try

	waiting   []uint64 // DEALER: requests without a peer
	topic     string   // SUB
	highWater int      // SUB and PUB, in messages
}

// conn is a connection: two links, one a direction.
type conn struct {
	net            *Network
	at             *address
	dialer, binder *end
	up             bool
	toIndexer      link
	toEngine       link
	activeAt       time.Time   // when the subscription reaches the publisher
	expiry         *time.Timer // runs while frozen
}

// indexer is the end that has a loop, engine the other.
func (c *conn) indexer() *end {
	if c.dialer.sock != nil {
		return c.dialer
	}
	return c.binder
}

func (c *conn) engine() *end {
	if c.dialer.sock != nil {
		return c.binder
	}
	return c.dialer
}

// link is what is on its way in one direction, in order.
type link struct {
	c        *conn
	dir      Direction
	items    []item
	messages int // of the items
	timer    *time.Timer
}

// item is a message, or the end of a connection that was closed in good order.
type item struct {
	at     time.Time
	frames [][]byte // nil = the end
}

// dialLocked connects e if there is a peer.
func (n *Network) dialLocked(e *end) {
	a := e.at
	b := a.bound
	if e.closed || len(e.conns) > 0 || b == nil || a.faults.cut || a.faults.frozen || !e.role.fits(b.role) {
		return
	}
	c := &conn{net: n, at: a, dialer: e, binder: b, up: true, activeAt: time.Now().Add(n.cfg.SubscribeDelay)}
	c.toIndexer = link{c: c, dir: ToIndexer}
	c.toEngine = link{c: c, dir: ToEngine}
	e.conns = append(e.conns, c)
	b.conns = append(b.conns, c)
	a.conns = append(a.conns, c)
	c.indexer().sock.push(event{kind: eventConnect})
	if e.role == roleDealer {
		for _, start := range e.waiting {
			c.toEngine.sendLocked(requestFrames(start))
		}
		e.waiting = nil
	}
}

// dialLaterLocked has e try after the reconnect time, once.
func (n *Network) dialLaterLocked(e *end) {
	if e.closed || e.redial != nil {
		return
	}
	e.redial = time.AfterFunc(n.cfg.Reconnect, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		e.redial = nil
		n.dialLocked(e)
	})
}

// dropLocked ends a connection: what is on its way is lost, what has arrived is
// not.
func (c *conn) dropLocked() {
	if !c.up {
		return
	}
	c.up = false
	c.toIndexer.clearLocked()
	c.toEngine.clearLocked()
	if c.expiry != nil {
		c.expiry.Stop()
	}
	is := func(x *conn) bool { return x == c }
	c.dialer.conns = slices.DeleteFunc(c.dialer.conns, is)
	c.binder.conns = slices.DeleteFunc(c.binder.conns, is)
	c.at.conns = slices.DeleteFunc(c.at.conns, is)
	c.indexer().sock.push(event{kind: eventDisconnect})
	c.net.dialLaterLocked(c.dialer)
}

// closeLocked takes an end off its address. A publisher that closes still sends
// what is on its way.
func (n *Network) closeLocked(e *end) {
	if e.closed {
		return
	}
	e.closed = true
	a := e.at
	if a == nil {
		return // was never bound
	}
	if a.bound == e {
		a.bound = nil
	}
	a.dialers = slices.DeleteFunc(a.dialers, func(x *end) bool { return x == e })
	if e.redial != nil {
		e.redial.Stop()
	}
	for _, c := range slices.Clone(e.conns) {
		if e == c.engine() {
			c.toIndexer.endLocked()
		} else {
			c.dropLocked()
		}
	}
}

// sendLocked puts a message on its way; the frames are the link's from now on.
func (l *link) sendLocked(frames [][]byte) {
	f := &l.c.at.faults
	if drop := f.drop[l.dir]; drop != nil && drop(frames) {
		return
	}
	l.addLocked(item{frames: frames})
	l.messages++
	l.pumpLocked()
}

// endLocked ends the connection behind what is on its way.
func (l *link) endLocked() {
	l.addLocked(item{})
	l.pumpLocked()
}

func (l *link) addLocked(it item) {
	it.at = time.Now().Add(l.c.at.faults.delay[l.dir])
	// A delay that became shorter must not change the order.
	if n := len(l.items); n > 0 && it.at.Before(l.items[n-1].at) {
		it.at = l.items[n-1].at
	}
	l.items = append(l.items, it)
}

// pumpLocked delivers what is due and sets the timer for the rest.
func (l *link) pumpLocked() {
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	for len(l.items) > 0 && !l.c.at.faults.frozen {
		it := l.items[0]
		if d := time.Until(it.at); d > 0 {
			l.timer = time.AfterFunc(d, func() {
				l.c.net.mu.Lock()
				defer l.c.net.mu.Unlock()
				l.pumpLocked()
			})
			return
		}
		l.items[0] = item{}
		l.items = l.items[1:]
		if it.frames == nil {
			l.c.dropLocked()
			return
		}
		l.messages--
		l.arriveLocked(it.frames)
	}
}

func (l *link) arriveLocked(frames [][]byte) {
	if l.dir == ToEngine {
		l.c.engine().pub.requestLocked(l.c, frames)
		return
	}
	s := l.c.indexer().sock
	for _, f := range frames {
		if int64(len(f)) > s.maxMessage {
			l.c.dropLocked()
			return
		}
	}
	s.push(event{kind: eventMessage, frames: frames})
}

func (l *link) clearLocked() {
	l.items, l.messages = nil, 0
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
}
