package copywire_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

var seeds = flag.Int("copywire.seeds", 10, "seeds of random histories that are dumped and rebuilt")

type opener struct {
	name string
	open func(t testing.TB) indexer.Index
}

func openers() []opener {
	return []opener{
		{"reference", func(t testing.TB) indexer.Index { return reference.New(reference.Config{OnFault: failOn(t)}) }},
		{"tree", func(t testing.TB) indexer.Index {
			x, err := tree.Open(tree.Config{Lanes: 1, Reserve: 256 << 20, OnFault: failOn(t)})
			if err != nil {
				t.Fatal(err)
			}
			return x
		}},
	}
}

func failOn(t testing.TB) indexer.FaultHandler {
	return func(h indexer.Header, err error) {
		t.Errorf("frame %d of slot %d refused: %v", h.Sequence, h.Slot, err)
	}
}

type node struct {
	t testing.TB
	x indexer.Index
	w indexer.Writer
	r indexer.Reader
}

func newNode(t testing.TB, o opener) *node {
	x := o.open(t)
	return &node{t, x, x.NewWriter(), x.NewReader()}
}

func (n *node) write(f indexer.Frame) {
	if err := n.w.Write(f); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) flush() {
	if err := n.w.Flush(context.Background()); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) close() {
	n.r.Close()
	n.w.Close()
	if err := n.x.Close(); err != nil {
		n.t.Error(err)
	}
}

// send dumps a slot, puts the dump through its bytes, and writes the frames of a fill.
func send(t testing.TB, from, to *node, slot, maxWords int) {
	t.Helper()
	d := dump(t, from.x, slot)
	copies := []copywire.Copy{
		{Partition: 1}, {Partition: 2, Open: true, Tenure: 3, Sequence: 44, Stretches: d}, {Partition: 9, Open: true},
	}
	var b []byte
	for _, c := range copies {
		b = copywire.AppendCopy(b, c)
	}
	got, err := copywire.DecodeCopies(b)
	if err != nil || !equalCopies(got, copies) {
		t.Fatalf("dump %+v comes back as %+v, %v", copies, got, err)
	}
	var fb indexer.FrameBuilder
	n, ended := 0, false
	if err := copywire.Rebuild(&fb, header0(slot, 44), got[1].Stretches, maxWords, func(first, last bool, f indexer.Frame) error {
		if first != (n == 0) || ended || len(f) > maxWords || f.Header() != header0(slot, 44) {
			return fmt.Errorf("frame %d: first %t, after the last %t, %d words, header %+v", n, first, ended, len(f), f.Header())
		}
		n, ended = n+1, last
		m, err := copywire.Decode(copywire.AppendFill(nil, first, last, f))
		if err != nil {
			return err
		}
		to.write(m.Frame)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if !ended {
		t.Fatal("no frame is the last")
	}
}

// equalCopies compares dumps, whose empty slices may be nil or not.
func equalCopies(a, b []copywire.Copy) bool {
	return slices.EqualFunc(a, b, func(a, b copywire.Copy) bool {
		same := slices.EqualFunc(a.Stretches, b.Stretches, func(a, b indexer.Stretch) bool {
			return slices.Equal(a.Path, b.Path) && slices.Equal(a.Locals, b.Locals) && slices.Equal(a.Engines, b.Engines) &&
				a.Run == b.Run && a.Start == b.Start && a.Tiers == b.Tiers && a.Anchor == b.Anchor && a.Parent == b.Parent && a.Mark == b.Mark
		})
		a.Stretches, b.Stretches = nil, nil
		return same && reflect.DeepEqual(a, b)
	})
}

// marks returns the marks of the runs of a slot.
func marks(t testing.TB, n *node, slot int) map[indexer.Run]indexer.Mark {
	out := map[indexer.Run]indexer.Mark{}
	for _, s := range dump(t, n.x, slot) {
		out[s.Run] = s.Mark
	}
	return out
}

// compare wants the same names and answers of a slot at both nodes.
func compare(t testing.TB, when string, h *history, slot int, a, b *node) {
	t.Helper()
	na, nb := names(t, dump(t, a.x, slot)), names(t, dump(t, b.x, slot))
	if !slices.Equal(na, nb) {
		t.Fatalf("%s: dumps differ:\n%v\n%v", when, na, nb)
	}
	if ma, mb := marks(t, a, slot), marks(t, b, slot); !maps.Equal(ma, mb) {
		t.Fatalf("%s: marks differ: %v, %v", when, ma, mb)
	}
	if want := h.want(slot); !slices.Equal(withoutEngines(nb), want) {
		t.Fatalf("%s: names %v, want %v", when, nb, want)
	}
	var sa, sb indexer.Scores
	for i := 0; i < len(h.paths); i += 1 + len(h.paths)/50 {
		q := h.paths[i]
		a.r.Match(q, &sa)
		b.r.Match(q, &sb)
		if x, y := scoreOf(&sa, slot), scoreOf(&sb, slot); x != y {
			t.Fatalf("%s: score of %v: %v and %v", when, q, x, y)
		}
		ea, eb := a.r.Explain(q, indexer.Slot(slot), nil), b.r.Explain(q, indexer.Slot(slot), nil)
		for i := range ea {
			if ea[i].Tiers != eb[i].Tiers {
				t.Fatalf("%s: block %d of %v: %+v and %+v", when, i, q, ea[i], eb[i])
			}
		}
	}
}

func scoreOf(s *indexer.Scores, slot int) (out [1 + indexer.NumTiers]uint32) {
	for _, r := range s.Rows {
		if r.Slot == indexer.Slot(slot) {
			out[0] = r.Depth
		}
	}
	for _, r := range s.Tiers {
		if r.Slot == indexer.Slot(slot) {
			copy(out[1:], r.Depth[:])
		}
	}
	return out
}

// TestRebuild: a copy that is dumped and rebuilt elsewhere equals the first one from
// then on, whatever frames follow.
func TestRebuild(t *testing.T) {
	for _, from := range openers() {
		for _, to := range openers() {
			t.Run(from.name+" to "+to.name, func(t *testing.T) {
				t.Parallel()
				for seed := range uint64(*seeds) {
					if rebuildOnce(t, seed, from, to); t.Failed() {
						t.Fatalf("seed %d", seed)
					}
				}
			})
		}
	}
}

func rebuildOnce(t *testing.T, seed uint64, from, to opener) {
	rng := rand.New(rand.NewPCG(seed, 12))
	h := newHistory(seed, 3)
	a, b := newNode(t, from), newNode(t, to)
	defer a.close()
	defer b.close()
	const slot = 1
	for range 20 + rng.IntN(100) {
		s := rng.IntN(3)
		f := h.frame(s)
		a.write(f)
		// The other slots are at both; so is something old of this one, at times.
		if s != slot || seed%3 == 0 {
			b.write(f)
		}
	}
	for round := range 3 {
		a.flush()
		send(t, a, b, slot, 64+rng.IntN(200)*rng.IntN(20))
		b.flush()
		compare(t, fmt.Sprintf("round %d, rebuilt", round), h, slot, a, b)
		for i := range 30 {
			f := h.frame(rng.IntN(3))
			a.write(f)
			b.write(f)
			if i%10 == 9 {
				a.flush()
				b.flush()
				compare(t, fmt.Sprintf("round %d, %d frames later", round, i), h, slot, a, b)
			}
		}
		a, b = b, a // and back
	}
}

// TestRebuildLong has runs of the greatest length, and a path that is longer than any
// run, of which only the last block is left.
func TestRebuildLong(t *testing.T) {
	const n = indexer.MaxRunLength
	for _, o := range openers() {
		a, b := newNode(t, o), newNode(t, o)
		h := newHistory(1, 2)
		var fb indexer.FrameBuilder
		parent := indexer.Parent{}
		above := []uint64(nil)
		for run := range indexer.Run(3) {
			fb.Reset(header0(1, uint64(run)))
			locals, engines := fb.Store(indexer.Device, run, 0, parent, n)
			for i := range locals {
				locals[i], engines[i] = uint64(run)<<32|uint64(i)+1, uint64(i)+1
			}
			a.write(fb.Frame())
			h.slots[1][run] = &liveRun{above: above, locals: slices.Clone(locals), tiers: slices.Repeat([]indexer.TierMask{1}, n)}
			above = h.slots[1][run].path(n)
			parent = indexer.Parent{Kind: indexer.ParentName, Run: run, Pos: n - 1}
		}
		fb.Reset(header0(1, 9))
		fb.Drop(indexer.Device, indexer.MakeRange(0, 0, n))
		fb.Drop(indexer.Device, indexer.MakeRange(1, 0, n))
		fb.Drop(indexer.Device, indexer.MakeRange(2, 0, n-1))
		a.write(fb.Frame())
		a.flush()
		send(t, a, b, 1, 1<<16)
		b.flush()
		got := dump(t, b.x, 1)
		if len(got) != 1 || len(got[0].Path) != 3*n-1 || got[0].Run != 2 || got[0].Start != n-1 || len(got[0].Locals) != 1 || got[0].Engines[0] != n {
			t.Errorf("%s: %d stretches", o.name, len(got))
		}
		a.close()
		b.close()
	}
}

// TestRebuildRefuses has stretches that are none of a dump.
func TestRebuildRefuses(t *testing.T) {
	good := func() []indexer.Stretch {
		full := []uint64{1, 2, 3, 4, 5, 6}
		return []indexer.Stretch{
			{Run: 4, Start: 0, Tiers: 1, Path: full[:1], Locals: full[1:2], Engines: []uint64{9}},
			{Run: 4, Start: 3, Tiers: 3, Path: full[:4], Locals: full[4:], Engines: []uint64{9, 9}},
		}
	}
	var b indexer.FrameBuilder
	run := func(s []indexer.Stretch, words int) error {
		return copywire.Rebuild(&b, header0(0, 1), s, words, func(_, _ bool, f indexer.Frame) error { return f.Validate() })
	}
	if err := run(good(), 64); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(s []indexer.Stretch) []indexer.Stretch{
		"no blocks":        func(s []indexer.Stretch) []indexer.Stretch { s[0].Locals = nil; return s },
		"engines":          func(s []indexer.Stretch) []indexer.Stretch { s[0].Engines = nil; return s },
		"no tier":          func(s []indexer.Stretch) []indexer.Stretch { s[0].Tiers = 0; return s },
		"tier 4":           func(s []indexer.Stretch) []indexer.Stretch { s[1].Tiers = 16; return s },
		"start":            func(s []indexer.Stretch) []indexer.Stretch { s[1].Start = 1 << 20; return s },
		"start beyond all": func(s []indexer.Stretch) []indexer.Stretch { s[1].Start = 1 << 31; return s },
		"path too short":   func(s []indexer.Stretch) []indexer.Stretch { s[1].Path = s[1].Path[:2]; return s },
		"other depth":      func(s []indexer.Stretch) []indexer.Stretch { s[0].Path = nil; return s },
		"other path":       func(s []indexer.Stretch) []indexer.Stretch { s[0].Path = []uint64{7}; return s },
		"other blocks":     func(s []indexer.Stretch) []indexer.Stretch { s[0].Locals = []uint64{7}; return s },
		"other anchor":     func(s []indexer.Stretch) []indexer.Stretch { s[0].Anchor = 7; return s },
		"order":            func(s []indexer.Stretch) []indexer.Stretch { return []indexer.Stretch{s[1], s[0]} },
		"overlap":          func(s []indexer.Stretch) []indexer.Stretch { return append(s, s[1]) },
		"twice": func(s []indexer.Stretch) []indexer.Stretch {
			other := s[0]
			other.Run = 5
			return append(s, other, s[0])
		},
		"no number left": func(s []indexer.Stretch) []indexer.Stretch { s[0].Run, s[1].Run = 1<<32-1, 1<<32-1; return s },
	} {
		if err := run(spoil(good()), 64); !errors.Is(err, copywire.ErrMessage) {
			t.Errorf("%s: %v, want %v", name, err, copywire.ErrMessage)
		}
	}
	if err := run(good(), 63); !errors.Is(err, copywire.ErrMessage) {
		t.Errorf("frames of 63 words: %v", err)
	}
	stop := errors.New("stop")
	if err := copywire.Rebuild(&b, header0(0, 1), good(), 64, func(bool, bool, indexer.Frame) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("an error of emit becomes %v", err)
	}
}

// TestDumpSize: a conversation, in which each turn is a run of its own below the
// earlier ones, costs what its blocks cost.
func TestDumpSize(t *testing.T) {
	const turns, blocks = 300, 10
	full := make([]uint64, turns*blocks)
	for i := range full {
		full[i] = uint64(i) + 1
	}
	var d []indexer.Stretch
	for i := range turns {
		s := indexer.Stretch{Run: indexer.Run(i), Tiers: 1, Path: full[:i*blocks], Locals: full[i*blocks:][:blocks], Engines: full[:blocks]}
		s.Parent.Root = i == 0
		d = append(d, s)
	}
	b := copywire.AppendCopy(nil, copywire.Copy{Open: true, Stretches: d})
	if most := 8 * (4 + turns*(6+2*blocks)); len(b) > most {
		t.Errorf("%d bytes, want at most %d", len(b), most)
	}
}

// FuzzDump: whatever comes is an error, or a dump that can be encoded, rebuilt and, if
// the runs are as an index gives them, applied.
func FuzzDump(f *testing.F) {
	for seed := range uint64(4) {
		n := newNode(f, openers()[0])
		h := newHistory(seed+1, 1)
		for range 20 {
			n.write(h.frame(0))
		}
		f.Add(copywire.AppendCopy(nil, copywire.Copy{Partition: 3, Open: true, Tenure: 1, Sequence: 2, Stretches: dump(f, n.x, 0)}))
		n.close()
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		copies, err := copywire.DecodeCopies(b)
		if err != nil {
			if !errors.Is(err, copywire.ErrMessage) && !errors.Is(err, copywire.ErrTooLarge) {
				t.Errorf("error %v", err)
			}
			return
		}
		var again []byte
		for _, c := range copies {
			again = copywire.AppendCopy(again, c)
		}
		got, err := copywire.DecodeCopies(again)
		if err != nil || !equalCopies(got, copies) {
			t.Fatalf("%+v comes back as %+v, %v", copies, got, err)
		}
		for _, c := range copies {
			n := newNode(t, openers()[0])
			var fb indexer.FrameBuilder
			err := copywire.Rebuild(&fb, header0(0, 1), c.Stretches, 128, func(_, _ bool, f indexer.Frame) error {
				n.write(f)
				return nil
			})
			if err == nil {
				want := withoutEngines(names(&quiet{t}, c.Stretches))
				if got := withoutEngines(names(&quiet{t}, dump(t, n.x, 0))); !slices.Equal(got, want) {
					t.Errorf("rebuilt %v, want %v", got, want)
				}
			} else if !errors.Is(err, copywire.ErrMessage) {
				t.Errorf("error %v", err)
			}
			n.close()
		}
	})
}

// quiet does not mind what a foreign dump says of engine hashes.
type quiet struct{ testing.TB }

func (quiet) Errorf(string, ...any) {}
func (quiet) Helper()               {}

// TestRebuildBelowDead: several runs hang below blocks that nobody names any more. They
// come back in their places, and the engine hashes above them with them.
func TestRebuildBelowDead(t *testing.T) {
	for _, o := range openers() {
		a, b := newNode(t, o), newNode(t, o)
		var fb indexer.FrameBuilder
		fb.Reset(header0(1, 1))
		under := func(run indexer.Run, pos uint32) indexer.Parent {
			return indexer.Parent{Kind: indexer.ParentName, Run: run, Pos: pos}
		}
		for run, s := range []struct {
			parent indexer.Parent
			locals []uint64
		}{
			{indexer.Parent{Anchor: 9}, []uint64{1, 2, 3, 4, 5}},
			{under(0, 4), []uint64{6}}, {under(0, 2), []uint64{7, 8}}, {under(0, 4), []uint64{6, 9}}, {under(0, 0), []uint64{2}},
		} {
			l, e := fb.Store(indexer.Device, indexer.Run(run), 0, s.parent, len(s.locals))
			copy(l, s.locals)
			for i := range e {
				e[i] = uint64(run)<<8 | uint64(i) | 1<<32
			}
		}
		fb.Drop(indexer.Device, indexer.MakeRange(0, 0, 5))
		a.write(fb.Frame())
		a.flush()
		send(t, a, b, 1, 64)
		b.flush()
		da, db := dump(t, a.x, 1), dump(t, b.x, 1)
		if na, nb := names(t, da), names(t, db); len(nb) != 6 || !slices.Equal(na, nb) {
			t.Errorf("%s: names %v, want %v", o.name, nb, na)
		}
		for i := range min(len(da), len(db)) {
			if da[i].Parent != db[i].Parent {
				t.Errorf("%s: run %d is below %#x, want %#x", o.name, db[i].Run, db[i].Parent.Engine, da[i].Parent.Engine)
			}
		}
		a.close()
		b.close()
	}
}
