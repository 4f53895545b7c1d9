package ingest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// source is one publisher socket of one instance: its streams (one, or one for each
// rank where engines push) and the slots that they feed.
type source struct {
	loop     *loop
	entry    *entry
	spec     catalog.Source
	foreign  map[uint32]bool // ranks of the instance that another source feeds
	removed  map[uint32]bool // ranks that were unregistered while the source stayed
	tenure   uint64
	mooncake bool

	sock    transport.Socket // nil while closed, and where engines push
	bound   *bound           // where engines push
	streams []*stream
	slots   map[uint32]*slot

	connected bool
	paused    bool
	openErr   error // the socket cannot be opened; tried again at openAt
	openAt    time.Time
	openWait  time.Duration

	topicLock  topicLock
	n          SourceCounters
	lastError  string
	over       takeover
	opened     time.Time
	lastMsg    time.Time
	lastConn   time.Time
	dirty      bool
	publishAt  time.Time
	warnAt     time.Time // next log line about this source
	suppressed int
}

func newSource(l *loop, e *entry, spec catalog.Source, tenure uint64) *source {
	s := &source{
		loop: l, entry: e, spec: spec, tenure: tenure,
		removed: map[uint32]bool{}, slots: map[uint32]*slot{},
		opened: l.tl.Now(), openWait: l.cfg.RetryMin, dirty: true,
	}
	return s
}

// open subscribes. What fails is tried again by tick.
func (s *source) open() {
	var err error
	if catalog.Binds(s.spec.Endpoint) {
		s.bound, err = s.loop.bind(s)
	} else {
		if len(s.streams) == 0 {
			s.streams = []*stream{newStream(s, -1)}
		}
		s.sock, err = s.loop.tl.Subscribe(transport.SubscribeConfig{
			Endpoint: s.spec.Endpoint, Topic: s.spec.Topic,
			HighWater: s.loop.cfg.HighWater, MaxMessage: s.loop.cfg.MaxMessage,
		}, connecting{s})
	}
	s.openErr = err
	if err != nil {
		s.fail("open %s: %v", s.spec.Endpoint, err)
		s.openAt = s.loop.tl.Now().Add(s.openWait)
		s.openWait = min(2*s.openWait, s.loop.cfg.RetryMax)
		return
	}
	s.openWait = s.loop.cfg.RetryMin
}

// close ends the source. Slots that ended with it are cleared; the others are left as
// they are, for whoever writes them now. The manager sees to their reports.
func (s *source) close(ended func(catalog.Rank) bool) {
	s.shut()
	for _, st := range s.streams {
		st.stop()
	}
	for _, sl := range s.sorted() {
		sl.leave(ended(sl.reg))
	}
}

// shut closes the socket.
func (s *source) shut() {
	if s.sock != nil {
		s.sock.Close()
		s.sock = nil
	}
	if s.bound != nil {
		s.bound.leave(s)
		s.bound = nil
	}
	s.connected = false
}

// update applies a newer view of the source: ranks that came, went or got another life.
func (s *source) update(spec catalog.Source, foreign map[uint32]bool) {
	s.dirty = true
	s.spec, s.foreign = spec, foreign
	s.mooncake = len(spec.Ranks) > 0 && strings.EqualFold(spec.Ranks[0].EngineType, "mooncake")
	have := map[uint32]bool{}
	for _, r := range spec.Ranks {
		have[r.Rank] = true
		delete(s.removed, r.Rank)
		sl := s.slots[r.Rank]
		if sl == nil {
			sl = newSlot(s, r.Rank)
		}
		sl.adopt(r)
	}
	for _, sl := range s.sorted() {
		switch {
		case have[sl.rank]:
		case sl.reg.Life == 0 && !foreign[sl.rank]: // asked for, not there yet
		default:
			s.removed[sl.rank] = !foreign[sl.rank]
			sl.remove()
			delete(s.slots, sl.rank)
		}
	}
	s.goOn()
}

// goOn lets streams begin that waited for lives, and processes what is held.
func (s *source) goOn() {
	for _, st := range s.streams {
		if st.state == awaiting {
			st.join()
		}
		st.settle()
	}
}

func (s *source) sorted() []*slot {
	out := make([]*slot, 0, len(s.slots))
	for _, sl := range s.slots {
		out = append(out, sl)
	}
	slices.SortFunc(out, func(a, b *slot) int { return cmp.Compare(a.rank, b.rank) })
	return out
}

// replayEndpoint returns where a stream can be asked for old batches. Where engines
// push, every rank is its own publisher, and a rank that nobody registered has none.
func (s *source) replayEndpoint(rank int64) string {
	if rank < 0 {
		return s.spec.ReplayEndpoint
	}
	for _, r := range s.spec.Ranks {
		if int64(r.Rank) == rank && !r.Discovered {
			return r.ReplayEndpoint
		}
	}
	return ""
}

// rankOf says which rank a batch belongs to: the one it names, else the only one
// that is registered. Mooncake's master writes 0 whatever it serves.
func (s *source) rankOf(b *engine.Batch) (uint32, bool) {
	if b.Rank >= 0 && !s.mooncake {
		return uint32(b.Rank), true
	}
	only, n := uint32(0), 0
	for _, r := range s.spec.Ranks {
		if !r.Discovered {
			only = r.Rank
			n++
		}
	}
	if n == 1 {
		return only, true
	}
	if b.Rank >= 0 {
		return uint32(b.Rank), true
	}
	return 0, false
}

// slotOf returns the slot of a rank, asking for one if the rank is new; nil means
// that its batches are dropped.
func (s *source) slotOf(rank uint32) *slot {
	if sl := s.slots[rank]; sl != nil {
		return sl
	}
	switch {
	case s.foreign[rank]:
		s.fail("rank %d is fed by another endpoint of instance %s", rank, s.spec.Instance)
		return nil
	case s.removed[rank]:
		return nil
	case len(s.slots) >= s.loop.cfg.MaxRanks:
		s.fail("rank %d refused: %d ranks already", rank, len(s.slots))
		return nil
	}
	sl := newSlot(s, rank)
	sl.await()
	return sl
}

// connecting handles the SUB socket of a source that dials its publisher.
type connecting struct{ s *source }

func (c connecting) OnMessage(frames [][]byte) {
	s := c.s
	if s.paused || s.sock == nil {
		return
	}
	_, seq, payload, ok := s.parse(frames)
	if !ok {
		return
	}
	if !s.connected {
		if !strings.HasPrefix(s.spec.Endpoint, "inproc:") {
			// It comes over a connection that is lost already. What it says is asked for
			// when the next one stands; taken as the first of the next it would be
			// credited to an engine that may have restarted since.
			return
		}
		c.OnConnect() // there are no connection events
	}
	s.streams[0].onLive(seq, payload, nil)
}

func (c connecting) OnConnect() {
	s := c.s
	s.dirty = true
	s.n.Connects++
	s.lastConn = s.loop.tl.Now()
	if s.connected || s.paused {
		return
	}
	s.connected = true
	s.streams[0].onConnect()
}

func (c connecting) OnDisconnect() {
	s := c.s
	s.dirty = true
	s.n.Disconnects++
	if !s.connected {
		return
	}
	s.connected = false
	s.streams[0].onDisconnect()
}

// parse takes a live message apart and counts it.
func (s *source) parse(frames [][]byte) (topic []byte, seq uint64, payload []byte, ok bool) {
	s.dirty = true
	s.lastMsg = s.loop.tl.Now()
	s.n.Messages++
	topic, seq, payload, err := engine.ParseLive(frames)
	if err != nil {
		s.n.Malformed++
		s.fail("%v", err)
		return nil, 0, nil, false
	}
	s.n.Bytes += uint64(len(payload))
	return topic, seq, payload, true
}

// fail records what is wrong, for people.
func (s *source) fail(format string, args ...any) {
	s.lastError = fmt.Sprintf(format, args...)
	s.dirty = true
}

// note logs what happened to the source, at most once in ten seconds.
func (s *source) note(msg string, args ...any) {
	now := s.loop.tl.Now()
	if now.Before(s.warnAt) {
		s.suppressed++
		return
	}
	s.warnAt = now.Add(10 * time.Second)
	args = append(args, "instance", s.spec.Instance, "source", s.spec.ID, "endpoint", s.spec.Endpoint)
	if s.suppressed > 0 {
		args = append(args, "suppressed", s.suppressed)
		s.suppressed = 0
	}
	s.loop.log.Warn(msg, args...)
}

// pause stops reading; resume begins again as after a lost connection.
func (s *source) pause() {
	s.paused, s.dirty = true, true
	s.shut()
	for _, st := range s.streams {
		st.onDisconnect()
	}
}

func (s *source) resume() {
	s.paused, s.dirty, s.lastError = false, true, ""
	for _, st := range s.streams {
		st.conflict = nil
	}
	if s.sock == nil && s.bound == nil {
		s.open()
	}
	for _, st := range s.streams {
		st.settle()
	}
}

func (s *source) tick(now time.Time) {
	if s.openErr != nil && !s.paused && !now.Before(s.openAt) {
		s.open()
	}
	for _, st := range s.streams {
		st.tick(now)
	}
	for _, sl := range s.slots {
		sl.tick(now)
	}
	if s.dirty && !now.Before(s.publishAt) || now.Sub(s.publishAt) > 4*time.Second {
		s.publish(now)
	}
}

// publishEvery bounds how often a busy source's snapshot is made anew.
const publishEvery = 250 * time.Millisecond

func (s *source) publish(now time.Time) {
	s.dirty = false
	s.publishAt = now.Add(publishEvery)
	st := &SourceStatus{
		ID: s.spec.ID, Instance: s.spec.Instance, Endpoint: s.spec.Endpoint, ReplayEndpoint: s.spec.ReplayEndpoint,
		Topic: s.spec.Topic, Binds: catalog.Binds(s.spec.Endpoint), Loop: s.loop.index, Connected: s.connected,
		LastError: s.lastError, Opened: s.opened, LastMessage: s.lastMsg, LastConnected: s.lastConn, Counters: s.n,
	}
	if s.spec.Group != nil {
		st.Group = s.group()
	}
	for _, x := range s.streams {
		st.Held += x.held.len()
	}
	for _, sl := range s.sorted() {
		st.Ranks = append(st.Ranks, sl.snapshot(now))
	}
	st.State = s.state(nil)
	s.entry.status.Store(st)
}

// state derives what to show; sl narrows it to the stream of one slot.
func (s *source) state(sl *slot) State {
	switch {
	case s.paused:
		return Paused
	case s.openErr != nil || s.loop.writeErr != nil:
		return Failed
	}
	st := Pending
	for _, x := range s.streams {
		if sl != nil && !x.feeds(sl) {
			continue
		}
		switch {
		case x.conflict != nil:
			return Failed
		case x.state == replaying || x.state == awaiting:
			st = CatchingUp
		case x.state == live && st == Pending:
			st = Active
		}
	}
	if !s.connected && (st == Active || st == CatchingUp) {
		return Pending
	}
	return st
}
