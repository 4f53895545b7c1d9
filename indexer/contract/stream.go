package contract

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/kvcluster/kvcluster/indexer"
)

// frame is a frame before it is packed, or a purge.
type frame struct {
	at    at
	purge bool
	ops   []op
}

type op struct {
	kind    indexer.OpKind
	tier    indexer.Tier
	run     indexer.Run
	start   uint32
	parent  indexer.Parent
	locals  []uint64
	engines []uint64
	ranges  []indexer.Range
	fault   bool // names what cannot exist
}

// send writes the frame to the bench's index.
func (f *frame) send(b *bench) {
	b.Helper()
	if f.purge {
		b.flush()
		b.purge(f.at.g, f.at.s)
		return
	}
	b.write(f.at, func(o ops) { f.pack(o.FrameBuilder) })
}

// pack appends the operations to a frame.
func (f *frame) pack(b *indexer.FrameBuilder) {
	for _, o := range f.ops {
		switch o.kind {
		case indexer.OpStore:
			l, e := b.Store(o.tier, o.run, o.start, o.parent, len(o.locals))
			copy(l, o.locals)
			copy(e, o.engines)
		case indexer.OpClear:
			b.Clear(o.tier)
		case indexer.OpClaim:
			for _, r := range o.ranges {
				b.Claim(o.tier, r)
			}
		case indexer.OpDrop:
			for _, r := range o.ranges {
				b.Drop(o.tier, r)
			}
		}
	}
}

// String is the frame as the text of a test.
func (f *frame) String() string {
	if f.purge {
		return fmt.Sprintf("b.purge(%d, %d)", f.at.g, f.at.s)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "b.do(at{%d, %d, %d}, func(o ops) {", f.at.g, f.at.p, f.at.s)
	for i, o := range f.ops {
		if i > 0 {
			s.WriteString(";")
		}
		switch o.kind {
		case indexer.OpStore:
			parent := "root()"
			switch {
			case o.start > 0:
			case o.parent.Kind == indexer.ParentName:
				parent = fmt.Sprintf("under(%d, %d)", o.parent.Run, o.parent.Pos)
			case o.parent.Anchor != 0:
				parent = fmt.Sprintf("anchor(%d)", o.parent.Anchor)
			}
			fmt.Fprintf(&s, " o.storeIn(%v, %d, %d, %s", o.tier, o.run, o.start, parent)
			for _, l := range o.locals {
				fmt.Fprintf(&s, ", %d", l)
			}
			fmt.Fprintf(&s, ") /* engines %#x */", o.engines)
		case indexer.OpClear:
			tier := o.tier.String()
			if o.tier == indexer.AllTiers {
				tier = "indexer.AllTiers"
			}
			fmt.Fprintf(&s, " o.Clear(%s)", tier)
		default:
			verb := "Drop"
			if o.kind == indexer.OpClaim {
				verb = "Claim"
			}
			for i, r := range o.ranges {
				if i > 0 {
					s.WriteString(";")
				}
				fmt.Fprintf(&s, " o.%s(%v, indexer.MakeRange(%d, %d, %d))", verb, o.tier, r.Run(), r.From(), r.Len())
			}
		}
	}
	s.WriteString(" })")
	return s.String()
}

// tracker knows which names a stream has made, and so which operations are valid.
type tracker struct {
	copies map[at]*tracked
	now    int // number of the frame
}

type tracked struct {
	runs   map[indexer.Run]*trackedRun
	closed bool
}

type trackedRun struct {
	anchor  uint64
	above   []uint64 // path of the position above the run
	locals  []uint64
	tiers   []indexer.TierMask
	live    int
	emptied int // number of the frame that emptied it
}

func newTracker() *tracker { return &tracker{copies: map[at]*tracked{}} }

func (k *tracker) copyOf(a at) *tracked {
	c := k.copies[a]
	if c == nil {
		c = &tracked{runs: map[indexer.Run]*trackedRun{}}
		k.copies[a] = c
	}
	return c
}

// accept leaves out of the frame what is not valid here, notes the rest, and reports
// whether anything is left.
func (k *tracker) accept(f *frame) bool {
	k.now++
	if f.purge {
		for a := range k.copies {
			if a.g == f.at.g && a.s == f.at.s {
				delete(k.copies, a)
			}
		}
		return true
	}
	c := k.copyOf(f.at)
	f.ops = slices.DeleteFunc(f.ops, func(o op) bool { return o.kind == 0 })
	kept := f.ops[:0]
	for i := range f.ops {
		o := f.ops[i]
		if o.kind == indexer.OpClear && o.tier == indexer.AllTiers && i == 0 {
			c.closed = false
		}
		if c.closed || k.acceptOp(c, &o) {
			kept = append(kept, o)
		}
		if o.fault && !c.closed {
			k.wipe(c)
			c.closed = true
		}
	}
	f.ops = kept
	return len(kept) > 0
}

func (k *tracker) acceptOp(c *tracked, o *op) bool {
	if o.fault {
		return true
	}
	switch o.kind {
	case indexer.OpClear:
		if o.tier == indexer.AllTiers {
			k.wipe(c)
			return true
		}
		for _, r := range c.runs {
			for pos := range r.tiers {
				k.set(r, pos, o.tier, false)
			}
		}
		return true
	case indexer.OpStore:
		return k.acceptStore(c, o)
	}
	o.ranges = slices.Clone(o.ranges)
	o.ranges = slices.DeleteFunc(o.ranges, func(g indexer.Range) bool {
		r := c.runs[g.Run()]
		if r == nil || g.From()+g.Len() > len(r.tiers) {
			return true
		}
		for pos := g.From(); pos < g.From()+g.Len(); pos++ {
			if r.tiers[pos] == 0 || r.tiers[pos].Has(o.tier) != (o.kind == indexer.OpDrop) {
				return true
			}
		}
		for pos := g.From(); pos < g.From()+g.Len(); pos++ {
			k.set(r, pos, o.tier, o.kind == indexer.OpClaim)
		}
		return false
	})
	return len(o.ranges) > 0
}

func (k *tracker) acceptStore(c *tracked, o *op) bool {
	r := c.runs[o.run]
	if len(o.locals) == 0 {
		return false
	}
	if o.start > 0 {
		// A tip that is dead may be gone from the tree: a stream never extends there.
		if r == nil || int(o.start) != len(r.locals) || r.tiers[len(r.tiers)-1] == 0 {
			return false
		}
	} else {
		if r != nil && (r.live > 0 || r.emptied >= k.now) {
			return false
		}
		fresh := &trackedRun{anchor: o.parent.Anchor}
		if o.parent.Kind == indexer.ParentName {
			above := c.runs[o.parent.Run]
			if above == nil || o.parent.Run == o.run || int(o.parent.Pos) >= len(above.locals) || !above.liveFrom(int(o.parent.Pos)) {
				return false
			}
			fresh.anchor, fresh.above = above.anchor, above.path(int(o.parent.Pos)+1)
		}
		c.runs[o.run] = fresh
		r = fresh
	}
	for _, l := range o.locals {
		r.locals = append(r.locals, l)
		r.tiers = append(r.tiers, o.tier.Mask())
	}
	r.live += len(o.locals)
	return true
}

// liveFrom reports whether a name at or below pos is live.
func (r *trackedRun) liveFrom(pos int) bool {
	for _, m := range r.tiers[pos:] {
		if m != 0 {
			return true
		}
	}
	return false
}

// path is the path of the first n blocks of the run.
func (r *trackedRun) path(n int) []uint64 { return append(slices.Clone(r.above), r.locals[:n]...) }

func (k *tracker) set(r *trackedRun, pos int, t indexer.Tier, on bool) {
	had := r.tiers[pos] != 0
	if on {
		r.tiers[pos] |= t.Mask()
	} else {
		r.tiers[pos] &^= t.Mask()
	}
	if had && r.tiers[pos] == 0 {
		if r.live--; r.live == 0 {
			r.emptied = k.now
		}
	}
}

func (k *tracker) wipe(c *tracked) {
	for _, r := range c.runs {
		if r.live > 0 {
			r.emptied = k.now
		}
		r.live = 0
		clear(r.tiers)
	}
}

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
