package link

import (
	"slices"
	"time"
)

const (
	// maxPending is how many granted sessions of one peer wait for their first word.
	maxPending = 8
	// maxEarly is how many frames may wait for an earlier one.
	maxEarly = 65_536
	// askAgain is how long until the same frame is asked for again, in parts of a
	// heartbeat.
	askAgain = 4
)

// incoming is the receiving side from one peer: a machine without goroutines, locks
// and clock. What happens is told to a sink at once.
//
// A session that it grants becomes the current one with the first message that
// carries it, since only then it is certain that the sender lives. Granted later
// means newer: older ones are then unknown for good. So nothing that the network
// held back can bring an old session back.
type incoming struct {
	cfg     *Config
	peer    string
	tag     uint32
	granted *uint64 // number of the newest session of the hub
	sink    sink

	pending []pending
	session Session // zero: none

	received   uint64            // all frames up to it are delivered
	early      map[uint64][]byte // frames behind a missing one
	earlyBytes int64

	asked   uint64 // the missing frame that was asked for last, and when
	askedAt clock

	echo     clock // newest of our stamps that came back: the sender lived after it
	silent   bool
	caughtUp uint64 // while silent: the frame that makes it current again
	fresh    bool   // caughtUp is known

	scratch []byte
	count   inCount
}

type inCount struct {
	frames, bytes, duplicates, early, asks, unknown, sessions, silences uint64
}

type pending struct {
	session Session
	opening uint64
}

// sink hears of what comes in.
type sink interface {
	onSession(s Session)
	onFrame(s Session, n uint64, payload []byte)
	onSilence(s Session)
	onResume(s Session)
}

func newIncoming(cfg *Config, peer string, granted *uint64, to sink) *incoming {
	return &incoming{cfg: cfg, peer: peer, tag: clusterTag(cfg.Cluster), granted: granted, sink: to}
}

// onOpen grants a session. The same attempt gets the same.
func (in *incoming) onOpen(now clock, m open, tx transmit) {
	i := slices.IndexFunc(in.pending, func(p pending) bool { return p.session.SenderBoot == m.boot && p.opening == m.opening })
	if i < 0 {
		if len(in.pending) == maxPending {
			in.pending = slices.Delete(in.pending, 0, 1)
		}
		*in.granted++
		s := Session{Peer: in.peer, SenderBoot: m.boot, ReceiverBoot: in.cfg.Boot, Number: *in.granted}
		in.pending = append(in.pending, pending{s, m.opening})
		i = len(in.pending) - 1
	}
	in.scratch = accept{in.pending[i].session, m.opening, stampAt(now), uint64(in.cfg.Window)}.append(in.scratch[:0], in.tag)
	tx(in.scratch)
}

// known makes the session of a message the current one, or reports that it is over
// or was never granted.
func (in *incoming) known(s Session) bool {
	if in.session.Number != 0 && in.same(s) {
		return true
	}
	i := slices.IndexFunc(in.pending, func(p pending) bool { return p.session == s })
	if i < 0 {
		if !in.cfg.broken.ignoreBoot || in.session.Number != 0 {
			return false
		}
	} else {
		in.pending = slices.Delete(in.pending, 0, i+1)
	}
	in.session = s
	in.received, in.early, in.earlyBytes = 0, nil, 0
	in.asked, in.askedAt = 0, 0
	in.echo, in.silent, in.fresh = 0, false, false
	in.count.sessions++
	in.sink.onSession(s)
	return true
}

func (in *incoming) same(s Session) bool {
	if in.cfg.broken.mixSessions {
		s.Number = in.session.Number
	}
	return s == in.session
}

// stale reports that the newest proof of the sender's life is too old.
func (in *incoming) stale(now clock) bool {
	return now-in.echo > in.cfg.Timeout
}

// currentUntil is when the session stops being current without further proof; 0 =
// it is not.
func (in *incoming) currentUntil() clock {
	if in.session.Number == 0 || in.silent {
		return 0
	}
	return in.echo + in.cfg.Timeout
}

// tick finds silence.
func (in *incoming) tick(now clock) {
	if in.session.Number == 0 || !in.stale(now) {
		return
	}
	in.fresh = false
	if !in.silent {
		in.silent = true
		in.count.silences++
		in.sink.onSilence(in.session)
	}
}

// onData takes frames and heartbeats. It returns what is missing, to be asked for
// with the next acknowledgement; nothing when from = to.
func (in *incoming) onData(now clock, m data, tx transmit) (from, to uint64) {
	if !in.known(m.session) {
		in.count.unknown++
		in.scratch = appendSession(appendHeader(in.scratch[:0], kindUnknown, in.tag), m.session)
		tx(in.scratch)
		return 0, 0
	}
	if m.echo == 0 || m.echo > stampAt(now) {
		return 0, 0 // no stamp of ours
	}
	echo := clockOf(m.echo)
	if in.echo == 0 {
		in.echo = echo
	}
	// First what was: a node that stood still may find this message before its tick.
	in.tick(now)
	in.echo = max(in.echo, echo)
	if in.cfg.broken.ownClock {
		in.echo = now
	}

	n := m.first
	for payload, ok := m.next(); ok; payload, ok = m.next() {
		in.take(n, payload)
		n++
	}
	for payload, ok := in.early[in.received+1]; ok; payload, ok = in.early[in.received+1] {
		in.forget(in.received + 1)
		in.deliver(in.received+1, payload)
	}
	in.resume(now, m.last)
	return in.missing(now, m.first)
}

// take delivers a frame if it is the next, and keeps it if it is a later one.
func (in *incoming) take(n uint64, payload []byte) {
	switch {
	case n <= in.received:
		in.count.duplicates++
		if in.cfg.broken.duplicates {
			in.sink.onFrame(in.session, n, payload)
		}
	case n == in.received+1:
		in.forget(n)
		in.deliver(n, payload)
	default:
		size := int64(len(payload))
		if _, ok := in.early[n]; ok || len(in.early) >= maxEarly || in.earlyBytes+size > in.cfg.Window {
			return
		}
		if in.early == nil {
			in.early = map[uint64][]byte{}
		}
		in.early[n] = slices.Clone(payload)
		in.earlyBytes += size
		in.count.early++
	}
}

func (in *incoming) forget(n uint64) {
	if p, ok := in.early[n]; ok {
		in.earlyBytes -= int64(len(p))
		delete(in.early, n)
	}
}

func (in *incoming) deliver(n uint64, payload []byte) {
	in.received = n
	in.count.frames++
	in.count.bytes += uint64(len(payload))
	in.sink.onFrame(in.session, n, payload)
}

// resume ends a silence: with fresh proof, once all is there that the sender had
// accepted when it gave that proof. last is a number that the sender named with it.
func (in *incoming) resume(now clock, last uint64) {
	if !in.silent || in.stale(now) {
		return
	}
	if !in.fresh {
		in.fresh, in.caughtUp = true, last
	}
	if in.received >= in.caughtUp {
		in.silent, in.fresh = false, false
		in.sink.onResume(in.session)
	}
}

// missing says what to ask for, given that all frames before next were sent.
func (in *incoming) missing(now clock, next uint64) (from, to uint64) {
	from, to = in.received+1, max(next, in.received+1)
	if len(in.early) > 0 {
		least := uint64(0)
		for n := range in.early {
			if least == 0 || n < least {
				least = n
			}
		}
		if to == from || least < to {
			to = least
		}
	}
	if to <= from || in.asked == from && now-in.askedAt < in.cfg.Heartbeat/askAgain {
		return 0, 0
	}
	in.asked, in.askedAt = from, now
	in.count.asks++
	return from, to
}

// appendAck makes an acknowledgement.
func (in *incoming) appendAck(b []byte, now clock, applied, from, to uint64) []byte {
	return ack{in.session, stampAt(now), applied, from, to}.append(b, in.tag)
}

// gone ends the session: its sender is no peer any more.
func (in *incoming) gone() {
	if in.session.Number != 0 && !in.silent {
		in.silent = true
		in.sink.onSilence(in.session)
	}
	in.session, in.pending, in.early, in.earlyBytes = Session{}, nil, nil, 0
}

// tickEvery is how often a hub looks after its links.
func tickEvery(cfg *Config) time.Duration { return max(cfg.Heartbeat/2, time.Millisecond) }
