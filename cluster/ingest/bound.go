package ingest

import (
	"slices"

	"github.com/kvcluster/kvcluster/transport"
)

// bound is a socket that engines push to. It may serve several sources, told apart by
// topic; which connection a message came over is not known.
type bound struct {
	loop     *loop
	endpoint string
	sock     transport.Socket
	sources  []*source
	// connects and disconnects count since the socket was opened. A stream compares
	// them with what they were at its latest batch.
	connects, disconnects uint64
}

// bind joins a source to the socket of its endpoint, opening it for the first one.
func (l *loop) bind(s *source) (*bound, error) {
	b := l.bound[s.spec.Endpoint]
	if b == nil {
		b = &bound{loop: l, endpoint: s.spec.Endpoint}
		sock, err := l.tl.Subscribe(transport.SubscribeConfig{
			Endpoint: s.spec.Endpoint, Bind: true, HighWater: l.cfg.HighWater, MaxMessage: l.cfg.MaxMessage,
		}, b)
		if err != nil {
			return nil, err
		}
		b.sock = sock
		l.bound[s.spec.Endpoint] = b
	}
	b.sources = append(b.sources, s)
	s.connected = b.connects > b.disconnects
	return b, nil
}

func (b *bound) leave(s *source) {
	b.sources = slices.DeleteFunc(b.sources, func(o *source) bool { return o == s })
	if len(b.sources) == 0 {
		b.sock.Close()
		delete(b.loop.bound, b.endpoint)
	}
}

// OnMessage gives a message to the source with exactly its topic, else to the one
// without a topic. A prefix is not enough here: kv@pod-1 would take what kv@pod-10
// sends.
func (b *bound) OnMessage(frames [][]byte) {
	var to *source
	for _, s := range b.sources {
		if len(frames) > 0 && s.spec.Topic == string(frames[0]) {
			to = s
			break
		}
		if s.spec.Topic == "" {
			to = s
		}
	}
	if to == nil {
		for _, s := range b.sources {
			s.n.OtherTopic++
		}
		return
	}
	if !to.paused {
		to.pushed(frames)
	}
}

func (b *bound) OnConnect() {
	b.connects++
	for _, s := range b.sources {
		s.connected, s.dirty = true, true
		s.n.Connects++
		s.lastConn = b.loop.tl.Now()
	}
}

func (b *bound) OnDisconnect() {
	b.disconnects++
	for _, s := range b.sources {
		s.connected, s.dirty = b.connects > b.disconnects, true
		s.n.Disconnects++
	}
}

// topicLock is the one topic that a pushing source without a registered topic
// listens to: two topics are two publishers, and they cannot feed one slot. It can
// change only after a publisher has gone.
type topicLock struct {
	topic       string
	held        bool
	disconnects uint64 // of the socket, at its latest message
}

func (s *source) admitTopic(topic []byte) bool {
	if s.spec.Topic != "" {
		return true
	}
	k := &s.topicLock
	switch {
	case !k.held || k.topic == string(topic):
	case s.bound.disconnects > k.disconnects:
		for _, st := range s.streams {
			st.rebase(restarted, "another publisher took over the endpoint", 0)
		}
	default:
		s.n.OtherTopic++
		s.fail("topic %q is dropped: publisher %q holds this endpoint; register a topic for each instance", topic, k.topic)
		return false
	}
	if !k.held || k.topic != string(topic) {
		k.topic, k.held = string(topic), true
	}
	k.disconnects = s.bound.disconnects
	return true
}

// pushed handles one message of an engine that pushes: its stream is that of its
// rank, which only the payload knows.
func (s *source) pushed(frames [][]byte) {
	topic, seq, payload, ok := s.parse(frames)
	if !ok || !s.admitTopic(topic) {
		return
	}
	s.connected = true
	b, err := s.loop.dec.Decode(payload)
	if err != nil {
		if len(s.streams) == 1 {
			s.streams[0].onLive(seq, payload, nil) // decides what a batch without content means
			return
		}
		s.n.Undecodable++ // its stream will show a gap
		s.fail("batch %d: %v", seq, err)
		return
	}
	rank, ok := s.rankOf(b)
	if !ok {
		s.n.NoRank++
		s.fail("batch %d names no rank, and %d are registered", seq, len(s.spec.Ranks))
		return
	}
	for _, st := range s.streams {
		if st.rank == int64(rank) {
			if st.state == idle {
				st.onConnect() // after a pause
			}
			st.onLive(seq, payload, b)
			return
		}
	}
	if len(s.streams) >= s.loop.cfg.MaxRanks {
		s.n.NoRank++
		s.fail("rank %d refused: %d ranks already", rank, len(s.streams))
		return
	}
	st := newStream(s, int64(rank))
	s.streams = append(s.streams, st)
	st.onConnect()
	st.onLive(seq, payload, b)
}
