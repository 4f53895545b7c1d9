package owner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/link"
	"github.com/kvcluster/kvcluster/transport/memory"
)

const testGroup = indexer.GroupID(1)

// world is one owner, "o", and nodes that read sources and send to it.
type world struct {
	net   *memory.Network
	index *lagIndex
	owner *Owner
	hub   *link.Hub
	local struct { // writer of this node's own slots
		indexer.Writer
	}
	peers map[string]*sender
	boots uint64
	stops []func()

	mu struct {
		sync.Mutex
		broken []broken
		refuse int // so many reports of broken copies fail
	}
}

type broken struct {
	peer string
	h    indexer.Header
}

var quietLog = slog.New(slog.NewTextHandler(io.Discard, nil))

func hubConfig(name string, boot uint64) link.Config {
	return link.Config{
		Name: name, Cluster: "test", Boot: boot, Bind: "mem://" + name,
		Heartbeat: 100 * time.Millisecond, Timeout: time.Second, Errors: Errors(), Logger: quietLog,
	}
}

// inWorld runs a scenario in a bubble and returns what it found.
func inWorld(t *testing.T, m mutant, scenario func(w *world) error) (err error) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{broken: m})
		defer w.stop()
		err = scenario(w)
	})
	return err
}

func newWorld(t *testing.T, cfg Config) *world {
	w := &world{net: memory.New(memory.Config{}), peers: map[string]*sender{}}
	w.index = newLagIndex(func(h indexer.Header, err error) { w.owner.OnFault(h, err) })
	w.local.Writer = w.index.NewWriter()
	cfg.Name, cfg.Index, cfg.Logger = "o", w.index, quietLog
	cfg.Broken = func(_ context.Context, peer string, h indexer.Header) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.mu.refuse > 0 {
			w.mu.refuse--
			return errors.New("refused")
		}
		w.mu.broken = append(w.mu.broken, broken{peer, h})
		return nil
	}
	cfg.FlushLocal = func(ctx context.Context, _ indexer.GroupID, _ indexer.Slot) error { return w.local.Flush(ctx) }
	var lateLinks lateLinks
	cfg.Links = &lateLinks
	o, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.owner = o
	w.hub, err = link.New(hubConfig("o", 1), w.net, incomingOnly{o})
	if err != nil {
		t.Fatal(err)
	}
	lateLinks.Hub = w.hub
	for name, fn := range o.Methods() {
		w.hub.Handle(name, fn)
	}
	w.run(o.Run)
	w.run(w.hub.Run)
	return w
}

// lateLinks is a hub that is made after the owner.
type lateLinks struct{ *link.Hub }

// incomingOnly makes a link.Handler of an owner.
type incomingOnly struct{ *Owner }

func (incomingOnly) OnPeer(link.Session, bool)  {}
func (incomingOnly) OnAck(link.Session, uint64) {}
func (incomingOnly) OnLapse(link.Session, bool) {}

func (w *world) run(fn func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := fn(ctx); err != nil {
			panic(err)
		}
	}()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	w.stops = append(w.stops, stop)
	return stop
}

func (w *world) stop() {
	w.index.open()
	for _, fn := range slices.Backward(w.stops) {
		fn()
	}
	w.local.Close()
}

// sender is a node that sends; its handler notes what it is told.
type sender struct {
	w    *world
	name string
	hub  *link.Hub
	stop func()
	mu   struct {
		sync.Mutex
		session link.Session
		up      bool
		lapsed  bool
		acked   uint64
	}
	last uint64 // number of the last payload
}

// start starts a sender, or starts it again with a new boot id.
func (w *world) start(name string) *sender {
	if old := w.peers[name]; old != nil {
		old.stop()
	}
	w.boots++
	s := &sender{w: w, name: name}
	w.peers[name] = s
	var err error
	if s.hub, err = link.New(hubConfig(name, 100+w.boots), w.net, outgoingOnly{s}); err != nil {
		panic(err)
	}
	if err = s.hub.SetPeers(map[string]string{"o": "mem://o"}); err != nil {
		panic(err)
	}
	ends := map[string]string{}
	for n := range w.peers {
		ends[n] = "mem://" + n
	}
	if err = w.hub.SetPeers(ends); err != nil {
		panic(err)
	}
	s.stop = w.run(s.hub.Run)
	w.await(func() bool { return s.up() })
	return s
}

type outgoingOnly struct{ s *sender }

func (outgoingOnly) OnSession(link.Session)               {}
func (outgoingOnly) OnFrame(link.Session, uint64, []byte) {}
func (outgoingOnly) OnSilence(link.Session)               {}
func (outgoingOnly) OnResume(link.Session)                {}

func (o outgoingOnly) OnPeer(s link.Session, up bool) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.mu.session, o.s.mu.up = s, up
	if up {
		o.s.mu.acked, o.s.last, o.s.mu.lapsed = 0, 0, false
	}
}

func (o outgoingOnly) OnAck(s link.Session, n uint64) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.mu.acked = n
}

func (o outgoingOnly) OnLapse(s link.Session, lapsed bool) {
	o.s.mu.Lock()
	defer o.s.mu.Unlock()
	o.s.mu.lapsed = lapsed
}

func (s *sender) up() bool      { s.mu.Lock(); defer s.mu.Unlock(); return s.mu.up }
func (s *sender) lapsed() bool  { s.mu.Lock(); defer s.mu.Unlock(); return s.mu.lapsed }
func (s *sender) acked() uint64 { s.mu.Lock(); defer s.mu.Unlock(); return s.mu.acked }

func (s *sender) send(payload []byte) {
	s.mu.Lock()
	session := s.mu.session
	s.mu.Unlock()
	n, err := s.hub.Send(session, payload)
	if err != nil {
		panic(err)
	}
	s.last = n
}

func (s *sender) call(ctx context.Context, method string, req []byte) ([]byte, error) {
	return s.hub.Call(ctx, "o", method, req)
}

// settled waits until everything sent is acknowledged.
func (s *sender) settled() error {
	if !s.w.await(func() bool { return s.acked() == s.last }) {
		return fmt.Errorf("%s: %d of %d payloads are acknowledged", s.name, s.acked(), s.last)
	}
	return nil
}

// await waits for at most ten seconds.
func (w *world) await(cond func() bool) bool {
	for range 10_000 {
		if cond() {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return cond()
}

// stream is the truth about one slot in one life.
type stream struct {
	copywire.SlotLife
	tenure uint64
	seq    uint64
	copies map[indexer.PartitionID]*truth
}

// truth is what a copy should have: runs of two blocks at the root.
type truth struct {
	live map[indexer.Run]uint64 // first local hash
	next uint64
	free indexer.Run // none below it is free
}

func newStream(slot indexer.Slot, life, tenure uint64) *stream {
	return &stream{SlotLife: copywire.SlotLife{Group: testGroup, Slot: slot, Life: life}, tenure: tenure, copies: map[indexer.PartitionID]*truth{}}
}

func (s *stream) copy(p indexer.PartitionID) *truth {
	if s.copies[p] == nil {
		s.copies[p] = &truth{live: map[indexer.Run]uint64{}}
	}
	return s.copies[p]
}

func (s *stream) header(p indexer.PartitionID) indexer.Header {
	return indexer.Header{Group: s.Group, Partition: p, Slot: s.Slot, Life: s.Life, Tenure: s.tenure, Sequence: s.seq}
}

// frame stores n runs.
func (s *stream) frame(p indexer.PartitionID, n int) indexer.Frame {
	c := s.copy(p)
	s.seq++
	var b indexer.FrameBuilder
	b.Reset(s.header(p))
	for range n {
		run := c.free
		for _, ok := c.live[run]; ok; _, ok = c.live[run] {
			run++
		}
		c.free = run + 1
		c.next += 2
		c.live[run] = s.Life<<32 | c.next
		l, e := b.Store(indexer.Device, run, 0, indexer.Parent{}, 2)
		l[0], l[1], e[0], e[1] = c.live[run], c.live[run]+1, c.next, c.next+1
	}
	return slices.Clone(b.Frame())
}

// drop drops the oldest runs.
func (s *stream) drop(p indexer.PartitionID, n int) indexer.Frame {
	c := s.copy(p)
	s.seq++
	var b indexer.FrameBuilder
	b.Reset(s.header(p))
	runs := slices.SortedFunc(maps.Keys(c.live), func(x, y indexer.Run) int { return int(c.live[x]) - int(c.live[y]) })
	for _, run := range runs[:min(n, len(runs))] {
		delete(c.live, run)
		c.free = min(c.free, run)
		b.Drop(indexer.Device, indexer.MakeRange(run, 0, 2))
	}
	return slices.Clone(b.Frame())
}

// bad is a frame that no index can apply.
func (s *stream) bad(p indexer.PartitionID) indexer.Frame {
	s.seq++
	var b indexer.FrameBuilder
	b.Reset(s.header(p))
	b.Drop(indexer.Device, indexer.MakeRange(1<<20, 0, 1))
	return slices.Clone(b.Frame())
}

// stretches are the dump of a copy as it should be.
func (s *stream) stretches(p indexer.PartitionID) (out []indexer.Stretch) {
	c := s.copy(p)
	for _, run := range slices.Sorted(maps.Keys(c.live)) {
		l := c.live[run]
		st := indexer.Stretch{Run: run, Tiers: 1, Locals: []uint64{l, l + 1}, Engines: []uint64{l & 0xffffffff, l&0xffffffff + 1}}
		st.Parent.Root = true
		out = append(out, st)
	}
	return out
}

// fill are the payloads that fill a copy with what it should have.
func (s *stream) fill(p indexer.PartitionID) (out [][]byte) {
	var b indexer.FrameBuilder
	if err := copywire.Rebuild(&b, s.header(p), s.stretches(p), 64, func(first, last bool, f indexer.Frame) error {
		out = append(out, copywire.AppendFill(nil, first, last, f))
		return nil
	}); err != nil {
		panic(err)
	}
	return out
}

func (s *stream) want(p indexer.PartitionID) string { return text(s.stretches(p)) }

func text(d []indexer.Stretch) string {
	var out strings.Builder
	for _, s := range d {
		fmt.Fprintf(&out, "%d:%x ", s.Run, s.Locals)
	}
	return out.String()
}

// have is what the index has of a copy.
func (w *world) have(s *stream, p indexer.PartitionID) string {
	var d []indexer.Stretch
	if err := w.index.Dump(context.Background(), s.Group, p, s.Slot, func(st indexer.Stretch) error {
		d = append(d, st)
		return nil
	}); err != nil {
		panic(err)
	}
	return text(d)
}

// readable asks with the mark since.
func (w *world) readable(s *stream, p indexer.PartitionID, since uint64) bool {
	out := w.owner.Unreadable(nil, since, ^uint64(0), s.Group, p, func(yield func(indexer.Slot, uint64) bool) { yield(s.Slot, s.Life) })
	return len(out) == 0
}

// is checks that a copy is readable and has what it should.
func (w *world) is(when string, s *stream, p indexer.PartitionID) error {
	if !w.readable(s, p, w.owner.Mark()) {
		return fmt.Errorf("%s: partition %d of slot %d is not readable", when, p, s.Slot)
	}
	if have, want := w.have(s, p), s.want(p); have != want {
		return fmt.Errorf("%s: partition %d of slot %d has %s, want %s", when, p, s.Slot, have, want)
	}
	return nil
}

// isNot checks that a copy is not readable.
func (w *world) isNot(when string, s *stream, p indexer.PartitionID) error {
	if w.readable(s, p, w.owner.Mark()) {
		return fmt.Errorf("%s: partition %d of slot %d is readable", when, p, s.Slot)
	}
	return nil
}

func (w *world) reported() []broken {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mu.broken)
}

// wantReported waits until exactly these copies have been reported to a peer.
func (w *world) wantReported(peer string, s *stream, partitions ...indexer.PartitionID) error {
	match := func() bool {
		got := w.reported()
		return len(got) == len(partitions) && !slices.ContainsFunc(got, func(b broken) bool {
			return b.peer != peer || b.h.Slot != s.Slot || b.h.Life != s.Life || !slices.Contains(partitions, b.h.Partition)
		})
	}
	if !w.await(match) {
		return fmt.Errorf("reported %+v, want partitions %v of slot %d to %s", w.reported(), partitions, s.Slot, peer)
	}
	return nil
}

func list(p ...indexer.PartitionID) []indexer.PartitionID { return p }
