package ingest

import (
	"bytes"
	"fmt"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvcluster/kvcluster/transport/engine"
)

type streamState uint8

const (
	idle      streamState = iota // no connection
	live                         // batches are applied as they come
	replaying                    // live batches are held back until a replay has caught up
	awaiting                     // live batches are held back until slots that were taken over have new lives
)

// lossKind says what is known of an engine whose stream cannot be continued.
// cursor is the latest batch that was processed (rule T3). The life is that of the
// slots.
type cursor struct {
	set    bool
	seq    uint64
	digest uint64
	// inherited: the digest is that of a Cursor.
	inherited bool
}

// is says whether the digest of a payload is the cursor's.
func (c *cursor) is(digest uint64) bool {
	if c.inherited {
		return sameBatch(c.digest, digest)
	}
	return c.digest == digest
}

// stream is one sequence counter: everything that comes over one connected socket, or
// one rank of a pushing source.
type stream struct {
	src   *source
	rank  int64 // -1: every rank that the batches name
	state streamState
	cur   cursor
	seen  digests

	// broken: the connection that delivered the cursor's batch is gone, and nothing
	// has proved since that the same engine run goes on.
	broken bool
	// Of a pushing source: the socket's connection counters at the latest batch.
	connects, disconnects uint64
	// arrived is the number of the latest live batch of this connection, processed or
	// held. On one connection numbers rise, so one that does not is no delay.
	arrived struct {
		set bool
		seq uint64
	}

	// overlap: until then live batches may come that a replay has overtaken.
	overlap time.Time

	held     backlog
	rep      *replay
	attempts int
	joinFrom uint64 // a replay without a cursor asks from here on
	// floor is the first batch of this run that can be had: those before it are missing in the
	// engine's own buffer, or there is one among them that cannot be read.
	floor uint64
	// rejoined: a replay was asked for because the first live batch was not the first.
	rejoined bool
	// placed: the engine has shown, after a live batch older than all that is known here had
	// come, that its run is the same.
	placed bool
	// holeAt is the batch after which a replay jumped. A second jump there is a hole in
	// the engine's buffer and not a reply lost on the way.
	holeAt struct {
		set bool
		seq uint64
	}
	// need is a batch that only the replay can bring: it came, but unreadable.
	need struct {
		set bool
		seq uint64
	}
	// noReplay: the latest replay failed; go on without, until a batch was processed.
	noReplay bool
	hurried  bool      // noReplay because of repeated restarts alone
	rebased  time.Time // latest rebase
	conflict *conflict

	// short: the stream began at batch base because the replay failed, so older batches
	// may be had later. The engine is asked again at refillAt.
	short    bool
	base     uint64
	refillAt time.Time

	heard      time.Time // latest sign of life: a live batch, or a replay or probe that ended
	probeWait  time.Duration
	probeDelay time.Duration // probeWait, jittered
}

// conflict is two publishers that send under one name.
type conflict struct{ connects, disconnects uint64 }

func newStream(s *source, rank int64) *stream {
	cfg := s.loop.cfg
	return &stream{
		src: s, rank: rank,
		held: backlog{shared: &s.loop.buffers, maxItems: cfg.BufferBatches, maxBytes: cfg.BufferBytes},
	}
}

// feeds says whether the stream carries a slot's batches.
func (st *stream) feeds(sl *slot) bool { return st.rank < 0 || st.rank == int64(sl.rank) }

// used says whether any slot of the stream may hold something.
func (st *stream) used() bool {
	for _, sl := range st.src.slots {
		if st.feeds(sl) && sl.used {
			return true
		}
	}
	return false
}

func (st *stream) stop() {
	st.dropReplay()
	st.held.clear()
}

// onConnect: a connection stands. What was held before it must be proved.
func (st *stream) onConnect() {
	switch {
	case !st.broken:
		st.join()
	case st.cur.set && st.canReplay():
		st.begin(prove)
	default:
		st.rebase(restarted, "reconnected, and nothing proves that the engine is the same", 0)
	}
	st.settle()
}

// onDisconnect: batches may have been lost with the connection, those held included
// (what follows them is not known to be consecutive with what comes next).
func (st *stream) onDisconnect() {
	st.dropReplay()
	st.held.clear()
	st.state = idle
	st.arrived.set, st.rejoined, st.placed = false, false, false
	st.broken = st.cur.set || st.used()
}

// join begins to follow the engine, from its oldest batch where it can be asked.
func (st *stream) join() {
	st.settleHeirs()
	switch {
	case st.takingOver():
		st.state = awaiting
	case st.inherit():
		st.begin(prove)
	case st.canReplay():
		st.begin(join)
	default:
		st.state = live
		st.src.over.replayed(st.src.n.ReplayedBatches)
	}
}

// onLive handles a batch from the subscription. b is its content if already decoded.
func (st *stream) onLive(seq uint64, payload []byte, b *engine.Batch) {
	s := st.src
	st.heard = s.lastMsg
	st.probeWait = 0
	back := st.arrived.set && seq <= st.arrived.seq
	st.arrived.set, st.arrived.seq = true, seq
	if st.conflict != nil && !st.conflictOver() {
		s.n.Conflicts++
		return
	}
	if st.rep != nil && st.rep.purpose == probe {
		st.dropReplay() // no longer silent
	}
	if st.state == live && st.held.len() == 0 {
		if st.handle(seq, back, payload, b) {
			return
		}
		back = false // judged: it is where the stream goes on
	}
	if n := st.held.push(raw{seq: seq, back: back, payload: bytes.Clone(payload)}); n > 0 {
		s.n.Overflow += uint64(n)
	}
	if st.merged() {
		st.finish()
	}
	st.settle()
}

// settle processes what is held, as far as the state allows. Every entry from outside
// ends with it; handlers below only change the state.
func (st *stream) settle() {
	for st.state == live && st.held.len() > 0 {
		r := st.held.pop()
		if !st.handle(r.seq, r.back, r.payload, nil) {
			r.back = false
			st.held.unpop(r)
		}
		if st.conflict != nil {
			st.src.n.Conflicts += uint64(st.held.clear())
		}
	}
}

// handle judges one live batch and processes it. It returns false if the batch has to
// be looked at again, in another state.
func (st *stream) handle(seq uint64, back bool, payload []byte, b *engine.Batch) bool {
	s := st.src
	digest := xxh3.Hash(payload)
	if !st.unbroken() {
		if st.cur.set && st.canReplay() {
			st.begin(prove)
		} else {
			st.rebase(restarted, "reconnected, and nothing proves that the engine is the same", 0)
		}
		return false
	}
	switch {
	case back && st.cur.set && seq > st.cur.seq:
		return st.wentBack(seq) // what it went back from was held and is still to come, or was dropped
	case !st.cur.set && seq > st.joinFrom && !st.rejoined && st.canReplay():
		// The engine had nothing when it was asked at the beginning; what it published
		// before this batch may have been lost on the way.
		st.rejoined = true
		st.begin(join)
		return false
	case !st.cur.set || seq == st.cur.seq+1:
		if !st.cur.set && st.noReplay && seq > st.joinFrom && s.replayEndpoint(st.rank) != "" {
			wait := s.loop.cfg.ProbeMax
			if st.hurried { // nothing is wrong with the replay
				wait = min(wait, s.loop.cfg.RestartBackoff)
			}
			st.short, st.base, st.refillAt = true, seq, s.loop.tl.Now().Add(s.loop.jitter(wait))
		}
		st.process(seq, digest, payload, b, false)
		return true
	case seq > st.cur.seq:
		return st.gap(seq)
	}
	known, ok := st.seen.get(seq)
	switch {
	case ok && known == digest:
		s.n.Duplicates++
		return true
	case !ok && !back && s.loop.tl.Now().Before(st.overlap):
		if !st.placed && st.canReplay() {
			// Its content is not known here. A replay was ahead of it, or the engine restarted
			// since: that is asked once, later ones are judged by what they follow.
			st.placed = true
			st.begin(prove)
			return false
		}
		s.n.Duplicates++
		return true
	}
	return st.wentBack(seq)
}

// gap handles a forward jump on an unbroken connection.
func (st *stream) gap(seq uint64) bool {
	st.src.n.Gaps++
	st.src.fail("gap: batch %d came after %d", seq, st.cur.seq)
	if st.canReplay() {
		st.begin(recovery)
	} else {
		st.rebase(lost, fmt.Sprintf("batches %d to %d are lost, no replay", st.cur.seq+1, seq-1), 0)
	}
	return false
}

// wentBack handles a number that was there before, with other content. A connected
// publisher that does this has restarted. Where engines push it has only if a
// connection was made since its last batch: a restart needs one. Otherwise two
// publishers use one name, and nothing of either can be credited.
func (st *stream) wentBack(seq uint64) bool {
	b := st.src.bound
	if b == nil || b.connects > st.connects {
		st.rebase(restarted, fmt.Sprintf("sequence went back from %d to %d", st.cur.seq, seq), 0)
		return false
	}
	st.src.n.Conflicts++
	st.rebase(restarted, "two publishers share a topic and a rank", 0)
	st.dropReplay()
	st.state = live
	st.conflict = &conflict{b.connects, b.disconnects}
	st.src.fail("two publishers send as rank %d on %s; give each its own topic", st.rank, st.src.spec.Endpoint)
	return true
}

// conflictOver ends a conflict once a publisher came or went: the next batch is the
// beginning of a new life.
func (st *stream) conflictOver() bool {
	b := st.src.bound
	if b == nil || b.connects == st.conflict.connects && b.disconnects == st.conflict.disconnects {
		return false
	}
	st.conflict = nil
	st.join()
	return true
}

// unbroken says whether the batch at hand comes over the connection that the cursor's
// came over. Where engines push that cannot be seen for each publisher: it is taken as
// broken if one went and one came since.
func (st *stream) unbroken() bool {
	if b := st.src.bound; b != nil && st.cur.set {
		return !st.broken && !(b.connects > st.connects && b.disconnects > st.disconnects)
	}
	return !st.broken
}

// process applies a batch that is next in line, or the first.
func (st *stream) process(seq, digest uint64, payload []byte, b *engine.Batch, fromReplay bool) {
	s := st.src
	if b == nil {
		var err error
		if b, err = s.loop.dec.Decode(payload); err != nil {
			st.undecodable(seq, err, fromReplay)
			return
		}
	}
	if b.Trailing {
		s.n.Trailing++
	}
	rank, ok := s.rankOf(b)
	var sl *slot
	switch {
	case ok:
		if sl = s.slots[rank]; sl == nil && len(b.Events) > 0 {
			sl = s.slotOf(rank)
		}
	case len(b.Events) > 0 || b.LostRemovals > 0:
		s.n.NoRank++
		s.fail("batch %d names no rank, and %d are registered", seq, len(s.spec.Ranks))
		if losesRemovals(b) && st.used() {
			st.advance(seq, digest)
			st.rebase(lost, "a batch with removals names no rank", seq+1)
			return
		}
	}
	st.advance(seq, digest)
	st.verify(seq, digest)
	if sl != nil {
		sl.deliver(seq, payload, b)
	}
}

func losesRemovals(b *engine.Batch) bool {
	if b.LostRemovals > 0 {
		return true
	}
	for i := range b.Events {
		if b.Events[i].Kind != engine.Stored {
			return true
		}
	}
	return false
}

// undecodable: the content of a batch is unknown, which is a loss. Asking once more
// tells a damaged message from an engine that sends garbage.
func (st *stream) undecodable(seq uint64, err error, fromReplay bool) {
	s := st.src
	if !fromReplay && st.cur.set && st.canReplay() && !st.rebasedLately() {
		st.need.set, st.need.seq = true, seq
		st.begin(recovery)
		return
	}
	s.n.Undecodable++
	s.fail("batch %d: %v", seq, err)
	st.rebase(lost, fmt.Sprintf("batch %d cannot be decoded", seq), seq+1)
}

// caughtUp says whether what is held, or what comes next, continues the cursor.
func (st *stream) caughtUp() bool {
	if st.need.set && (!st.cur.set || st.cur.seq < st.need.seq) {
		return false
	}
	return st.held.len() == 0 || st.cur.set && st.held.front().seq <= st.cur.seq+1
}

// advance moves the cursor.
func (st *stream) advance(seq, digest uint64) {
	st.cur = cursor{set: true, seq: seq, digest: digest}
	st.seen.add(seq, digest)
	st.noReplay, st.hurried, st.rejoined = false, false, false
	if b := st.src.bound; b != nil {
		st.connects, st.disconnects = b.connects, b.disconnects
	}
}

func (st *stream) tick(now time.Time) {
	if st.rep != nil {
		if !now.Before(st.rep.deadline) {
			st.rep.timeout()
			st.settle()
		}
		return
	}
	st.tickRefill(now)
	st.tickProbe(now)
}
