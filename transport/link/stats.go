package link

import "time"

// PeerStats is what is known of one peer. Counters rise from the start of the hub,
// or from when the peer was named again.
type PeerStats struct {
	Peer string

	// Outgoing. Up: a session stands. Retained and InFlight are bytes of payload and
	// overhead that wait for acknowledgement, and those of them that are sent.
	Session            Session
	Up, Lapsed         bool
	Refused            string // why the peer refuses us
	Last, Sent, Acked  uint64 // frame numbers
	Retained, InFlight int64
	Oldest             time.Duration // age of the oldest frame that is not acknowledged
	FramesOut          uint64
	BytesOut           uint64 // of payload, without repetitions
	MessagesOut        uint64 // with frames or as heartbeats
	WireOut            uint64 // bytes of them, headers, repetitions and what rides along included
	Resent             uint64
	SessionsOut        uint64
	Lost               uint64 // sessions

	// Incoming.
	Incoming   Session
	Current    bool
	Received   uint64 // frame numbers
	Applied    uint64
	Early      int   // frames that wait for a missing one
	EarlyBytes int64 // of them
	FramesIn   uint64
	BytesIn    uint64
	Duplicates uint64
	Asks       uint64 // for missing frames
	Unknown    uint64 // messages of sessions that are over
	SessionsIn uint64
	Silences   uint64
	Serving    int64 // calls
}

// Stats counts what has no peer.
type Stats struct {
	Strangers uint64 // messages of nodes that are no peers
	Refused   uint64 // messages of other clusters and versions
	Malformed uint64
	Calls     uint64 // made
	Served    uint64
	Late      uint64 // answers to calls that had ended
	Busy      uint64 // calls that were turned away
}

// Stats returns counters of the hub.
func (h *Hub) Stats() Stats {
	return Stats{
		Strangers: h.count.strangers.Load(), Refused: h.count.refused.Load(), Malformed: h.count.malformed.Load(),
		Calls: h.calls.made.Load(), Served: h.calls.served.Load(), Late: h.calls.late.Load(), Busy: h.calls.busy.Load(),
	}
}

// PeerStats returns what is known of every peer, by name. It waits for the handler,
// and must not be called from it.
func (h *Hub) PeerStats() map[string]PeerStats {
	h.turn.Lock()
	defer h.turn.Unlock()
	now := h.now()
	all := map[string]PeerStats{}
	for name, p := range *h.peers.Load() {
		in := p.in
		st := PeerStats{
			Peer:     name,
			Incoming: in.session, Current: now <= in.currentUntil(), Received: in.received,
			Early: len(in.early), EarlyBytes: in.earlyBytes,
			FramesIn: in.count.frames, BytesIn: in.count.bytes, Duplicates: in.count.duplicates, Asks: in.count.asks,
			Unknown: in.count.unknown, SessionsIn: in.count.sessions, Silences: in.count.silences,
			Serving: p.serving.Load(),
		}
		p.acks.Lock()
		st.Applied = p.acks.applied
		p.acks.Unlock()
		p.out.Lock()
		o := p.out.outgoing
		st.Session, st.Up, st.Lapsed, st.Refused = o.session, o.state == outUp, o.lapsed, o.refused
		st.Last, st.Sent, st.Acked = o.last, o.sent, o.acked
		st.Retained, st.InFlight = o.frames.bytes, o.inFlight
		if o.frames.len() > 0 {
			st.Oldest = now - o.frames.at(0).at
		}
		st.FramesOut, st.BytesOut, st.MessagesOut, st.WireOut = o.count.frames, o.count.bytes, o.count.messages, o.count.wire
		st.Resent, st.SessionsOut, st.Lost = o.count.resent, o.count.sessions, o.count.lost
		p.out.Unlock()
		all[name] = st
	}
	return all
}
