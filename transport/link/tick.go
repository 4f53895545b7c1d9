package link

import "slices"

// tick looks after all links, and tells what they have to tell. It returns when that is
// due again if nothing happens until then.
func (h *Hub) tick() (next clock) {
	h.turn.Lock()
	defer h.turn.Unlock()
	h.mu.Lock()
	removed := h.mu.removed
	h.mu.removed = nil
	h.mu.Unlock()
	now := h.now()
	next = (now/h.cfg.Idle + 1) * h.cfg.Idle
	for _, p := range *h.peers.Load() {
		p.out.Lock()
		p.out.tick(now, p.tx)
		next = min(next, p.out.due(now))
		h.tell(p)
		p.in.tick(now)
		if until := p.in.currentUntil(); until != 0 {
			next = min(next, until)
		}
		p.publish()
	}
	for _, p := range removed {
		p.out.Lock()
		p.out.stop(now)
		h.tell(p)
		p.in.gone()
		p.live.Store(nil)
	}
	h.turn.leaving = append(h.turn.leaving, removed...)
	h.turn.leaving = slices.DeleteFunc(h.turn.leaving, func(p *peer) bool {
		p.out.Lock()
		p.out.tick(now, p.tx) // an idle one sends nothing
		done := len(p.out.fading) == 0
		h.tell(p)
		return done
	})
	if len(h.turn.leaving) > 0 {
		return now
	}
	return next
}

// tell passes on the events of an outgoing machine. It is called with its lock and
// gives that back.
func (h *Hub) tell(p *peer) {
	h.turn.events = append(h.turn.events[:0], p.out.events...)
	p.out.events = p.out.events[:0]
	p.out.Unlock()
	for _, e := range h.turn.events {
		switch e.kind {
		case outPeerUp:
			h.log.Info("session opened", "session", e.session)
			h.handler.OnPeer(e.session, true)
		case outPeerDown:
			h.log.Warn("session lost", "session", e.session)
			h.tickSoon() // to open another
			h.handler.OnPeer(e.session, false)
		case outAck:
			h.handler.OnAck(e.session, e.n)
		case outLapse:
			h.handler.OnLapse(e.session, true)
		case outReturn:
			h.handler.OnLapse(e.session, false)
		}
	}
}

// publish shows others until when the incoming session is current.
func (p *peer) publish() {
	if l := p.live.Load(); l != nil {
		l.until.Store(int64(p.in.currentUntil()))
	}
}

// flush transmits what waits, and says whether there was something, and when it must be
// called again at the latest.
func (h *Hub) flush() (due clock, sent bool) {
	due = 1 << 62
	for _, p := range *h.peers.Load() {
		if p.dirty.Swap(false) {
			sent = true
			p.out.Lock()
			p.out.flush(h.now(), p.tx)
			p.out.Unlock()
		}
		now := h.now()
		if at := p.ackAt(&h.cfg); now < at {
			due = min(due, at)
			continue
		}
		if m, ok := p.dueAck(&h.cfg, now, 0); ok {
			sent = true
			p.tx(m.append(make([]byte, 0, 64), h.tag))
		}
	}
	return due, sent
}

// ackAt is when an acknowledgement must be sent if none rides on frames.
func (p *peer) ackAt(cfg *Config) clock {
	p.acks.Lock()
	defer p.acks.Unlock()
	switch {
	case p.acks.session.Number == 0:
		return 1 << 62
	case p.acks.dirty:
		return p.acks.at + cfg.AckDelay
	}
	return (p.acks.at/cfg.Idle + 1) * cfg.Idle
}

// dueAck takes the acknowledgement that the peer, in that boot (0 = any), has not been
// sent yet, or a new stamp when the time for that has come.
func (p *peer) dueAck(cfg *Config, now clock, boot uint64) (ack, bool) {
	p.acks.Lock()
	defer p.acks.Unlock()
	s := p.acks.session
	if s.Number == 0 || boot != 0 && boot != s.SenderBoot || !p.acks.dirty && now/cfg.Idle == p.acks.at/cfg.Idle {
		return ack{}, false
	}
	p.acks.dirty, p.acks.at = false, now
	return ack{session: s, stamp: stampAt(now), applied: p.acks.applied}, true
}
