package link

import (
	"encoding/binary"
	"sync/atomic"
	"time"
)

const (
	// packBytes and packFrames bound what goes into one message: enough that the cost
	// of a message vanishes, little enough that a lost one is cheap.
	packBytes  = 64 << 10
	packFrames = 1024
	// retainedOverhead is what a waiting frame costs besides its payload.
	retainedOverhead = 40
	// openBackoff bounds the time between attempts to open, in heartbeats.
	openBackoff = 5
)

// clock is the time since the hub was made. It never is 0.
type clock = time.Duration

// transmit sends one message to the peer of a machine; see transport.Mesh.Send.
type transmit func(parts ...[]byte) bool

type outState uint8

const (
	outIdle    outState = iota // the peer is gone
	outOpening                 // asking for a session
	outUp
)

// outgoing is the sending side towards one peer: a machine without goroutines,
// locks and clock. What it wants to tell is appended to events.
//
//	opening --accept--> up --unknown, retention, removed--> opening | idle
//
//	       acked        sent              last
//	 ------|------------|-----------------|      numbers
//	 gone   frames: in flight <= window    waiting for credit
//	        kept: <= Retention, RetentionAge
//
// Invariant: 0 <= acked <= sent <= last, len(frames) = last - acked.
type outgoing struct {
	cfg    *Config
	peer   string
	tag    uint32
	events []outEvent

	state    outState
	attempts *atomic.Uint64 // openings of the hub in this boot
	opening  uint64         // the present one, to tell a late accept
	nextOpen clock
	openWait time.Duration

	session           Session
	window            int64
	acked, sent, last uint64
	frames            frameQueue
	inFlight          int64 // bytes of acked+1..sent
	blocked           bool  // the last flush had no credit for all, or could not transmit
	spokeAt           clock // when something was transmitted last

	// The receiver is current as long as it has fresh proof of us, that is, a stamp of
	// its own clock that came back. It made the newest one before heardAt.
	heard   uint64 // newest stamp that has come
	heardAt clock
	echo    uint64 // newest stamp that may go back; see settle
	lapsed  bool
	fading  []fading // sessions that are over and whose receivers may not know yet

	// rider gives an acknowledgement for the other direction that may ride along, if
	// there is one and the peer's boot is that of the session; nil = there never is.
	rider func(boot uint64) (a ack, ok bool)

	refused string // why the peer refuses us; empty when it does not
	scratch []byte
	parts   [][]byte
	count   outCount
}

type outCount struct {
	frames, bytes, messages, wire, resent, sessions, lost uint64
}

type fading struct {
	session Session
	at      clock
}

type outEventKind uint8

const (
	outPeerUp outEventKind = iota
	outPeerDown
	outAck
	outLapse
	outReturn
)

type outEvent struct {
	kind    outEventKind
	session Session
	n       uint64
}

func newOutgoing(cfg *Config, peer string, attempts *atomic.Uint64) *outgoing {
	return &outgoing{cfg: cfg, peer: peer, tag: clusterTag(cfg.Cluster), attempts: attempts}
}

func (o *outgoing) tell(k outEventKind, s Session, n uint64) {
	o.events = append(o.events, outEvent{k, s, n})
}

// begin asks for a new session from the next tick on.
func (o *outgoing) begin(now clock) {
	o.state = outOpening
	o.opening = o.attempts.Add(1)
	// Not faster than heartbeats, however often it fails.
	o.nextOpen = max(now, o.nextOpen)
	o.openWait = o.cfg.Heartbeat
}

// lose ends the session. Its frames are forgotten.
func (o *outgoing) lose(now clock) {
	if o.state != outUp {
		return
	}
	o.tell(outPeerDown, o.session, 0)
	if !o.lapsed {
		o.fading = append(o.fading, fading{o.session, o.lapseAt()})
	}
	o.frames.clear()
	o.acked, o.sent, o.last, o.inFlight, o.blocked = 0, 0, 0, 0, false
	o.session, o.heard, o.echo, o.lapsed = Session{}, 0, 0, false
	o.count.lost++
	o.begin(now)
}

// stop ends everything: the peer is no longer one.
func (o *outgoing) stop(now clock) {
	o.lose(now)
	o.state = outIdle
}

// lapseAt is when the receiver certainly is silent if no further stamp goes back.
func (o *outgoing) lapseAt() clock { return o.heardAt + o.cfg.Timeout + o.cfg.Margin }

// send accepts one frame. It is transmitted by flush.
func (o *outgoing) send(now clock, s Session, payload []byte) (uint64, error) {
	if o.state != outUp || s != o.session {
		return 0, ErrDown
	}
	if o.frames.bytes+int64(len(payload))+retainedOverhead > o.cfg.Retention {
		o.lose(now)
		return 0, ErrFull
	}
	o.last++
	o.frames.push(outFrame{payload, now})
	o.count.frames++
	o.count.bytes += uint64(len(payload))
	return o.last, nil
}

// flush transmits what has credit.
func (o *outgoing) flush(now clock, tx transmit) {
	defer func() { o.blocked = o.sent < o.last }()
	for o.state == outUp && o.sent < o.last {
		end, size := o.sent, int64(0)
		for end < o.last && end-o.sent < packFrames {
			n := int64(len(o.frames.at(int(end - o.acked)).payload))
			if o.inFlight+size+n > o.window && o.inFlight+size > 0 {
				break
			}
			if size > 0 && size+n > packBytes {
				break
			}
			end++
			size += n
		}
		if end == o.sent || !o.transmit(o.sent+1, end, tx) {
			return
		}
		o.sent = end
		o.inFlight += size
		o.spokeAt = now
	}
}

// transmit sends frames first to last in one message; last < first is a heartbeat.
func (o *outgoing) transmit(first, last uint64, tx transmit) bool {
	m := data{session: o.session, echo: o.echo, last: o.last, first: first}
	o.scratch = o.scratch[:0]
	var riding ack
	ok := false
	if o.rider != nil {
		riding, ok = o.rider(o.session.ReceiverBoot)
	}
	if ok {
		o.scratch = m.appendBoth(o.scratch, o.tag, riding)
	} else {
		o.scratch = m.append(o.scratch, o.tag)
	}
	from, to := 0, len(o.scratch)
	// The parts alias scratch, so it must have its final size first.
	for n := first; n <= last; n++ {
		p := o.frames.at(int(n - o.acked - 1)).payload
		o.scratch = binary.AppendUvarint(o.scratch, uint64(len(p)))
	}
	o.parts = o.parts[:0]
	size := len(o.scratch)
	for n := first; n <= last; n++ {
		p := o.frames.at(int(n - o.acked - 1)).payload
		to += numberSize(uint64(len(p)))
		o.parts = append(o.parts, o.scratch[from:to], p)
		from = to
		size += len(p)
	}
	if from == 0 {
		o.parts = append(o.parts, o.scratch)
	}
	sent := tx(o.parts...)
	clear(o.parts)
	if sent {
		o.count.messages++
		o.count.wire += uint64(size)
	}
	return sent
}

// resend transmits again what the receiver misses of from..to-1.
func (o *outgoing) resend(from, to uint64, tx transmit) {
	if o.cfg.broken.noResend {
		return
	}
	from, to = max(from, o.acked+1), min(to, o.sent+1)
	for from < to {
		end, size := from, 0
		for end < to && end-from < packFrames {
			n := len(o.frames.at(int(end - o.acked - 1)).payload)
			if size > 0 && size+n > packBytes {
				break
			}
			end++
			size += n
		}
		if !o.transmit(from, end-1, tx) {
			return // it will ask again
		}
		o.count.resent += end - from
		from = end
	}
}

// tick does what is due. It is called several times a heartbeat.
func (o *outgoing) tick(now clock, tx transmit) {
	keep := o.fading[:0]
	for _, f := range o.fading {
		if now >= f.at {
			o.tell(outLapse, f.session, 0)
		} else {
			keep = append(keep, f)
		}
	}
	o.fading = keep
	if o.state == outUp && o.frames.len() > 0 && now-o.frames.at(0).at > o.cfg.RetentionAge {
		o.lose(now)
	}
	switch o.state {
	case outOpening:
		if now >= o.nextOpen {
			o.scratch = open{o.cfg.Boot, o.opening, o.cfg.Cluster}.append(o.scratch[:0], o.tag)
			tx(o.scratch)
			o.nextOpen = now + o.openWait
			o.openWait = min(2*o.openWait, openBackoff*o.cfg.Heartbeat)
		}
	case outUp:
		if !o.lapsed && now >= o.lapseAt() {
			o.lapsed = true
			o.tell(outLapse, o.session, 0)
		}
		o.flush(now, tx)
		if o.beat(now) {
			o.spokeAt = now
			o.transmit(o.sent+1, o.sent, tx)
		}
	}
}

// due is when tick has something to do, if nothing happens until then; not after now where
// that is hard to say.
func (o *outgoing) due(now clock) clock {
	switch {
	case o.state == outIdle:
		return 1 << 62
	case o.state != outUp || o.lapsed || o.sent > o.acked || o.sent < o.last || len(o.fading) > 0:
		return now
	}
	return o.lapseAt()
}

// beat reports that it is time to say that nothing is new. Where something may be lost it
// is after a Heartbeat, and otherwise when a multiple of Idle has passed: so that all
// links of a hub do it at the same time, which wakes threads once.
func (o *outgoing) beat(now clock) bool {
	return now/o.cfg.Idle != o.spokeAt/o.cfg.Idle || o.sent > o.acked && now >= o.spokeAt+o.cfg.Heartbeat
}

func (o *outgoing) onAccept(now clock, m accept, tx transmit) {
	if o.state != outOpening || m.session.SenderBoot != o.cfg.Boot || m.opening != o.opening || m.session.Number == 0 {
		return
	}
	o.state, o.session, o.refused = outUp, m.session, ""
	o.window = int64(min(m.window, uint64(o.cfg.Window)))
	o.heard, o.echo, o.heardAt = m.stamp, m.stamp, now
	o.count.sessions++
	o.tell(outPeerUp, o.session, 0)
	// The receiver takes the session for standing when it hears of it.
	o.spokeAt = now
	o.transmit(1, 0, tx)
}

// onAck takes an acknowledgement. When the events have been told, settle must be
// called.
func (o *outgoing) onAck(now clock, m ack, tx transmit) {
	if o.state != outUp || m.session != o.session || m.applied > o.sent {
		return
	}
	if m.stamp > o.heard {
		o.heard, o.heardAt = m.stamp, now
		if o.lapsed {
			o.lapsed = false
			o.tell(outReturn, o.session, 0)
		}
	}
	if m.applied > o.acked {
		for ; o.acked < m.applied; o.acked++ {
			o.inFlight -= int64(len(o.frames.pop().payload))
		}
		o.tell(outAck, o.session, o.acked)
	}
	if m.from < m.to {
		o.resend(m.from, m.to, tx)
	}
	if o.blocked { // what is new waits for the hub, see Config.FlushDelay
		o.flush(now, tx)
	}
}

// settle lets the newest stamp go back to the receiver, which becomes current by
// it: so not before the handler knows.
func (o *outgoing) settle() { o.echo = o.heard }

func (o *outgoing) onUnknown(now clock, s Session) {
	if o.state == outUp && s == o.session {
		o.lose(now)
	}
}

// onRefuse reports whether the reason is news.
func (o *outgoing) onRefuse(why string) bool {
	news := o.refused != why
	o.refused = why
	return news
}

// outFrame is a frame that is kept.
type outFrame struct {
	payload []byte
	at      clock
}

// frameQueue is a queue of frames that can be looked into.
type frameQueue struct {
	ring  []outFrame // of a size that is a power of two
	head  int
	count int
	bytes int64 // with overhead
}

func (q *frameQueue) len() int           { return q.count }
func (q *frameQueue) at(i int) *outFrame { return &q.ring[(q.head+i)&(len(q.ring)-1)] }

func (q *frameQueue) push(f outFrame) {
	if q.count == len(q.ring) {
		ring := make([]outFrame, max(16, 2*len(q.ring)))
		for i := range q.count {
			ring[i] = *q.at(i)
		}
		q.ring, q.head = ring, 0
	}
	q.count++
	*q.at(q.count - 1) = f
	q.bytes += int64(len(f.payload)) + retainedOverhead
}

func (q *frameQueue) pop() outFrame {
	f := *q.at(0)
	*q.at(0) = outFrame{}
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.count--
	q.bytes -= int64(len(f.payload)) + retainedOverhead
	return f
}

func (q *frameQueue) clear() { *q = frameQueue{} }
