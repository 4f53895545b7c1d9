package link

import (
	"encoding/binary"
	"fmt"
)

// maxOdd bounds what is remembered of peers that were complained about.
const maxOdd = 1024

// receive is the handler of the mesh.
func (h *Hub) receive(from string, message []byte) {
	<-h.ready
	if !h.running.Load() {
		return
	}
	p := (*h.peers.Load())[from]
	if p == nil {
		h.count.strangers.Add(1)
		return
	}
	if len(message) < headerSize || message[0] != magic0 || message[1] != magic1 {
		h.malformed(from)
		return
	}
	k, body := kind(message[3]), message[headerSize:]
	if k == kindRefuse {
		h.refused(p, string(body))
		return
	}
	if why := h.foreign(message[2], k, binary.LittleEndian.Uint32(message[4:]), body); why != "" {
		h.refuse(p, why)
		return
	}
	var err error
	switch k {
	// Calls do not wait for the turn.
	case kindRequest:
		err = h.calls.onRequest(p, body)
	case kindResponse:
		err = h.calls.onResponse(p, body)
	case kindCancel:
		err = h.calls.onCancel(p, body)
	default:
		err = h.onSessionMessage(p, k, body)
	}
	if err != nil {
		h.malformed(from)
	}
}

func (h *Hub) onSessionMessage(p *peer, k kind, body []byte) error {
	h.turn.Lock()
	defer h.turn.Unlock()
	if (*h.peers.Load())[p.name] != p {
		return nil // removed meanwhile
	}
	now := h.now()
	switch k {
	case kindOpen:
		m, err := parseOpen(body)
		if err != nil {
			return err
		}
		p.in.onOpen(now, m, p.tx)
	case kindAccept:
		m, err := parseAccept(p.name, body)
		if err != nil {
			return err
		}
		p.out.Lock()
		p.out.onAccept(now, m, p.tx)
		h.tell(p)
	case kindUnknown:
		r := reader{b: body}
		s := r.session(p.name)
		if err := r.done(true); err != nil {
			return err
		}
		p.out.Lock()
		p.out.onUnknown(now, s)
		h.tell(p)
	case kindAck:
		m, err := parseAck(p.name, body)
		if err != nil {
			return err
		}
		h.onAck(p, now, m)
	case kindData:
		m, err := parseData(p.name, body)
		if err != nil {
			return err
		}
		h.onData(p, now, m)
	case kindBoth:
		m, a, err := parseBoth(p.name, body)
		if err != nil {
			return err
		}
		h.onAck(p, now, a)
		h.onData(p, now, m)
	default:
		return errWire
	}
	return nil
}

func (h *Hub) onAck(p *peer, now clock, m ack) {
	p.out.Lock()
	p.out.onAck(now, m, p.tx)
	h.tell(p)
	p.out.Lock()
	p.out.settle()
	p.out.Unlock()
}

func (h *Hub) onData(p *peer, now clock, m data) {
	from, to := p.in.onData(now, m, p.tx)
	p.publish()
	if from < to {
		p.acks.Lock()
		applied := p.acks.applied
		p.acks.Unlock()
		h.turn.ack = p.in.appendAck(h.turn.ack[:0], now, applied, from, to)
		p.tx(h.turn.ack)
	}
}

// foreign says why a message comes from no node of this cluster.
func (h *Hub) foreign(v uint8, k kind, tag uint32, body []byte) string {
	if v != version {
		return fmt.Sprintf("node %s speaks version %d of the link protocol, not %d", h.cfg.Name, version, v)
	}
	name := ""
	if k == kindOpen {
		if m, err := parseOpen(body); err == nil && m.cluster != h.cfg.Cluster {
			name = fmt.Sprintf(" %.255q", m.cluster)
		}
	}
	if tag != h.tag || name != "" {
		return fmt.Sprintf("node %s belongs to cluster %q, not to%s another", h.cfg.Name, h.cfg.Cluster, name)
	}
	return ""
}

// refuse answers a node that does not belong here.
func (h *Hub) refuse(p *peer, why string) {
	h.count.refused.Add(1)
	if h.once(p.name, why) {
		h.log.Error("peer refused", "peer", p.name, "reason", why)
	}
	p.tx(appendRefusal(nil, h.tag, why))
}

// refused takes such an answer.
func (h *Hub) refused(p *peer, why string) {
	if len(why) > 1024 {
		why = why[:1024]
	}
	p.out.Lock()
	news := p.out.onRefuse(why)
	p.out.Unlock()
	if news {
		h.log.Error("refused by peer", "peer", p.name, "reason", why)
	}
	h.calls.failPeer(p.name, fmt.Errorf("%w: %s", ErrRefused, why))
}

func (h *Hub) malformed(from string) {
	h.count.malformed.Add(1)
	if h.once(from, "malformed") {
		h.log.Error("malformed messages are dropped", "peer", from)
	}
}

// once reports true the first time for a peer and a reason.
func (h *Hub) once(peer, reason string) bool {
	h.turn.Lock()
	defer h.turn.Unlock()
	key := peer + " " + reason
	if h.turn.odd[key] {
		return false
	}
	if len(h.turn.odd) >= maxOdd {
		clear(h.turn.odd)
	}
	h.turn.odd[key] = true
	return true
}

// inSink passes on what comes from one peer, under the turn.
type inSink struct {
	h *Hub
	p *peer
}

func (i *inSink) onSession(s Session) {
	p := i.p
	p.acks.Lock()
	p.acks.session, p.acks.delivered, p.acks.applied, p.acks.dirty = s, 0, 0, true
	p.acks.Unlock()
	i.h.signal() // the sender waits for a stamp
	p.live.Store(&liveSession{session: s})
	i.h.log.Info("session of a peer", "session", s)
	i.h.handler.OnSession(s)
}

func (i *inSink) onFrame(s Session, n uint64, payload []byte) {
	p := i.p
	p.acks.Lock()
	p.acks.delivered = n
	if i.h.cfg.broken.earlyAck {
		p.acks.applied, p.acks.dirty = n, true
	}
	p.acks.Unlock()
	i.h.handler.OnFrame(s, n, payload)
}

func (i *inSink) onSilence(s Session) {
	i.p.publish()
	i.h.log.Warn("peer is silent", "session", s)
	i.h.handler.OnSilence(s)
}

func (i *inSink) onResume(s Session) {
	i.h.log.Info("peer is back without loss", "session", s)
	i.h.handler.OnResume(s)
	i.p.publish()
}
