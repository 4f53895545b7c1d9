package protocol

// stream is what an engine has published, as far as one block is concerned: each batch
// stores it, removes it, or is about others.
type stream struct{ n, stores, removes uint8 }

const (
	removes = 0
	stores  = 1
	others  = 2
)

var deeds = [...]string{"removes", "stores", "does other things"}

func (s stream) publish(deed uint8) stream {
	switch deed {
	case stores:
		s.stores |= 1 << s.n
	case removes:
		s.removes |= 1 << s.n
	}
	s.n++
	return s
}

// after returns what is held once batch i is applied to what was held before.
func (s stream) after(i, before uint8) uint8 {
	return before&^(s.removes>>i) | s.stores>>i&1
}

// last returns what is held once all is applied.
func (s stream) last() uint8 {
	held := uint8(0)
	for i := range s.n {
		held = s.after(i, held)
	}
	return held
}

// held reports whether a store below limit is not taken back by a removal below end.
func (s stream) held(limit, end uint8) bool {
	gone := s.removes & (1<<end - 1)
	for i := range min(limit, s.n) {
		if s.stores>>i&1 == 1 && gone>>(i+1) == 0 {
			return true
		}
	}
	return false
}

// query is one question about the block.
type query struct {
	phase uint8 // 0 not asked, asked, answered, judged
	acked uint8 // batches that were acknowledged when it was asked
	got   uint8
}

const (
	asked    = 1
	answered = 2
	judged   = 3
)

// judge holds an answer against the envelope (I5): never more than the claims of which
// no removal is acknowledged, never less than what is acknowledged.
func (q query) judge(s stream) Fault {
	switch {
	case q.phase != answered:
	case q.got == 1 && !s.held(s.n, min(q.acked, s.n)):
		return Over
	case q.got == 0 && s.held(q.acked, s.n):
		return Under
	}
	return None
}

// message is one on a link, packed: kind (2), tenure (1), and what the kind has.
type message uint8

const (
	kindOp     = 0 // index of the batch (4)
	kindFence  = 1 // token (2) above two bits of nothing
	kindResync = 2 // value (1), token (2), cursor (2): in this order
)

func opMessage(tenure, i uint8) message        { return message(kindOp<<6 | tenure<<5 | i) }
func fenceMessage(tenure, token uint8) message { return message(kindFence<<6 | tenure<<5 | token<<2) }
func resyncMessage(tenure, value, token, cursor uint8) message {
	return message(kindResync<<6 | tenure<<5 | value<<4 | token<<2 | cursor)
}

func (m message) kind() uint8   { return uint8(m >> 6) }
func (m message) tenure() uint8 { return uint8(m >> 5 & 1) }
func (m message) index() uint8  { return uint8(m & 15) }
func (m message) value() uint8  { return uint8(m >> 4 & 1) }
func (m message) token() uint8  { return uint8(m >> 2 & 3) }
func (m message) cursor() uint8 { return uint8(m & 3) }

// link is messages under way, in order.
type link struct {
	n   uint8
	all [11]message
}

func (l link) send(m message) link {
	l.all[l.n] = m
	l.n++
	return l
}

// ops sends the batches from one to another.
func (l link) ops(tenure, from, to uint8) link {
	for i := from; i < to; i++ {
		l = l.send(opMessage(tenure, i))
	}
	return l
}

// receive takes the first message out.
func (l link) receive() (message, link) {
	m := l.all[0]
	copy(l.all[:], l.all[1:])
	l.all[len(l.all)-1] = 0
	l.n--
	return m, l
}

// dump is content on its way from the owner to the ingest.
type dump struct{ some, tenure, token, value, cursor uint8 }
