package translate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// chain makes a store of n blocks with hashes base, base+1, ..
func chain(parent uint64, base uint64, n int) Store {
	s := Store{HasParent: parent != 0, Parent: parent}
	for i := range uint64(n) {
		s.Engines = append(s.Engines, base+i)
		s.Content.Tokens = append(s.Content.Tokens, uint32(base+i))
	}
	s.Content.BlockSize, s.Content.Window = 1, 1
	return s
}

func (w *world) events(t *testing.T, ev ...func(tb)) { t.Helper(); w.batch(t, ev...) }

func storing(w *world, s Store) func(tb) { return func(t tb) { w.store(t, s) } }

// The bound of rule N8 holds after every event; what is dropped for it is said in
// ordinary drops, ends of runs first, and a run in use is spared.
func TestMaxBlocks(t *testing.T) {
	o := newOwner()
	tr := New(Config{MaxBlocks: 1000, CountCopies: true, Partition: func(f uint64) indexer.PartitionID { return indexer.PartitionID(f % 2) }})
	defer tr.Close()
	for i := range uint64(60) {
		tr.Begin(i)
		s := chain(5_000_000, 1_000_000+i*1000, 37) // below a prompt that all share
		if i == 0 {
			tr.Store(chain(0, 5_000_000-99, 100))
		}
		out := tr.Store(s)
		if out.Stored != 37 || out.Err != nil {
			t.Fatalf("store %d: %+v", i, out)
		}
		if i%3 == 0 {
			s.Tier = indexer.Host
			tr.Store(s)
		}
		if err := tr.End(o.apply); err != nil {
			t.Fatal(err)
		}
		if m := tr.Stats().Mapped; m > 1000 || o.names() != int(m) {
			t.Fatalf("store %d: %d mapped, %d names", i, m, o.names())
		}
		if err := tr.audit(); err != nil {
			t.Fatal(err)
		}
	}
	st := tr.Stats()
	if st.Shed < 60*37+100-1000 || st.Shed > 60*37+100-1000+60*3 {
		t.Errorf("%d blocks shed", st.Shed)
	}
	for h := uint64(5_000_000 - 99); h <= 5_000_000; h++ {
		if tr.Lookup(h) != HashHeld {
			t.Fatalf("the shared prompt lost block %d", h)
		}
	}
	// What is left of a run is a prefix of it, but for the few whose units do not lie
	// in ascending order.
	gaps := 0
	for i := range uint64(60) {
		ended := false
		for j := range uint64(37) {
			held := tr.Lookup(1_000_000+i*1000+j) == HashHeld
			if held && ended {
				gaps++
				break
			}
			ended = ended || !held
		}
	}
	if gaps > 3 {
		t.Errorf("%d runs with a gap", gaps)
	}
	tr.Begin(100)
	if out := tr.Shed(100/float64(tr.Stats().Mapped), nil); out.Shed < 100 || out.Shed > 104 {
		t.Errorf("shed %d of 100", out.Shed)
	}
	if out := tr.Shed(1, nil); tr.Stats().Mapped != 0 {
		t.Errorf("shed %d, %d left", out.Shed, tr.Stats().Mapped)
	}
	if err := tr.End(o.apply); err != nil || o.names() != 0 {
		t.Errorf("%d names left, %v", o.names(), err)
	}
}

// Blocks are shed from the partitions that room is needed in, and from no others.
func TestShedInSomePartitions(t *testing.T) {
	o := newOwner()
	tr := New(Config{Partition: func(first uint64) indexer.PartitionID { return indexer.PartitionID(first / 1000 % 4) }})
	const runs, blocks = 40, 25
	name := func(run, block uint64) uint64 { return 1_000_000 + run*1000 + block }
	for i := range uint64(runs) {
		s := Store{}
		for j := range uint64(blocks) {
			s.Engines, s.Content.Locals = append(s.Engines, name(i, j)), append(s.Content.Locals, i*1000+j)
		}
		tr.Begin(i)
		if out := tr.Store(s); out.Stored != blocks {
			t.Fatalf("run %d: %+v", i, out)
		}
		if err := tr.End(o.apply); err != nil {
			t.Fatal(err)
		}
	}
	held := func() (n [4]int) {
		for i := range uint64(runs) {
			for j := range uint64(blocks) {
				if tr.Lookup(name(i, j)) == HashHeld {
					n[i%4]++
				}
			}
		}
		return n
	}
	tr.Begin(100)
	out := tr.Shed(0.5, func(p indexer.PartitionID) bool { return p == 1 || p == 3 })
	if err := tr.End(o.apply); err != nil {
		t.Fatal(err)
	}
	const each = runs / 4 * blocks
	n := held()
	if out.Shed < each || out.Shed > each+3 || n[0] != each || n[2] != each || n[1]+n[3] != 2*each-out.Shed {
		t.Errorf("shed %d of %d, left are %v", out.Shed, 2*each, n)
	}
	if want := uint64(n[0] + n[1] + n[2] + n[3]); tr.Stats().Mapped != want || uint64(o.names()) != want {
		t.Errorf("%d mapped, %d names at the owner, want %d", tr.Stats().Mapped, o.names(), want)
	}
	tr.Begin(101)
	if out := tr.Shed(1, func(p indexer.PartitionID) bool { return p > 3 }); out.Shed != 0 {
		t.Errorf("shed %d of partitions that the slot has nothing in", out.Shed)
	}
	tr.Shed(1, func(p indexer.PartitionID) bool { return p == 1 })
	if err := tr.End(o.apply); err != nil || held()[1] != 0 || held()[2] != each {
		t.Errorf("after the whole share of one partition: %v, %v", held(), err)
	}
}

// Orphans beyond the bound fall out, oldest first, and are counted; those that are
// left attach.
func TestOrphanBound(t *testing.T) {
	o := newOwner()
	tr := New(Config{MaxOrphanBlocks: 50, Partition: func(uint64) indexer.PartitionID { return 0 }})
	defer tr.Close()
	tr.Begin(1)
	lost := 0
	for i := range uint64(10) {
		lost += tr.Store(chain(100+i, 1000*(i+1), 10)).OrphansLost
	}
	if s := tr.Stats(); lost != 50 || s.OrphansLost != 50 || s.Orphans != 50 {
		t.Errorf("%d lost, %+v", lost, s)
	}
	out := tr.Store(chain(0, 100, 10)) // all ten parents
	if out.Stored != 10 || out.Attached != 50 {
		t.Errorf("%+v", out)
	}
	if err := tr.End(o.apply); err != nil {
		t.Fatal(err)
	}
	if o.names() != 60 || tr.Lookup(1000) != HashUnknown || tr.Lookup(10_009) != HashHeld {
		t.Errorf("%d names", o.names())
	}
	if len(tr.pool.groups) != len(tr.pool.free) || len(tr.pool.children) != 0 {
		t.Errorf("pool keeps %d groups, %d free, %d children", len(tr.pool.groups), len(tr.pool.free), len(tr.pool.children))
	}
}

// Too many contradictions: everything is cleared and nothing more is taken.
func TestRefusal(t *testing.T) {
	o := newOwner()
	tr := New(Config{MaxTainted: 8, Partition: func(uint64) indexer.PartitionID { return 0 }})
	defer tr.Close()
	tr.Begin(1)
	tr.Store(chain(0, 100, 50))
	tr.Store(chain(7, 900, 5)) // orphans
	for i := range uint64(3) {
		s := chain(0, 1000+10*i, 4)
		s.Engines[3] = s.Engines[0]
		out := tr.Store(s)
		want := ErrRejected
		if i == 2 {
			want = ErrRefused
		}
		if !errors.Is(out.Err, want) {
			t.Fatalf("event %d: %v", i, out.Err)
		}
	}
	if err := tr.End(o.apply); err != nil {
		t.Fatal(err)
	}
	if s := tr.Stats(); !s.Refused || s.Mapped != 0 || s.Orphans != 0 || o.names() != 0 {
		t.Fatalf("%+v, %d names", s, o.names())
	}
	tr.Begin(2)
	if out := tr.Store(chain(0, 1, 3)); !errors.Is(out.Err, ErrRefused) || out.Uncredited != 3 {
		t.Errorf("%+v", out)
	}
	tr.Remove(indexer.Device, []uint64{100})
	tr.Clear(indexer.AllTiers)
	n := 0
	if err := tr.End(func(indexer.Frame) error { n++; return nil }); err != nil || n != 0 {
		t.Errorf("%d frames, %v", n, err)
	}
}

// Copies of one hash are counted up to 255, per tier; a clear resets them.
func TestCopies(t *testing.T) {
	w := newWorld(Config{CountCopies: true})
	a := chain(0, 10, 3)
	again := chain(11, 12, 1)
	w.events(t, storing(w, a), storing(w, again))
	w.events(t, func(tb) { w.remove(indexer.Device, []uint64{12}) })
	if w.t.Lookup(12) != HashHeld {
		t.Fatal("the first of two removals ended the claim")
	}
	w.events(t, func(tb) { w.remove(indexer.Device, []uint64{12}) })
	if w.t.Lookup(12) != HashUnknown {
		t.Fatal("the second removal did not end the claim")
	}
	for range 300 {
		w.events(t, storing(w, chain(0, 10, 1)))
	}
	for range 254 {
		w.events(t, func(tb) { w.remove(indexer.Device, []uint64{10}) })
	}
	if w.t.Lookup(10) != HashHeld {
		t.Fatal("fewer than 255 copies were counted")
	}
	w.events(t, func(tb) { w.remove(indexer.Device, []uint64{10}) })
	if w.t.Lookup(10) != HashUnknown {
		t.Fatal("more than 255 copies were counted")
	}
	w.events(t, storing(w, a), storing(w, a), func(tb) { w.clear(indexer.AllTiers) }, storing(w, a))
	w.events(t, func(tb) { w.remove(indexer.Device, []uint64{10, 11, 12}) })
	if w.t.Stats().Mapped != 0 {
		t.Fatal("a clear did not reset the copies")
	}
}

// A run number comes back only when its batch is acknowledged, and with a failing
// emit not at all.
func TestRunNumbersWaitForTheirAck(t *testing.T) {
	o := newOwner()
	tr := New(Config{AwaitAck: true, Partition: func(uint64) indexer.PartitionID { return 0 }})
	defer tr.Close()
	seq := uint64(0)
	run := func(s Store) indexer.Run {
		seq++
		var got indexer.Run
		tr.Begin(seq)
		tr.Store(s)
		if err := tr.End(func(f indexer.Frame) error {
			var op indexer.Op
			f.Next(0, &op)
			got = op.Run
			return o.apply(f)
		}); err != nil {
			t.Fatal(err)
		}
		return got
	}
	remove := func(emit func(indexer.Frame) error, hs ...uint64) error {
		seq++
		tr.Begin(seq)
		tr.Remove(indexer.Device, hs)
		return tr.End(emit)
	}
	if r := run(chain(0, 10, 2)); r != 0 {
		t.Fatalf("first run is %d", r)
	}
	if err := remove(o.apply, 10, 11); err != nil {
		t.Fatal(err)
	}
	if r := run(chain(0, 20, 2)); r != 1 {
		t.Fatalf("run %d before the ack of the frame that emptied 0", r)
	}
	tr.Acknowledge(1)
	if r := run(chain(0, 30, 2)); r != 2 {
		t.Fatalf("run %d after the ack of an older frame", r)
	}
	tr.Acknowledge(seq)
	if r := run(chain(0, 40, 2)); r != 0 {
		t.Fatalf("run %d after the ack", r)
	}
	broken := errors.New("link down")
	if err := remove(func(indexer.Frame) error { return broken }, 40, 41); !errors.Is(err, broken) {
		t.Fatalf("error %v", err)
	}
	tr.Acknowledge(seq)
	if r := run(chain(0, 50, 2)); r != 3 {
		t.Fatalf("run %d although the frame that emptied 0 was lost", r)
	}
}

// Bad input is rejected with a reason, and taints nothing.
func TestBadInput(t *testing.T) {
	tr := New(Config{Partition: func(uint64) indexer.PartitionID { return 0 }})
	defer tr.Close()
	tr.Begin(1)
	for name, s := range map[string]Store{
		"tier 9":              {Tier: 9, Engines: []uint64{1}, Content: blockhash.Content{Locals: []uint64{1}}},
		"content of 1 blocks": {Engines: []uint64{1, 2}, Content: blockhash.Content{Locals: []uint64{1}}},
		"content of 0 blocks": {Engines: []uint64{1}},
	} {
		if out := tr.Store(s); !errors.Is(out.Err, ErrRejected) || !strings.Contains(out.Err.Error(), name) {
			t.Errorf("%s: %v", name, out.Err)
		}
	}
	if out := tr.Store(Store{}); out != (Outcome{}) {
		t.Errorf("empty store: %+v", out)
	}
	if out := tr.Remove(7, []uint64{1}); out.Unknown != 1 {
		t.Errorf("removal in tier 7: %+v", out)
	}
	if out := tr.Store(Store{Placeholder: true, Engines: []uint64{1, 2}}); out.Unknown != 2 {
		t.Errorf("placeholder of unknown hashes: %+v", out)
	}
	if s := tr.Stats(); s.Tainted != 0 || s.Mapped != 0 || s.Rejected != 3 {
		t.Errorf("%+v", s)
	}
	if err := tr.End(func(indexer.Frame) error { t.Error("a frame"); return nil }); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(){
		"event outside a batch": func() { New(tr.cfg).Store(Store{}) },
		"Begin inside a batch":  func() { tr.Begin(1); tr.Begin(2) },
		"no partition function": func() { New(Config{}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

// Runs end at 65,536 positions, by extension and within one event.
func TestLongRuns(t *testing.T) {
	o := newOwner()
	tr := New(Config{Partition: func(uint64) indexer.PartitionID { return 0 }})
	defer tr.Close()
	for i, c := range []struct {
		s    Store
		runs int
	}{
		{chain(0, 1, 40_000), 1},
		{chain(40_000, 40_001, 30_000), 2}, // does not fit: a run of its own
		{chain(70_000, 70_001, 35_536), 2}, // fills that one exactly
		{chain(105_536, 105_537, 1), 3},
		{chain(0, 1<<20, 150_000), 6},
	} {
		tr.Begin(uint64(i))
		for at := range c.s.Content.Tokens { // local hashes in place of tokens: the owner keeps whole paths
			c.s.Content.Locals = append(c.s.Content.Locals, uint64(c.s.Content.Tokens[at]))
		}
		if out := tr.Store(c.s); out.Err != nil || out.Stored != len(c.s.Engines) {
			t.Fatalf("event %d: %+v", i, out)
		}
		if err := tr.End(func(f indexer.Frame) error { return checkRuns(o, f) }); err != nil {
			t.Fatal(err)
		}
		if r := tr.Stats().Runs; int(r) != c.runs {
			t.Errorf("event %d: %d runs, want %d", i, r, c.runs)
		}
	}
	if err := tr.audit(); err != nil {
		t.Fatal(err)
	}
}

// checkRuns checks lengths and continuity of the runs of a frame, without paths.
func checkRuns(o *owner, f indexer.Frame) error {
	if err := f.Validate(); err != nil {
		return err
	}
	if o.lengths == nil {
		o.lengths = map[indexer.Run]int{}
	}
	var op indexer.Op
	for off := f.Next(0, &op); off != 0; off = f.Next(off, &op) {
		if int(op.Start) != o.lengths[op.Run] {
			return fmt.Errorf("run %d has %d positions, store at %d", op.Run, o.lengths[op.Run], op.Start)
		}
		if op.Start == 0 && op.Parent.Kind == indexer.ParentName && int(op.Parent.Pos) != o.lengths[op.Parent.Run]-1 {
			return fmt.Errorf("run %d below position %d of %d", op.Run, op.Parent.Pos, o.lengths[op.Parent.Run])
		}
		if o.lengths[op.Run] += len(op.Locals); o.lengths[op.Run] > indexer.MaxRunLength {
			return fmt.Errorf("run %d has %d positions", op.Run, o.lengths[op.Run])
		}
	}
	return nil
}
