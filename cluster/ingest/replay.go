package ingest

import (
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// purpose is why a replay was asked for.
type purpose uint8

const (
	join     purpose = iota // no cursor: everything that the engine still has
	recovery                // a gap on a connection that stands
	prove                   // a connection that was lost: is it the same engine run?
	probe                   // a silent stream: has it lost its tail, or restarted?
	refill                  // a stream that began late: can older batches be had now?
)

// aside says whether the stream goes on while the replay runs.
func (p purpose) aside() bool { return p == probe || p == refill }

// replay is one request and its answer. Every request has a socket of its own: replies
// carry no mark of the request, and those of an abandoned one must not be taken for
// those of the next. It never waits for the peer: time-outs come from the loop's tick.
type replay struct {
	st       *stream
	purpose  purpose
	sock     transport.ReplaySocket
	deadline time.Time

	verify   bool // the first reply must be the cursor's batch
	verified bool
	pos      uint64 // latest reply; valid once began
	began    bool
	progress bool // it has moved the cursor
	unusable bool // the endpoint
}

func (st *stream) canReplay() bool {
	return !st.noReplay && st.src.replayEndpoint(st.rank) != ""
}

// begin asks for a replay from the cursor itself, or from joinFrom without one.
func (st *stream) begin(p purpose) {
	st.dropReplay()
	s := st.src
	l := s.loop
	r := &replay{st: st, purpose: p, verify: st.cur.set && p != refill, deadline: l.tl.Now().Add(l.cfg.ReplayTimeout)}
	s.dirty = true
	s.n.Replays++
	if p.aside() {
		s.n.Probes++
	}
	st.rep = r
	if !p.aside() {
		st.state = replaying
	}
	sock, err := l.tl.OpenReplay(s.replayEndpoint(st.rank), r)
	if err == nil {
		r.sock = sock
		start := st.joinFrom
		switch {
		case p == refill:
			start = st.base - 1
		case r.verify:
			start = st.cur.seq
		}
		err = sock.Request(start)
	}
	if err != nil {
		s.fail("replay from %s: %v", s.replayEndpoint(st.rank), err)
		r.unusable, r.deadline = true, l.tl.Now() // the next tick gives up: no caller is in the middle of something then
	}
}

// dropReplay abandons the replay that runs, if any. The caller sets the state.
func (st *stream) dropReplay() {
	if st.rep != nil && st.rep.sock != nil {
		st.rep.sock.Close()
	}
	st.rep = nil
}

// merged says whether the replay has reached the live batches that are held.
func (st *stream) merged() bool {
	r := st.rep
	return st.state == replaying && r != nil && st.cur.set && (!r.verify || r.verified) &&
		st.held.len() > 0 && st.caughtUp()
}

// finish ends a replay that has done what it was asked for.
func (st *stream) finish() {
	st.dropReplay()
	st.src.dirty = true
	st.state = live
	st.attempts = 0
	st.renewUnproved()
	st.src.over.replayed(st.src.n.ReplayedBatches)
	st.holeAt.set, st.need.set = false, false
	st.heard = st.src.loop.tl.Now()
	st.overlap = st.heard.Add(3 * st.src.loop.cfg.ReplayTimeout)
	st.proven()
}

// proven: the engine run is the one of the cursor, as of now.
func (st *stream) proven() {
	st.broken = false
	if b := st.src.bound; b != nil {
		st.connects, st.disconnects = b.connects, b.disconnects
	}
}

func (r *replay) OnConnect() {}

// OnDisconnect: what is missing will not come over this connection. The time-out is
// brought forward, not taken at once: what was received may be complete.
func (r *replay) OnDisconnect() {
	if soon := r.st.src.loop.tl.Now().Add(r.st.src.loop.cfg.RetryMin); r.st.rep == r && soon.Before(r.deadline) {
		r.deadline = soon
	}
}

// OnReply handles one reply.
func (r *replay) OnReply(frames [][]byte) {
	st := r.st
	if st.rep != r {
		return
	}
	_, seq, payload, end, err := engine.ParseReplay(frames)
	if err != nil {
		st.src.n.Malformed++
		st.src.fail("%v", err)
		return
	}
	st.src.dirty = true
	began, verified, pos := r.began, r.verified, r.pos
	switch {
	case r.purpose == refill:
		r.older(end, seq)
	case end:
		r.end()
	default:
		r.batch(seq, payload)
	}
	// Only what brings the replay on buys it time: an answer that repeats itself for ever
	// must not hold back what the engine says live.
	if st.rep == r && (r.began != began || r.verified != verified || r.pos != pos) {
		r.deadline = st.src.loop.tl.Now().Add(st.src.loop.cfg.ReplayTimeout)
	}
	st.settle()
}

// older handles the first reply to a refill: if it is older than what the stream began
// with, beginning again from the oldest gives more than going on.
func (r *replay) older(end bool, seq uint64) {
	st := r.st
	st.dropReplay()
	st.short = false
	if !end && seq < st.base {
		st.rebase(refilled, fmt.Sprintf("batches before %d can be replayed now", st.base), 0)
	}
}

func (r *replay) batch(seq uint64, payload []byte) {
	st := r.st
	digest := xxh3.Hash(payload)
	if !r.began {
		switch {
		case !r.verify:
			r.began, r.pos = true, seq-1 // a late start is normal: the buffer has an end
		case seq < st.cur.seq:
			return // older than asked for
		case seq > st.cur.seq:
			r.startedLate(seq)
			return
		case !st.cur.is(digest):
			st.failed(ReplayOtherContent)
			st.otherRun(restarted, fmt.Sprintf("batch %d has other content than before: the engine restarted", seq))
			return
		default:
			r.began, r.verified, r.pos = true, true, seq
			if st.cur.inherited {
				st.seen.add(seq, digest)
			}
			st.cur.digest, st.cur.inherited = digest, false
			st.verify(seq, digest)
			if st.merged() {
				st.finish()
			}
			return
		}
	}
	switch {
	case seq != r.pos+1 && seq <= r.pos:
		return // repeated
	case seq != r.pos+1:
		r.hole(seq)
		return
	}
	r.pos = seq
	if st.cur.set && seq <= st.cur.seq {
		return
	}
	st.src.n.ReplayedBatches++
	st.process(seq, digest, payload, nil, true)
	if st.rep != r {
		return
	}
	r.progress = true
	st.attempts = 0
	if st.merged() {
		st.finish()
	}
}

// startedLate: the engine has newer batches than the cursor's, but not that one.
func (r *replay) startedLate(seq uint64) {
	st := r.st
	st.failed(ReplayStartedLate)
	why := fmt.Sprintf("replay begins at %d, after batch %d", seq, st.cur.seq)
	st.otherRun(r.withoutProof(), why)
}

// otherRun begins again because a replay has shown that the engine run is another one.
// The subscription may still have batches of the old run, held or unread, and their
// numbers may fit: it is closed with all that it has and opened again. Where engines
// push it is not this stream's alone. There, unless live batches are held, the number of
// the latest was one of the old run: lower ones are what is expected now, and no second
// restart.
func (st *stream) otherRun(kind lossKind, why string) {
	s := st.src
	again := kind == restarted && s.sock != nil
	if again {
		s.shut()
		st.onDisconnect()
	} else if kind == restarted && st.held.len() == 0 {
		st.arrived.set = false
	}
	st.rebase(kind, why, 0)
	if again {
		s.open()
	}
}

// withoutProof says what follows from an answer that does not have the cursor's
// batch: on a connection that stands the engine run is still the same.
func (r *replay) withoutProof() lossKind {
	if r.purpose == recovery && r.st.unbroken() {
		return lost
	}
	return restarted
}

// hole handles a jump inside an answer.
func (r *replay) hole(seq uint64) {
	st := r.st
	if !st.cur.set || !st.holeAt.set || st.holeAt.seq != st.cur.seq {
		st.holeAt.set, st.holeAt.seq = true, st.cur.seq
		st.begin(r.purpose)
		return
	}
	st.failed(ReplayHole)
	st.rebase(lost, fmt.Sprintf("batches %d to %d are missing in the replay", st.cur.seq+1, seq-1), seq)
}

// end handles the end marker.
func (r *replay) end() {
	st := r.st
	switch {
	case r.verify && !r.verified:
		st.failed(ReplayEmpty)
		kind := r.withoutProof()
		st.noReplay = kind == lost
		st.otherRun(kind, fmt.Sprintf("replay has nothing from batch %d on", st.cur.seq))
	case r.purpose == probe, !st.cur.set, st.caughtUp():
		st.finish()
	case r.progress:
		st.begin(r.purpose) // batches were published meanwhile
	default:
		r.retry(ReplayEndedEarly)
	}
}

// timeout: no reply for a while. Publishers lose the end marker along with replies
// when the reader is slow, so a stop is not yet the end.
func (r *replay) timeout() {
	st := r.st
	switch {
	case r.unusable:
		st.giveUp(ReplayUnreachable)
	case r.purpose.aside():
		if !r.verified {
			st.src.n.ProbesSilent++
		}
		st.dropReplay()
	case r.progress:
		st.begin(r.purpose)
	case r.verified && st.caughtUp():
		st.finish() // it has nothing more
	case r.verified:
		r.retry(ReplayEndedEarly)
	default:
		r.retry(ReplaySilent)
	}
}

func (r *replay) retry(end ReplayEnd) {
	st := r.st
	if st.attempts++; st.attempts >= st.src.loop.cfg.ReplayAttempts {
		st.giveUp(end)
		return
	}
	st.begin(r.purpose)
}

func (st *stream) failed(end ReplayEnd) {
	st.src.n.ReplayFailed[end]++
	st.src.dirty = true
}

// giveUp goes on without a replay, by the rules for a source that has none.
func (st *stream) giveUp(end ReplayEnd) {
	r := st.rep
	st.failed(end)
	st.dropReplay()
	st.state, st.attempts = live, 0
	if r.purpose.aside() {
		return
	}
	st.noReplay = true
	why := fmt.Sprintf("replay failed (%v)", end)
	switch {
	case r.purpose == join && !st.cur.set: // the first live batch is the baseline
	case r.purpose != prove && st.caughtUp():
	case st.need.set:
		st.rebase(lost, why, st.need.seq+1)
	case r.purpose == recovery && st.unbroken():
		st.rebase(lost, why, 0)
	default:
		st.rebase(restarted, why, 0)
	}
}

// tickRefill asks a stream that began late for older batches.
func (st *stream) tickRefill(now time.Time) {
	if !st.short || st.state != live || !st.src.connected || now.Before(st.refillAt) {
		return
	}
	l := st.src.loop
	st.refillAt = now.Add(l.jitter(l.cfg.ProbeMax))
	st.begin(refill)
}

// tickProbe asks a silent stream whether it has lost something (rule T5). One that has no
// batch yet, because its engine was not asked in the hurry of repeated restarts, is asked
// for everything.
func (st *stream) tickProbe(now time.Time) {
	s := st.src
	cfg := s.loop.cfg
	if cfg.ProbeAfter < 0 || st.state != live || st.rep != nil || !s.connected || st.conflict != nil || s.replayEndpoint(st.rank) == "" {
		return
	}
	if !st.cur.set && (!st.hurried || st.rebasedLately()) {
		return
	}
	if st.probeWait == 0 {
		st.probeWait = cfg.ProbeAfter
		st.probeDelay = s.loop.jitter(st.probeWait)
	}
	if now.Sub(st.heard) < st.probeDelay {
		return
	}
	st.probeWait = min(2*st.probeWait, cfg.ProbeMax)
	st.probeDelay = s.loop.jitter(st.probeWait)
	st.heard = now
	if !st.cur.set {
		st.noReplay, st.hurried = false, false
		st.begin(join)
	} else {
		st.begin(probe)
	}
	st.settle()
}
