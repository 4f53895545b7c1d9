package copywire_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// history makes random valid frames for a few slots of one tree, and knows the names
// that they leave.
type history struct {
	rng     *rand.Rand
	symbols uint64
	longest int
	slots   []map[indexer.Run]*liveRun
	paths   []indexer.Query // all that were ever stored
	seq     uint64
}

type liveRun struct {
	anchor uint64
	above  []uint64
	locals []uint64
	tiers  []indexer.TierMask
}

func (r *liveRun) live() bool {
	return slices.ContainsFunc(r.tiers, func(m indexer.TierMask) bool { return m != 0 })
}

func (r *liveRun) path(n int) []uint64 { return append(slices.Clone(r.above), r.locals[:n]...) }

func newHistory(seed uint64, slots int) *history {
	h := &history{rng: rand.New(rand.NewPCG(seed, 11))}
	h.symbols, h.longest = 1+h.rng.Uint64N(3), 2+h.rng.IntN(12)
	if seed%5 == 0 {
		h.longest = 300
	}
	for range slots {
		h.slots = append(h.slots, map[indexer.Run]*liveRun{})
	}
	return h
}

func header0(slot int, seq uint64) indexer.Header {
	return indexer.Header{Group: 1, Partition: 2, Slot: indexer.Slot(slot), Life: 7, Tenure: 3, Sequence: seq}
}

// frame makes the next frame of a slot.
func (h *history) frame(slot int) indexer.Frame {
	h.seq++
	var b indexer.FrameBuilder
	b.Reset(header0(slot, h.seq))
	for n := 1 + h.rng.IntN(3); n > 0 || b.NumOps() == 0; n-- {
		h.op(&b, slot)
	}
	return slices.Clone(b.Frame())
}

// pick returns a run with live names.
func (h *history) pick(runs map[indexer.Run]*liveRun) (indexer.Run, *liveRun) {
	if len(runs) == 0 {
		return 0, nil
	}
	keys := make([]indexer.Run, 0, len(runs))
	for k := range runs {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	k := keys[h.rng.IntN(len(keys))]
	return k, runs[k]
}

func (h *history) op(b *indexer.FrameBuilder, slot int) {
	runs := h.slots[slot]
	k, r := h.pick(runs)
	switch v := h.rng.IntN(100); {
	case r == nil || v < 40:
		h.store(b, runs, k, r)
	case v < 55:
		h.ranges(b.Claim, k, r, func(m indexer.TierMask, t indexer.Tier) bool { return m != 0 && !m.Has(t) },
			func(m indexer.TierMask, t indexer.Tier) indexer.TierMask { return m | t.Mask() })
	case v < 97:
		h.ranges(b.Drop, k, r, func(m indexer.TierMask, t indexer.Tier) bool { return m.Has(t) },
			func(m indexer.TierMask, t indexer.Tier) indexer.TierMask { return m &^ t.Mask() })
		if !r.live() {
			delete(runs, k)
		}
	default:
		t := h.tier()
		if h.rng.IntN(4) == 0 {
			t = indexer.AllTiers
		}
		b.Clear(t)
		for k, r := range runs {
			for i := range r.tiers {
				r.tiers[i] &^= t.Mask()
			}
			if !r.live() {
				delete(runs, k)
			}
		}
	}
}

func (h *history) tier() indexer.Tier {
	if h.rng.IntN(3) > 0 {
		return indexer.Device
	}
	return indexer.Tier(h.rng.IntN(indexer.NumTiers))
}

func (h *history) store(b *indexer.FrameBuilder, runs map[indexer.Run]*liveRun, k indexer.Run, r *liveRun) {
	t, n := h.tier(), 1+h.rng.IntN(h.longest)
	number, start, parent := indexer.Run(0), 0, indexer.Parent{}
	next := &liveRun{}
	switch v := h.rng.IntN(10); {
	case r == nil || v < 3:
		if h.rng.IntN(4) == 0 {
			parent.Anchor, next.anchor = 5, 5
		}
	case v < 5 && r.tiers[len(r.tiers)-1] != 0:
		number, start, next = k, len(r.locals), r
	default:
		// A name may be dead if a later one of its run lives.
		last := len(r.tiers) - 1
		for r.tiers[last] == 0 {
			last--
		}
		pos := h.rng.IntN(last + 1)
		parent = indexer.Parent{Kind: indexer.ParentName, Run: k, Pos: uint32(pos)}
		next.anchor, next.above = r.anchor, r.path(pos+1)
	}
	if start == 0 {
		for runs[number] != nil {
			number++
		}
		if h.rng.IntN(10) == 0 {
			number += indexer.Run(h.rng.IntN(3))
			if runs[number] != nil {
				return
			}
		}
		runs[number] = next
	}
	l, e := b.Store(t, number, uint32(start), parent, n)
	for i := range l {
		l[i], e[i] = 1+h.rng.Uint64N(h.symbols), 1+h.rng.Uint64()>>1
		next.locals, next.tiers = append(next.locals, l[i]), append(next.tiers, t.Mask())
	}
	if start == 0 {
		m := indexer.Mark{Set: h.rng.IntN(3) > 0, Tag: uint16(h.rng.Uint32())}
		if h.rng.IntN(2) == 0 {
			m.Note = [2]uint64{h.rng.Uint64N(2), h.rng.Uint64()}
		}
		b.Mark(m)
	}
	full := next.path(len(next.locals))
	h.paths = append(h.paths, indexer.Query{Group: 1, Partition: 2, Anchor: next.anchor, Locals: full})
}

func (h *history) ranges(add func(indexer.Tier, indexer.Range), k indexer.Run, r *liveRun, may func(indexer.TierMask, indexer.Tier) bool, then func(indexer.TierMask, indexer.Tier) indexer.TierMask) {
	t := h.tier()
	from := h.rng.IntN(len(r.tiers))
	to := from + 1 + h.rng.IntN(len(r.tiers)-from)
	if h.rng.IntN(3) == 0 {
		from = 0
	}
	for pos := from; pos < to; pos++ {
		if may(r.tiers[pos], t) {
			r.tiers[pos] = then(r.tiers[pos], t)
			add(t, indexer.MakeRange(k, pos, 1))
		}
	}
}

// name is one live name.
type name struct {
	run    indexer.Run
	pos    int
	tiers  indexer.TierMask
	anchor uint64
	engine uint64
	path   string
}

// want are the names that a slot has by the history; engine hashes are not kept.
func (h *history) want(slot int) (out []name) {
	for k, r := range h.slots[slot] {
		for pos, m := range r.tiers {
			if m != 0 {
				out = append(out, name{run: k, pos: pos, tiers: m, anchor: r.anchor, path: key(r.path(pos + 1))})
			}
		}
	}
	sortNames(out)
	return out
}

func sortNames(n []name) {
	slices.SortFunc(n, func(a, b name) int { return (int(a.run)-int(b.run))*indexer.MaxRunLength + a.pos - b.pos })
}

func clone(s indexer.Stretch) indexer.Stretch {
	s.Path, s.Locals, s.Engines = slices.Clone(s.Path), slices.Clone(s.Locals), slices.Clone(s.Engines)
	return s
}

func dump(t testing.TB, x indexer.Index, slot int) (out []indexer.Stretch) {
	t.Helper()
	h := header0(slot, 0)
	if err := x.Dump(context.Background(), h.Group, h.Partition, h.Slot, func(s indexer.Stretch) error {
		out = append(out, clone(s))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// names takes a dump apart. It also checks the engine hash above each stretch, if the
// name before it in its run is live.
func names(t testing.TB, stretches []indexer.Stretch) (out []name) {
	t.Helper()
	for k, s := range stretches {
		if k > 0 {
			b := stretches[k-1]
			if n := len(b.Engines); b.Run == s.Run && b.Start+uint32(n) == s.Start && b.Engines[n-1] != s.Parent.Engine {
				t.Errorf("run %d at %d: engine hash %#x above it, want %#x", s.Run, s.Start, s.Parent.Engine, b.Engines[n-1])
			}
		}
		path := slices.Clone(s.Path)
		for i, l := range s.Locals {
			path = append(path, l)
			out = append(out, name{s.Run, int(s.Start) + i, s.Tiers, s.Anchor, s.Engines[i], key(path)})
		}
	}
	sortNames(out)
	return out
}

// key is a path as a map key.
func key(path []uint64) string {
	b := make([]byte, 0, 8*len(path))
	for _, l := range path {
		b = binary.LittleEndian.AppendUint64(b, l)
	}
	return string(b)
}

func withoutEngines(n []name) []name {
	n = slices.Clone(n)
	for i := range n {
		n[i].engine = 0
	}
	return n
}
