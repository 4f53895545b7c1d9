package tree

import (
	"runtime"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

func sequence(from uint64, n int) []uint64 {
	out := make([]uint64, n)
	for i := range out {
		out[i] = mix(from<<20 + uint64(i))
	}
	return out
}

// sender applies simple frames of one slot.
type sender struct {
	l    *Lane
	slot indexer.Slot
	b    indexer.FrameBuilder
}

func (s *sender) begin() *indexer.FrameBuilder {
	s.b.Reset(indexer.Header{Slot: s.slot})
	return &s.b
}

func (s *sender) store(run indexer.Run, start int, parent indexer.Parent, path []uint64) {
	locals, engines := s.begin().Store(indexer.Device, run, uint32(start), parent, len(path))
	copy(locals, path)
	copy(engines, path)
	s.l.Apply(s.b.Frame())
}

func (s *sender) drop(run indexer.Run, from, n int) {
	s.begin().Drop(indexer.Device, indexer.MakeRange(run, from, n))
	s.l.Apply(s.b.Frame())
}

func (s *sender) clear() {
	s.begin().Clear(indexer.AllTiers)
	s.l.Apply(s.b.Frame())
}

func openTest(t testing.TB, cfg LaneConfig) *Lane {
	l, err := OpenLane(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestStalledReader pins a reader for good: limbo grows to its limit, then the reader
// loses its pin, its answer is thrown away, and memory is used again.
func TestStalledReader(t *testing.T) {
	l := openTest(t, LaneConfig{LimboLimit: 1 << 20})
	stalled, r := l.NewReader(), l.NewReader()
	defer stalled.Close()
	defer r.Close()
	s := sender{l: l}
	path := sequence(1, 500)
	s.store(0, 0, indexer.Parent{}, path)
	stalled.enter(l)
	peak := uint64(0)
	for i := range 2000 {
		s.store(1, 0, indexer.Parent{}, sequence(uint64(i+2), 500))
		s.drop(1, 0, 500)
		peak = max(peak, l.limbo.bytes)
	}
	if peak > 3<<20 {
		t.Errorf("limbo grew to %d bytes beyond its limit of %d", peak, 1<<20)
	}
	if l.Stats().Revoked == 0 {
		t.Error("no pin was revoked")
	}
	if stalled.ok() || stalled.leave() {
		t.Error("the stalled reader still believes what it reads")
	}
	var out indexer.Scores
	for _, reader := range []*Reader{stalled, r} {
		reader.Match(indexer.Query{Locals: path}, &out)
		if len(out.Rows) != 1 || out.Rows[0].Depth != 500 {
			t.Errorf("rows %v", out.Rows)
		}
	}
}

// TestRevokedInMidQuery revokes the pin at the moment a query looks at something: it
// must start again and answer rightly.
func TestRevokedInMidQuery(t *testing.T) {
	l := openTest(t, LaneConfig{})
	s := sender{l: l}
	path := sequence(1, 50)
	s.store(0, 0, indexer.Parent{}, path)
	r := l.NewReader()
	defer r.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 200_000 {
			l.pins.revoke(l.id, 1<<epochBits-1)
		}
	}()
	var out indexer.Scores
	queries := 0
	for running := true; running; queries++ {
		select {
		case <-done:
			running = false
		default:
		}
		r.Match(indexer.Query{Locals: path}, &out)
		// Revoked 64 times in a row is an empty answer: late, never too high.
		if len(out.Rows) > 1 || len(out.Rows) == 1 && out.Rows[0].Depth != 50 {
			t.Fatalf("rows %v", out.Rows)
		}
	}
	if r.retries == 0 {
		t.Logf("%d queries, none was hit", queries)
	}
}

func TestOldestPin(t *testing.T) {
	p := newPinSet()
	now := time.Unix(100, 0)
	pin := p.take()
	if d := p.age(now); d != 0 {
		t.Errorf("age %v without a pin", d)
	}
	pin.word.Store(7)
	p.age(now)
	if d := p.age(now.Add(3 * time.Second)); d != 3*time.Second {
		t.Errorf("age %v, want 3s", d)
	}
	pin.word.Store(8)
	if d := p.age(now.Add(4 * time.Second)); d != 0 {
		t.Errorf("age %v of a new pin", d)
	}
}

// TestPinnedTree drops a tree while a reader is pinned: everything comes back once it
// has gone.
func TestPinnedTree(t *testing.T) {
	l := openTest(t, LaneConfig{})
	s := sender{l: l}
	for i := range 200 {
		s.store(indexer.Run(i), 0, indexer.Parent{}, sequence(uint64(i), 100))
	}
	r := l.NewReader()
	defer r.Close()
	r.enter(l)
	s.clear()
	for range 100 {
		l.reclaim(reclaimBudget)
	}
	if l.limbo.pieces == 0 || l.arena.live[forContent] == 0 {
		t.Fatal("nothing waits for the reader")
	}
	r.leave()
	for range 100 {
		l.reclaim(reclaimBudget)
	}
	if l.limbo.pieces != 0 || l.arena.live[forContent] != 0 || l.arena.live[forChains] != 0 {
		t.Errorf("%d pieces in limbo, live %v", l.limbo.pieces, l.arena.live)
	}
}

// TestNoMemory fills a small lane: the copy that does not fit is closed and credited
// with nothing, the others go on.
func TestNoMemory(t *testing.T) {
	var faults int
	l := openTest(t, LaneConfig{Reserve: 64 << 20, OnFault: func(indexer.Header, error) { faults++ }})
	small, big := sender{l: l, slot: 1}, sender{l: l, slot: 2}
	small.store(0, 0, indexer.Parent{}, sequence(1, 100))
	for i := 0; faults == 0; i++ {
		big.store(indexer.Run(i), 0, indexer.Parent{}, sequence(uint64(i+10), 4000))
		if i > 2000 {
			t.Fatal("64 MiB hold 128 MB of blocks")
		}
	}
	r := l.NewReader()
	defer r.Close()
	var out indexer.Scores
	r.Match(indexer.Query{Locals: sequence(10, 4000)}, &out)
	if len(out.Rows) != 0 {
		t.Errorf("a closed copy is credited: %v", out.Rows)
	}
	for range 1000 {
		l.reclaim(reclaimBudget)
	}
	small.store(1, 0, indexer.Parent{}, sequence(2, 1000))
	r.Match(indexer.Query{Locals: sequence(2, 1000)}, &out)
	if faults != 1 || len(out.Rows) != 1 || out.Rows[0].Depth != 1000 {
		t.Errorf("%d faults, rows %v", faults, out.Rows)
	}
	if err := l.audit(); err != nil {
		t.Error(err)
	}
}

// TestHeapDoesNotGrow: the collector has nothing to scan that grows with blocks.
func TestHeapDoesNotGrow(t *testing.T) {
	l := openTest(t, LaneConfig{})
	s := sender{l: l}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 2000 {
		s.store(indexer.Run(i), 0, indexer.Parent{}, sequence(uint64(i), 200))
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 1<<19 {
		t.Errorf("the Go heap grew by %d bytes for %d blocks", grown, l.stored)
	}
	if l.held[0] != 400_000 {
		t.Errorf("held %d", l.held[0])
	}
}
