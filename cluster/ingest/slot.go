package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// connectPatience is how long a first connection may take before its absence is called
// an error.
const connectPatience = 5 * time.Second

// bindsHere says that engines come to this node: none need be there.
func (s *source) bindsHere() bool { return catalog.Binds(s.spec.Endpoint) }

func (s *source) group() indexer.GroupID { return indexer.GroupID(s.spec.Group.ID) }

// slot is one rank of a source, through its lives. While it waits for a slot number
// its batches are held back; the stream and the other ranks go on.
type slot struct {
	src    *source
	rank   uint32
	reg    catalog.Rank        // Life 0 = no slot yet
	tr     translate.Interface // nil while waiting
	used   bool                // this life has seen events, so it may hold something
	groups groupFilter
	bigram bool

	own     bool // this life is ours to write, and to report when it ends
	heir    inherited
	over    bool // this life began because the source was taken over
	taking  bool // waits for a new life because another ingest wrote the present one
	waiting bool
	queue   backlog
	ask     command // for a life or for the discovery
	fill    filling
	acked   acknowledged

	renewed  time.Time // latest renewal, and the delay of the next one
	renewGap time.Duration

	n         RankCounters
	degraded  string
	lastError string
	badSize   uint32 // latest block size that is not the group's
	hasSeq    bool
	seq       uint64
	lastBatch time.Time
	lastEvent time.Time
	lag       time.Duration
}

// command is a log command that is repeated until its effect is seen in the catalog.
type command struct {
	want    bool
	asked   bool
	at      time.Time // not before; while asked: when the answer is overdue
	backoff time.Duration
	token   uint64 // of the latest request: late answers are ignored
}

func newSlot(s *source, rank uint32) *slot {
	cfg := s.loop.cfg
	sl := &slot{
		src: s, rank: rank, renewGap: cfg.RestartBackoff,
		queue: backlog{shared: &s.loop.buffers, maxItems: cfg.BufferBatches, maxBytes: cfg.BufferBytes},
	}
	s.slots[rank] = sl
	s.dirty = true
	return sl
}

// adopt takes the rank as the catalog has it: a first slot, a new life, or the same.
func (sl *slot) adopt(r catalog.Rank) {
	s := sl.src
	if sl.reg.Life == r.Life {
		sl.reg = r
		return
	}
	if r.Life < s.tenure {
		sl.takeOver(r)
		return
	}
	// Another node asked for it, when it read this source: what came before is in no life.
	foreign := sl.reg.Life != 0 && !sl.waiting
	if sl.reg.Life != 0 {
		sl.wipe()
		sl.retired()
		sl.n.Lives++
		s.note("new life", "rank", sl.rank, "slot", r.Slot, "life", r.Life)
	}
	sl.reg = r
	sl.own, sl.taking, sl.waiting = true, false, false
	sl.ask = command{token: sl.ask.token}
	sl.used, sl.degraded, sl.groups, sl.bigram, sl.lastError = false, "", groupFilter{}, false, ""
	sl.heir = inherited{token: sl.heir.token + 1, why: sl.heir.why}
	sl.fill = filling{token: sl.fill.token + 1}
	sl.acked = acknowledged{}
	sl.tr = sl.newTranslator()
	sl.drain()
	for _, st := range s.streams {
		if foreign && st.feeds(sl) {
			st.rebase(restarted, "another node ended the life", 0)
		}
	}
}

func (sl *slot) newTranslator() translate.Interface {
	s, l, r := sl.src, sl.src.loop, &sl.reg
	return l.m.deps.NewTranslator(translate.Config{
		Group: s.group(), Slot: indexer.Slot(r.Slot), Life: r.Life, Tenure: s.tenure,
		BlockSize: int(s.spec.Group.BlockSize),
		Partition: func(first uint64) indexer.PartitionID {
			return indexer.PartitionID(l.cfg.Layout.Partition(s.spec.Group.ID, first, r.Slot))
		},
		Lora: r.Lora, Salt: r.Salt, CountCopies: r.CountCopies,
		MaxOrphanBlocks: l.cfg.MaxOrphanBlocks, MaxTainted: l.cfg.MaxTainted, MaxBlocks: l.cfg.MaxBlocks,
		Memory: l.m.memory, Scratch: l.shared,
	})
}

// drain applies what came while the slot was awaited.
func (sl *slot) drain() {
	for !sl.waiting && sl.queue.len() > 0 {
		r := sl.queue.pop()
		b, err := sl.src.loop.dec.Decode(r.payload)
		if err != nil { // it was decoded before it was queued
			sl.fail("batch %d: %v", r.seq, err)
			continue
		}
		sl.apply(r.seq, b)
	}
}

// deliver applies a batch, or holds it until the slot is there. When too much waits,
// the oldest goes: the slot is empty, so it can begin at any batch.
func (sl *slot) deliver(seq uint64, payload []byte, b *engine.Batch) {
	if !sl.waiting {
		sl.apply(seq, b)
		return
	}
	sl.n.DroppedWait += uint64(sl.queue.push(raw{seq: seq, payload: bytes.Clone(payload)}))
}

// await holds batches back until the catalog has a slot for the rank.
func (sl *slot) await() {
	sl.waiting = true
	sl.ask.want, sl.ask.at, sl.ask.backoff = true, time.Time{}, sl.src.loop.cfg.RetryMin
	sl.tick(sl.src.loop.tl.Now())
}

// renew ends the present life: what it holds is cleared at once and a fresh slot is
// asked for (rule G1). A life that has seen nothing goes on.
func (sl *slot) renew(why string) {
	if sl.waiting {
		sl.queue.clear()
		return
	}
	if !sl.used && !sl.heir.unproved {
		sl.degraded = ""
		return
	}
	if sl.heir.unproved { // it starts over, and its stream with it
		sl.heir.unproved, sl.heir.why, sl.taking = false, why, true
	}
	l := sl.src.loop
	now := l.tl.Now()
	sl.lastError, sl.over = why, sl.taking
	sl.wipe()
	sl.src.note("life ended", "rank", sl.rank, "slot", sl.reg.Slot, "life", sl.reg.Life, "why", why)
	delay := time.Duration(0)
	if !sl.renewed.IsZero() && now.Sub(sl.renewed) < l.cfg.RestartBackoffMax {
		if wait := sl.renewGap - now.Sub(sl.renewed); wait > 0 {
			delay = wait
		}
		sl.renewGap = min(2*sl.renewGap, l.cfg.RestartBackoffMax)
	} else {
		sl.renewGap = l.cfg.RestartBackoff
	}
	sl.renewed = now.Add(delay)
	sl.waiting = true
	sl.ask.want, sl.ask.at, sl.ask.backoff = true, now.Add(delay), l.cfg.RetryMin
	sl.tick(now)
}

// lose handles content of this slot alone that is lost for good.
func (sl *slot) lose(why string) {
	if sl.src.loop.cfg.OnLoss == KeepOnLoss {
		sl.degrade(why)
		return
	}
	sl.n.Degraded++
	sl.renew(why)
}

// degrade flags the slot: what it holds may no longer be what the engine holds.
func (sl *slot) degrade(why string) {
	if sl.used && sl.degraded == "" {
		sl.n.Degraded++
		sl.degraded = why
		sl.void(sl.frameSeq())
		sl.src.note("slot degraded", "rank", sl.rank, "why", why)
	}
}

// wipe clears the slot in the index, through its translator, and lets that go.
func (sl *slot) wipe() {
	if sl.tr == nil {
		return
	}
	if h, ok := sl.tr.(translate.Heir); ok {
		h.Disinherit()
		sl.void(sl.frameSeq())
	}
	sl.tr.Begin(sl.frameSeq())
	sl.tr.Clear(indexer.AllTiers)
	sl.src.loop.wrote(sl.tr.End(sl.src.loop.emitFn))
	sl.release()
	sl.used = false
}

// release lets the translator go, and its memory.
func (sl *slot) release() {
	if c, ok := sl.tr.(interface{ Close() }); ok {
		c.Close()
	}
	sl.tr = nil
}

// frameSeq labels frames that no batch caused: with the latest batch's number.
func (sl *slot) frameSeq() uint64 {
	if !sl.hasSeq {
		return 0
	}
	return sl.seq
}

// retired reports the slot's number once its clear has been applied, if it was ours.
func (sl *slot) retired() {
	if !sl.own {
		return
	}
	sl.own = false
	sl.src.loop.retire(catalog.Retired{Group: sl.src.spec.Group.ID, Slot: sl.reg.Slot, Life: sl.reg.Life})
}

// remove ends a rank that was unregistered.
func (sl *slot) remove() {
	sl.leave(true)
	sl.retired()
}

// leave lets the rank go. Unless it has ended, the index keeps what it holds.
func (sl *slot) leave(ended bool) {
	sl.queue.clear()
	sl.ask = command{token: sl.ask.token + 1}
	sl.waiting, sl.taking = true, false
	sl.heir = inherited{token: sl.heir.token + 1}
	if ended {
		sl.wipe()
	}
	sl.release()
}

// tick sends and repeats the log command that the slot waits for.
func (sl *slot) tick(now time.Time) {
	sl.tickHeir(now)
	sl.tickFilling(now)
	sl.tickAcknowledged()
	a := &sl.ask
	if !a.want || now.Before(a.at) {
		return
	}
	l := sl.src.loop
	a.token++
	a.asked, a.at = true, now.Add(l.cfg.LogTimeout)
	token := a.token
	done := func(err error) {
		l.tl.Post(func() { sl.answered(token, err) })
	}
	if sl.reg.Life == 0 {
		l.m.deps.Log.Discover(sl.src.spec.ID, sl.rank, done)
	} else {
		l.m.deps.Log.NewLife(sl.src.spec.Instance, sl.rank, sl.reg.Life, done)
	}
}

func (sl *slot) answered(token uint64, err error) {
	a := &sl.ask
	if !a.want || a.token != token || err == nil {
		return // what changed comes with the next view
	}
	a.asked = false
	a.at = sl.src.loop.tl.Now().Add(a.backoff)
	a.backoff = min(2*a.backoff, sl.src.loop.cfg.RetryMax)
	what := "new life"
	if sl.reg.Life == 0 {
		what = "slot for discovered rank"
	}
	sl.fail("%s: %v", what, err)
	if sl.taking {
		sl.taking = false // the other ranks of the stream do not wait for it
		sl.src.goOn()
	}
	if errors.Is(err, catalog.ErrExhausted) {
		sl.src.note("no slot", "rank", sl.rank, "error", err)
	}
}

func (sl *slot) fail(format string, args ...any) {
	sl.lastError = fmt.Sprintf(format, args...)
	sl.src.dirty = true
}

// apply translates one batch.
func (sl *slot) apply(seq uint64, b *engine.Batch) {
	l := sl.src.loop
	now := l.tl.Now()
	sl.hasSeq, sl.seq, sl.lastBatch = true, seq, now
	sl.acked.behind = true
	sl.n.Batches++
	for i, n := range b.Skipped {
		sl.n.Skipped[i] += uint64(n)
	}
	if len(b.Events) > 0 {
		sl.used = true
		sl.lastEvent = now
		before := l.w.Written()
		sl.tr.Begin(seq)
		for i := range b.Events {
			sl.event(&b.Events[i])
		}
		sl.tellUnsound(seq)
		l.wrote(sl.tr.End(l.emitFn))
		if sent := engineTime(b.Time); !sent.IsZero() {
			sl.lag = max(0, now.Sub(sent))
			if l.w.Written() != before {
				l.sampleLag(sent)
			}
		}
	}
	if b.LostRemovals > 0 {
		sl.n.LostRemoval += uint64(b.LostRemovals)
		sl.lose(fmt.Sprintf("batch %d has %d unreadable events that may be removals", seq, b.LostRemovals))
	}
}

// engineTime converts an engine's clock; zero if it says nothing.
func engineTime(t float64) time.Time {
	if t <= 0 || t > 1e11 {
		return time.Time{}
	}
	sec, frac := math.Modf(t)
	return time.Unix(int64(sec), int64(frac*1e9))
}

func (sl *slot) snapshot(now time.Time) RankStatus {
	s := sl.src
	st := RankStatus{
		Rank: sl.rank, Slot: indexer.Slot(sl.reg.Slot), Life: sl.reg.Life, Discovered: sl.reg.Discovered || sl.reg.Life == 0,
		State: s.state(sl), LastError: sl.lastError, Degraded: sl.degraded,
		HasSequence: sl.hasSeq, Sequence: sl.seq, HasAcknowledged: sl.acked.has, Acknowledged: sl.acked.seq, LastBatch: sl.lastBatch, LastEvent: sl.lastEvent, Lag: sl.lag,
		Waiting: sl.queue.len(), Counters: sl.n, WrongBlockSize: sl.badSize,
	}
	if st.LastError == "" {
		st.LastError = s.lastError
	}
	if sl.waiting && (st.State == Active || st.State == CatchingUp) {
		st.State = Buffering
	}
	if st.LastError == "" && st.State == Pending && !s.bindsHere() {
		switch {
		case !s.lastConn.IsZero():
			st.LastError = "the publisher at " + s.spec.Endpoint + " is gone"
		case now.Sub(s.opened) > connectPatience:
			st.LastError = "no publisher answers at " + s.spec.Endpoint
		}
	}
	if sl.tr != nil {
		st.Translator = sl.tr.Stats()
	}
	st.Warnings = sl.warnings(now, &st)
	return st
}

// warnings are remarks that follow from nothing else in the snapshot: silence, sizes,
// refusal and degradation are judged by whoever shows it.
func (sl *slot) warnings(now time.Time, st *RankStatus) (w []string) {
	s := sl.src
	warn := func(format string, args ...any) { w = append(w, fmt.Sprintf(format, args...)) }
	if !s.connected && !s.lastConn.IsZero() && st.State == Pending {
		warn("connection lost; last batch %v ago", now.Sub(sl.lastBatch).Round(time.Second))
	}
	if st.Discovered {
		warn("rank is not registered")
	}
	if text := s.over.text(now, sl); text != "" && (sl.taking || sl.over) {
		warn("%s", text)
	}
	st.Short = sl.short()
	for _, st := range s.streams {
		if st.short && st.feeds(sl) {
			warn("began at batch %d: the replay failed, older blocks are unknown; it is asked again", st.base)
		}
	}
	return w
}
