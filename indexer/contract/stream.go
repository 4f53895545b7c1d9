package contract

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// mix says how often a stream does what.
type mix struct {
	name               string
	slots              int
	symbols            uint64 // different blocks outside of prompts
	prompts, length    int
	longest            int // of one store
	faults             bool
	store, drop, claim int // weights; the rest are clears and purges
}

var (
	mixFork = mix{name: "forks", slots: 4, symbols: 3, prompts: 12, length: 24, longest: 9, store: 45, drop: 40, claim: 12}
	mixLong = mix{name: "long runs", slots: 5, symbols: 2, prompts: 5, length: 300, longest: 150, store: 40, drop: 45, claim: 10}
	mixFew  = mix{name: "few blocks", slots: 3, symbols: 2, prompts: 2, length: 4, longest: 4, faults: true, store: 40, drop: 40, claim: 15}
	mixBad  = mix{name: "faults", slots: 4, symbols: 3, prompts: 8, length: 20, longest: 8, faults: true, store: 45, drop: 36, claim: 12}
)

// stream makes random valid frames.
type stream struct {
	mix
	rng     *rand.Rand
	track   *tracker
	prompts [][]uint64
	seen    map[string]indexer.Query
}

func newStream(seed int64, m mix) *stream {
	s := &stream{mix: m, rng: rand.New(rand.NewPCG(uint64(seed), 0x6b76)), track: newTracker(), seen: map[string]indexer.Query{}}
	for i := range m.prompts {
		p := make([]uint64, m.length)
		for d := range p {
			// Prompts share their first quarter in threes, their first half in pairs.
			switch {
			case d < m.length/4:
				p[d] = uint64(10 + d)
			case d < m.length/2:
				p[d] = uint64(1000*(i/2+1) + d)
			default:
				p[d] = uint64(100000*(i+1) + d)
			}
		}
		if i%3 == 2 {
			p[0] = 99
		}
		s.prompts = append(s.prompts, p)
	}
	return s
}

// next returns a frame that is valid after all before it.
func (s *stream) next() *frame {
	for {
		f := s.draw()
		if s.track.accept(f) {
			return f
		}
	}
}

func (s *stream) draw() *frame {
	a := at{indexer.GroupID(s.rng.IntN(2)), indexer.PartitionID(s.rng.IntN(2)), indexer.Slot(s.rng.IntN(s.slots))}
	if s.rng.IntN(100) < 50 { // most of the traffic meets in one tree
		a.g, a.p = 0, 0
	}
	if s.rng.IntN(150) == 0 {
		return &frame{at: a, purge: true}
	}
	f := &frame{at: a}
	// The operations of a frame build on each other: draw them on a copy of the state.
	c := s.track.copyOf(a)
	scratch := &tracker{copies: map[at]*tracked{a: c.clone()}, now: s.track.now + 1}
	if c.closed && s.rng.IntN(2) == 0 {
		f.ops = append(f.ops, op{kind: indexer.OpClear, tier: indexer.AllTiers})
		scratch.acceptOp(scratch.copies[a], &f.ops[0])
	}
	for n := 1 + s.rng.IntN(3)*s.rng.IntN(2); n > 0; n-- {
		o := s.drawOp(a, scratch.copies[a], s.track.now+1)
		if o.kind != 0 && (o.fault || scratch.acceptOp(scratch.copies[a], &o)) {
			f.ops = append(f.ops, o)
		}
	}
	return f
}

func (c *tracked) clone() *tracked {
	d := &tracked{runs: map[indexer.Run]*trackedRun{}, closed: c.closed}
	for k, r := range c.runs {
		e := *r
		e.tiers, e.locals = slices.Clone(r.tiers), slices.Clone(r.locals)
		d.runs[k] = &e
	}
	return d
}

func (s *stream) tier() indexer.Tier {
	if s.rng.IntN(10) < 7 {
		return indexer.Device
	}
	return indexer.Tier(s.rng.IntN(indexer.NumTiers))
}

func (s *stream) drawOp(a at, c *tracked, now int) op {
	switch v := s.rng.IntN(100); {
	case s.faults && s.rng.IntN(60) == 0:
		return op{kind: indexer.OpDrop, tier: s.tier(), ranges: []indexer.Range{indexer.MakeRange(1<<20, 0, 1)}, fault: true}
	case v < s.store:
		return s.drawStore(a, c, now)
	case v < s.store+s.drop:
		return s.drawRanges(c, indexer.OpDrop)
	case v < s.store+s.drop+s.claim:
		return s.drawRanges(c, indexer.OpClaim)
	case s.rng.IntN(3) == 0:
		return op{kind: indexer.OpClear, tier: indexer.AllTiers}
	default:
		return op{kind: indexer.OpClear, tier: indexer.Tier(s.rng.IntN(indexer.NumTiers))}
	}
}

// pick returns a run with live names, in an order that does not depend on the map.
func (s *stream) pick(c *tracked) (indexer.Run, *trackedRun) {
	var live []indexer.Run
	for k, r := range c.runs {
		if r.live > 0 {
			live = append(live, k)
		}
	}
	if len(live) == 0 {
		return 0, nil
	}
	slices.Sort(live)
	k := live[s.rng.IntN(len(live))]
	return k, c.runs[k]
}

func (s *stream) drawStore(a at, c *tracked, now int) op {
	o := op{kind: indexer.OpStore, tier: s.tier()}
	k, r := s.pick(c)
	var path []uint64
	switch v := s.rng.IntN(10); {
	case r == nil || v < 3:
		if s.rng.IntN(4) == 0 {
			o.parent.Anchor = 5
		}
	case v < 5 && r.tiers[len(r.tiers)-1] != 0:
		o.run, o.start = k, uint32(len(r.locals))
		o.parent.Anchor = r.anchor
		path = r.path(len(r.locals))
	default:
		pos := s.rng.IntN(len(r.locals))
		o.parent = indexer.Parent{Kind: indexer.ParentName, Run: k, Pos: uint32(pos)}
		path = r.path(pos + 1)
	}
	if o.start == 0 {
		for {
			r := c.runs[o.run]
			if r == nil || r.live == 0 && r.emptied < now && s.rng.IntN(2) == 0 {
				break
			}
			o.run++
		}
	}
	o.locals = s.content(path)
	full := append(path, o.locals...)
	query := indexer.Query{Group: a.g, Partition: a.p, Anchor: o.parent.Anchor, Locals: full}
	if o.parent.Kind == indexer.ParentName {
		query.Anchor = r.anchor
	}
	s.seen[fmt.Sprint(query.Group, query.Partition, query.Anchor, pathString(full))] = query
	for i := range o.locals {
		e := uint64(len(full)-len(o.locals)+i)<<32 ^ o.locals[i]*0x9e3779b97f4a7c15
		switch {
		case a.s%3 == 2: // an engine of another kind
			e ^= uint64(a.s) << 20
		case s.rng.IntN(20) == 0: // another hash for the same blocks
			e ^= s.rng.Uint64() &^ 0xff
		}
		o.engines = append(o.engines, e)
	}
	if o.start > 0 {
		o.parent = indexer.Parent{}
	}
	return o
}

// content continues a path, along a prompt if it lies on one.
func (s *stream) content(path []uint64) []uint64 {
	n := 1 + s.rng.IntN(s.longest)
	if s.rng.IntN(5) > 0 {
		first := s.rng.IntN(len(s.prompts))
		for i := range s.prompts {
			p := s.prompts[(first+i)%len(s.prompts)]
			if len(path) < len(p) && slices.Equal(p[:len(path)], path) {
				return slices.Clone(p[len(path):min(len(p), len(path)+n)])
			}
		}
	}
	out := make([]uint64, 1+s.rng.IntN(3))
	for i := range out {
		out[i] = 1 + s.rng.Uint64N(s.symbols)
	}
	return out
}

// drawRanges takes stretches of one to three runs: a tail, a head, one block, or all
// that fits.
func (s *stream) drawRanges(c *tracked, kind indexer.OpKind) op {
	o := op{kind: kind, tier: s.tier()}
	for n := 1 + s.rng.IntN(3)*s.rng.IntN(2); n > 0; n-- {
		k, r := s.pick(c)
		if r == nil {
			return op{}
		}
		from, to := 0, len(r.tiers)
		switch s.rng.IntN(5) {
		case 0:
			from = s.rng.IntN(to)
		case 1:
			to = 1 + s.rng.IntN(to)
		case 2:
			from = s.rng.IntN(to)
			to = from + 1
		case 3:
			from = s.rng.IntN(to)
			to = from + 1 + s.rng.IntN(to-from)
		}
		one := s.rng.IntN(4) == 0 // block by block, last first
		var got []indexer.Range
		for pos := from; pos < to; pos++ {
			if r.tiers[pos] == 0 || r.tiers[pos].Has(o.tier) != (kind == indexer.OpDrop) {
				continue
			}
			if last := len(got) - 1; !one && last >= 0 && got[last].From()+got[last].Len() == pos {
				got[last] = indexer.MakeRange(k, got[last].From(), got[last].Len()+1)
			} else {
				got = append(got, indexer.MakeRange(k, pos, 1))
			}
		}
		if one {
			slices.Reverse(got)
		}
		o.ranges = append(o.ranges, got...)
	}
	if len(o.ranges) == 0 {
		return op{}
	}
	return o
}

// paths are the queries worth asking: every path ever stored, and the prompts.
func (s *stream) paths() (out []indexer.Query) {
	keys := make([]string, 0, len(s.seen))
	for k := range s.seen {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		out = append(out, s.seen[k])
	}
	for _, p := range s.prompts {
		for g := range indexer.GroupID(2) {
			out = append(out, indexer.Query{Group: g, Locals: p}, indexer.Query{Group: g, Partition: 1, Locals: p},
				indexer.Query{Group: g, Anchor: 5, Locals: p})
		}
	}
	return out
}
