package contract

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

func dumpTests() []test {
	return []test{
		on("one run", dumpRun),
		on("names, not positions", dumpNames),
		on("two engines disagree on hashes", dumpEngines),
		on("marks", dumpMarks),
		on("nothing", dumpNothing),
		{"round trip", dumpRoundTrip},
		{"round trip below a hole that nobody holds", dumpBelowHole},
	}
}

// clone copies a stretch out of the index's memory.
func clone(s indexer.Stretch) indexer.Stretch {
	s.Path, s.Locals, s.Engines = slices.Clone(s.Path), slices.Clone(s.Locals), slices.Clone(s.Engines)
	return s
}

// dump returns the stretches of a copy after it has checked their form.
func dump(x indexer.Index, a at) (out []indexer.Stretch, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err = x.Dump(ctx, a.g, a.p, a.s, func(s indexer.Stretch) error {
		n := len(s.Locals)
		switch last := len(out) - 1; {
		case n == 0 || len(s.Engines) != n || int(s.Start)+n > indexer.MaxRunLength || len(s.Path) < int(s.Start):
			return fmt.Errorf("stretch of run %d at %d: %d local and %d engine hashes, path of %d", s.Run, s.Start, n, len(s.Engines), len(s.Path))
		case s.Tiers == 0 || s.Tiers >= 1<<indexer.NumTiers:
			return fmt.Errorf("stretch of run %d at %d: tiers %08b", s.Run, s.Start, s.Tiers)
		case s.Parent.Root != (len(s.Path) == 0):
			return fmt.Errorf("stretch of run %d at %d: root %t with a path of %d", s.Run, s.Start, s.Parent.Root, len(s.Path))
		case last >= 0 && out[last].Run == s.Run && int(out[last].Start)+len(out[last].Locals) > int(s.Start):
			return fmt.Errorf("stretch of run %d at %d comes after one at %d", s.Run, s.Start, out[last].Start)
		case last >= 0 && out[last].Run != s.Run && slices.ContainsFunc(out, func(o indexer.Stretch) bool { return o.Run == s.Run }):
			return fmt.Errorf("the stretches of run %d do not come together", s.Run)
		}
		out = append(out, clone(s))
		return nil
	})
	return out, err
}

// name is one live name as a dump gives it.
type name struct {
	run    indexer.Run
	pos    uint32
	tiers  indexer.TierMask
	engine uint64
	anchor uint64
	path   string // the block's own local hash included
	depth  int
}

// names takes a dump apart, in the order of runs and positions.
func names(stretches []indexer.Stretch) (out []name) {
	for _, s := range stretches {
		path := slices.Clone(s.Path)
		for i, l := range s.Locals {
			path = append(path, l)
			out = append(out, name{s.Run, s.Start + uint32(i), s.Tiers, s.Engines[i], s.Anchor, pathString(path), len(path)})
		}
	}
	slices.SortFunc(out, func(a, b name) int { return cmp.Or(cmp.Compare(a.run, b.run), cmp.Compare(a.pos, b.pos)) })
	return out
}

func pathString(path []uint64) string {
	b := make([]byte, 0, 8*len(path))
	for _, l := range path {
		for i := range 8 {
			b = append(b, byte(l>>(8*i)))
		}
	}
	return string(b)
}

func dumpRun(b *bench) {
	b.do(slot(1), func(o ops) {
		o.store(0, root(), 1, 2, 3, 4, 5)
		o.claim(host, 0, 1, 2)
		o.drop(0, 3, 1)
		o.store(1, under(0, 2), 9)
	})
	got, err := dump(b.x, slot(1))
	if err != nil {
		b.Fatal(err)
	}
	p := func(locals ...uint64) string { return pathString(locals) }
	want := []name{
		{0, 0, 1, engineOf(1), 0, p(1), 1}, {0, 1, 3, engineOf(2), 0, p(1, 2), 2}, {0, 2, 3, engineOf(3), 0, p(1, 2, 3), 3},
		{0, 4, 1, engineOf(5), 0, p(1, 2, 3, 4, 5), 5}, {1, 0, 1, engineOf(9), 0, p(1, 2, 3, 9), 4},
	}
	if g := names(got); !slices.Equal(g, want) {
		b.Errorf("dump %+v, want %+v", g, want)
	}
	for _, s := range got {
		if s.Start > 0 && s.Run == 0 && s.Start != 4 || s.Run == 1 {
			if want := engineOf(s.Path[len(s.Path)-1]); s.Parent.Engine != want {
				b.Errorf("run %d at %d: parent %#x, want %#x", s.Run, s.Start, s.Parent.Engine, want)
			}
		}
	}
	stop := errors.New("stop")
	if err := b.x.Dump(context.Background(), group, partition, 1, func(indexer.Stretch) error { return stop }); !errors.Is(err, stop) {
		b.Errorf("an error of visit is not passed on: %v", err)
	}
}

// dumpNames: two names on one position are both in a dump, a dead one is not.
func dumpNames(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2); o.store(1, root(), 1, 2); o.store(2, under(1, 1), 3) })
	b.do(slot(2), func(o ops) { o.store(0, root(), 1, 2, 3, 4) })
	b.do(slot(1), func(o ops) { o.drop(0, 1, 1) })
	got, err := dump(b.x, slot(1))
	if err != nil {
		b.Fatal(err)
	}
	var have [][2]uint32
	for _, n := range names(got) {
		have = append(have, [2]uint32{uint32(n.run), n.pos})
	}
	if want := [][2]uint32{{0, 0}, {1, 0}, {1, 1}, {2, 0}}; !slices.Equal(have, want) {
		b.Errorf("names %v, want %v", have, want)
	}
}

// dumpEngines: the hashes of each holder come back as it stored them.
func dumpEngines(b *bench) {
	for s := range indexer.Slot(4) {
		b.do(slot(s), func(o ops) {
			l, e := o.Store(device, 0, 0, root(), 20)
			for i := range l {
				l[i], e[i] = uint64(i), uint64(i)<<8|uint64(s/2)
			}
		})
		b.do(slot(s), func(o ops) {
			l, e := o.Store(device, 0, 20, root(), 3)
			for i := range l {
				l[i], e[i] = uint64(20+i), uint64(20+i)<<8|uint64(s)
			}
			o.drop(0, 5, 2)
		})
	}
	b.do(slot(0), func(o ops) { o.Clear(indexer.AllTiers) })
	for s := indexer.Slot(1); s < 4; s++ {
		got, err := dump(b.x, slot(s))
		if err != nil {
			b.Fatal(err)
		}
		all := names(got)
		if len(all) != 21 {
			b.Fatalf("slot %d has %d names, want 21", s, len(all))
		}
		for _, n := range all {
			want := uint64(n.pos)<<8 | uint64(s/2)
			if n.pos >= 20 {
				want = uint64(n.pos)<<8 | uint64(s)
			}
			if n.engine != want {
				b.Errorf("slot %d position %d: engine hash %#x, want %#x", s, n.pos, n.engine, want)
			}
		}
	}
}

// dumpMarks: a run's mark comes back with each of its stretches, as long as it lives.
func dumpMarks(b *bench) {
	marks := map[indexer.Run]indexer.Mark{
		1: {Set: true, Tag: 0xffff}, 2: {Set: true}, 3: {Set: true, Tag: 5, Note: [2]uint64{0, 9}}, 40: {Set: true, Note: [2]uint64{7, 8}},
	}
	check := func(what string, want int) {
		b.Helper()
		got, err := dump(b.x, slot(1))
		if err != nil {
			b.Fatal(err)
		}
		if len(got) != want {
			b.Errorf("%s: %d stretches, want %d", what, len(got), want)
		}
		for _, s := range got {
			if s.Mark != marks[s.Run] {
				b.Errorf("%s: mark of run %d at %d is %+v, want %+v", what, s.Run, s.Start, s.Mark, marks[s.Run])
			}
		}
	}
	for _, r := range []indexer.Run{0, 1, 2, 3, 40} {
		b.do(slot(1), func(o ops) {
			o.store(r, root(), seq(1, 4+int(r))...)
			o.Mark(marks[r])
		})
	}
	check("stored", 5)
	b.do(slot(1), func(o ops) {
		for r := range marks {
			o.drop(r, 1, 1)
		}
		o.extend(3, 7, 100, 101) // an extension changes no mark
		o.claim(host, 40, 2, 2)
	})
	check("with holes", 10)
	b.do(slot(1), func(o ops) { // runs that begin again begin without
		o.drop(3, 0, 1)
		o.drop(3, 2, 7)
		o.store(3, root(), 1, 2)
		o.Clear(host)
	})
	marks[3] = indexer.Mark{}
	check("begun again", 8)
	b.do(slot(1), func(o ops) {
		o.Clear(indexer.AllTiers)
		o.store(40, root(), 1, 2)
		o.Mark(indexer.Mark{Set: true, Tag: 9})
	})
	marks[40] = indexer.Mark{Set: true, Tag: 9}
	check("cleared", 1)
	if n := b.faults(); n != 0 {
		b.Errorf("%d faults", n)
	}
}

func dumpNothing(b *bench) {
	for _, a := range []at{slot(1), {99, 0, 0}} {
		if got, err := dump(b.x, a); err != nil || len(got) != 0 {
			b.Errorf("dump of nothing: %v, %v", got, err)
		}
	}
	b.do(slot(1), func(o ops) { o.store(0, root(), 1); o.Clear(indexer.AllTiers) })
	if got, err := dump(b.x, slot(1)); err != nil || len(got) != 0 {
		b.Errorf("dump after a clear: %v, %v", got, err)
	}
	b.do(slot(1), func(o ops) { o.store(0, root(), 1) })
	b.do(slot(1), func(o ops) { o.drop(5, 0, 1) })
	if got, err := dump(b.x, slot(1)); err != nil || len(got) != 0 {
		b.Errorf("dump of a closed copy: %v, %v", got, err)
	}
}

// restore sends a dump to another index as ordinary operations under the same
// names. A run whose head is gone is stored whole, below a run that stands for its
// path, and then cut to what is live: the frames say nothing that a stream of an
// engine could not say.
func restore(b *bench, a at, stretches []indexer.Stretch) {
	b.Helper()
	free := indexer.Run(0)
	for _, s := range stretches {
		free = max(free, s.Run+1)
	}
	for len(stretches) > 0 {
		n := 1
		for n < len(stretches) && stretches[n].Run == stretches[0].Run {
			n++
		}
		of := stretches[:n]
		stretches = stretches[n:]
		b.write(a, func(o ops) { restoreRun(o, of, free) })
		free++
	}
	b.flush()
}

func restoreRun(o ops, of []indexer.Stretch, helper indexer.Run) {
	last := of[len(of)-1]
	above := last.Path[:len(last.Path)-int(last.Start)]
	parent := anchor(last.Anchor)
	if len(above) > 0 {
		o.store(helper, parent, above...)
		parent = under(helper, uint32(len(above)-1))
	}
	run := last.Run
	blocks := append(slices.Clone(last.Path[len(above):]), last.Locals...)
	locals, engines := o.Store(device, run, 0, parent, len(blocks))
	copy(locals, blocks)
	live := make([]indexer.TierMask, len(blocks))
	for _, s := range of {
		copy(engines[s.Start:], s.Engines)
		for i := range s.Locals {
			live[int(s.Start)+i] = s.Tiers
		}
	}
	for _, t := range []indexer.Tier{host, disk, external} {
		for pos, m := range live {
			if m.Has(t) {
				o.claim(t, run, pos, 1)
			}
		}
	}
	for pos, m := range live {
		if !m.Has(device) {
			o.drop(run, pos, 1)
		}
	}
	if len(above) > 0 {
		o.drop(helper, 0, len(above))
	}
}

// dumpRoundTrip moves a random state to a second index, copy by copy, and wants the
// same answers, the same names, and the same answers after more of the stream.
func dumpRoundTrip(t *testing.T, open Open) {
	for seed := range int64(6) {
		s := newStream(seed, mixFork)
		m := newModel()
		from, to := newBench(t, open), newBench(t, open)
		to.restored = true
		for range 300 {
			f := s.next()
			m.apply(f)
			f.send(from)
		}
		from.flush()
		for _, a := range m.places() {
			stretches, err := dump(from.x, a)
			if err != nil {
				t.Fatal(err)
			}
			restore(to, a, stretches)
		}
		if n := to.faults(); n != 0 {
			t.Errorf("seed %d: %d faults", seed, n)
		}
		if err := checkAll(to, m, s.paths()); err != nil {
			t.Errorf("seed %d: restored: %v", seed, err)
		}
		// Run numbers are the same, so the stream can go on at the new place.
		for range 200 {
			f := s.next()
			m.apply(f)
			f.send(to)
		}
		to.flush()
		if err := checkAll(to, m, s.paths()); err != nil {
			t.Errorf("seed %d: going on: %v", seed, err)
		}
		from.close()
		to.close()
	}
}

// dumpBelowHole: the claims below a hole come back to life at the new place when the
// hole is filled there.
func dumpBelowHole(t *testing.T, open Open) {
	from, to := newBench(t, open), newBench(t, open)
	defer from.close()
	defer to.close()
	from.do(slot(1), func(o ops) {
		o.store(0, root(), 1, 2, 3)
		o.store(1, under(0, 2), 4, 5)
		o.storeIn(host, 2, 0, anchor(7), 1, 2)
	})
	from.do(slot(1), func(o ops) { o.drop(0, 0, 3); o.drop(1, 0, 1); o.Drop(host, indexer.MakeRange(2, 0, 1)) })
	stretches, err := dump(from.x, slot(1))
	if err != nil {
		t.Fatal(err)
	}
	restore(to, slot(1), stretches)
	to.want("restored", seq(1, 5), nil)
	for _, b := range []*bench{from, to} {
		b.do(slot(1), func(o ops) { o.store(9, root(), 1, 2, 3, 4); o.storeIn(host, 10, 0, anchor(7), 1) })
		b.want("hole filled", seq(1, 5), rows{1: 5})
		b.wantAt("hole of the branch filled", indexer.Query{Group: group, Partition: partition, Anchor: 7, Locals: seq(1, 2)},
			nil, tiers{1: {0, 2, 2, 2}})
		b.do(slot(1), func(o ops) { o.drop(1, 1, 1) })
		b.want("the old name dropped", seq(1, 5), rows{1: 4})
		if n := b.faults(); n != 0 {
			t.Errorf("%d faults", n)
		}
	}
}
