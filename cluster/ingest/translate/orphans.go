package translate

import (
	"math/bits"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// orphanPool keeps blocks whose parent is not known, with their content, since
// the namespace of the parent decides their local hashes. It is bounded; the
// oldest blocks fall out first. Stretches of one event share one copy of their
// content.
type orphanPool struct {
	blocks   map[uint64]orphan
	children map[uint64]uint64 // parent hash -> first waiting child
	groups   []orphanGroup
	free     []uint32 // groups
	order    []orphanStamp
	head     int // of order
	stamp    uint64
	max      int
}

type orphan struct {
	parent uint64
	next   uint64 // next child of the same parent, if more
	stamp  uint64
	group  uint32
	index  uint32 // in the group's content
	tiers  indexer.TierMask
	more   bool
}

type orphanGroup struct {
	content    blockhash.Content
	lora, salt string // as the event named them
	refs       int
}

type orphanStamp struct{ hash, stamp, batch uint64 }

func (p *orphanPool) init(limit int) {
	p.max = limit
	p.blocks = map[uint64]orphan{}
	p.children = map[uint64]uint64{}
}

func (p *orphanPool) len() int { return len(p.blocks) }

// bytes is an estimate: map entries with their slack, and the content.
func (p *orphanPool) bytes() uint64 {
	n := uint64(len(p.blocks))*(56+24) + uint64(cap(p.order))*24
	for i := range p.groups {
		c := &p.groups[i].content
		n += 128 + uint64(len(c.Tokens))*4 + uint64(len(c.Locals))*8
	}
	return n
}

func (p *orphanPool) has(h uint64) bool {
	_, ok := p.blocks[h]
	return ok
}

func (p *orphanPool) get(h uint64) (orphan, bool) {
	if len(p.blocks) == 0 {
		return orphan{}, false
	}
	o, ok := p.blocks[h]
	return o, ok
}

func (p *orphanPool) holds(h uint64, tier indexer.Tier) bool {
	o, ok := p.get(h)
	return ok && o.tiers.Has(tier)
}

func (p *orphanPool) group(o orphan) *orphanGroup { return &p.groups[o.group] }

func (p *orphanPool) firstChild(parent uint64) (uint64, bool) {
	c, ok := p.children[parent]
	return c, ok
}

func (p *orphanPool) addTier(h uint64, tier indexer.Tier) bool {
	o, ok := p.blocks[h]
	if ok {
		o.tiers |= tier.Mask()
		p.blocks[h] = o
	}
	return ok
}

// newGroup copies the content of blocks i..j of an event for refs orphans.
func (p *orphanPool) newGroup(s *Store, i, j, refs int) uint32 {
	g := orphanGroup{content: cloneContent(subContent(s.Content, i, j)), lora: s.Lora, salt: s.Salt, refs: refs}
	if n := len(p.free); n > 0 {
		at := p.free[n-1]
		p.free = p.free[:n-1]
		p.groups[at] = g
		return at
	}
	p.groups = append(p.groups, g)
	return uint32(len(p.groups) - 1)
}

func (p *orphanPool) insert(h, parent uint64, group, index uint32, tier indexer.Tier, batch uint64) {
	p.stamp++
	first, more := p.children[parent]
	p.blocks[h] = orphan{parent: parent, next: first, more: more, stamp: p.stamp, group: group, index: index, tiers: tier.Mask()}
	p.children[parent] = h
	p.order = append(p.order, orphanStamp{h, p.stamp, batch})
}

// remove takes a block out of the pool, if it is there.
func (p *orphanPool) remove(h uint64) {
	o, ok := p.get(h)
	if !ok {
		return
	}
	delete(p.blocks, h)
	if first := p.children[o.parent]; first == h {
		if o.more {
			p.children[o.parent] = o.next
		} else {
			delete(p.children, o.parent)
		}
	} else {
		for at := first; ; {
			b := p.blocks[at]
			if b.next == h {
				b.next, b.more = o.next, o.more
				p.blocks[at] = b
				break
			}
			at = b.next
		}
	}
	g := &p.groups[o.group]
	if g.refs--; g.refs == 0 {
		*g = orphanGroup{}
		p.free = append(p.free, o.group)
	}
	if len(p.blocks) == 0 {
		p.order, p.head = p.order[:0], 0
	}
}

// oldest returns the batch that brought the block which has waited longest.
func (p *orphanPool) oldest() (batch uint64, ok bool) {
	for ; p.head < len(p.order) && len(p.blocks) > 0; p.head++ {
		e := p.order[p.head]
		if o, ok := p.blocks[e.hash]; ok && o.stamp == e.stamp {
			return e.batch, true
		}
	}
	return 0, false
}

// shrink drops the oldest blocks until the pool keeps its bound.
func (p *orphanPool) shrink(copies *copyCounts) (lost int) {
	for len(p.blocks) > p.max {
		e := p.order[p.head]
		p.head++
		if o, ok := p.blocks[e.hash]; ok && o.stamp == e.stamp {
			p.remove(e.hash)
			copies.forget(e.hash)
			lost++
		}
	}
	// Entries of blocks that left by themselves must not pile up.
	if len(p.order)-p.head > 2*len(p.blocks)+1024 || p.head > len(p.order)/2 {
		keep := p.order[:0]
		for _, e := range p.order[p.head:] {
			if o, ok := p.blocks[e.hash]; ok && o.stamp == e.stamp {
				keep = append(keep, e)
			}
		}
		p.order, p.head = keep, 0
	}
	return lost
}

// dropTier ends one tier of an orphan and reports whether it had it.
func (p *orphanPool) dropTier(h uint64, tier indexer.Tier) bool {
	o, ok := p.get(h)
	if !ok || !o.tiers.Has(tier) {
		return false
	}
	if o.tiers &^= tier.Mask(); o.tiers == 0 {
		p.remove(h)
	} else {
		p.blocks[h] = o
	}
	return true
}

// clear ends one tier of all orphans, or all of them.
func (p *orphanPool) clear(tier indexer.Tier) {
	if tier == indexer.AllTiers {
		p.init(p.max)
		p.groups, p.free, p.order, p.head = nil, nil, nil, 0
		return
	}
	for h := range p.blocks {
		p.dropTier(h, tier)
	}
}

// poolStretch puts blocks i..j of an event, none of them mapped, into the pool.
func (t *Translator) poolStretch(s *Store, parent uint64, i, j int, out *Outcome) {
	refs := 0
	for _, h := range s.Engines[i:j] {
		if !t.pool.has(h) {
			refs++
		}
	}
	var group uint32
	if refs > 0 {
		group = t.pool.newGroup(s, i, j, refs)
	}
	for k, h := range s.Engines[i:j] {
		if o, ok := t.pool.get(h); !ok {
			t.pool.insert(h, parent, group, uint32(k), s.Tier, t.seq)
			out.Orphaned++
		} else if o.tiers.Has(s.Tier) {
			t.copies.add(h, s.Tier)
			out.Trimmed++
		} else {
			t.pool.addTier(h, s.Tier)
			out.Orphaned++
		}
		parent = h
	}
	out.OrphansLost += t.pool.shrink(&t.copies)
}

// attach stores the orphans that wait below freshly mapped blocks, and those
// below them.
func (t *Translator) attach(out *Outcome) {
	sc := t.scratch
	for len(sc.fresh) > 0 && t.pool.len() > 0 {
		id := sc.fresh[len(sc.fresh)-1]
		sc.fresh = sc.fresh[:len(sc.fresh)-1]
		for {
			c, ok := t.pool.firstChild(t.blocks.key(id))
			if !ok {
				break
			}
			t.attachChain(id, c, out)
		}
	}
	t.flushRanges()
}

// attachChain stores orphan h below block id, and after it first children as long
// as they fit into the same store; the rest is found again through the fresh list.
func (t *Translator) attachChain(id uint32, h uint64, out *Outcome) {
	ns := t.runs.at(t.blocks.run(id)).ns
	o, _ := t.pool.get(h)
	if g := t.pool.group(o); !t.spaces.agrees(ns, g.lora, g.salt) {
		t.taintHash(h)
		out.Uncredited++
		return
	}
	tier := lowest(o.tiers)
	sc := t.scratch
	sc.engines, sc.locals, sc.masks = sc.engines[:0], sc.locals[:0], sc.masks[:0]
	seed := t.spaces.seed(ns)
	for ok := true; ok; {
		o, _ = t.pool.get(h)
		g := t.pool.group(o)
		if lowest(o.tiers) != tier || !t.spaces.agrees(ns, g.lora, g.salt) {
			break
		}
		sc.engines = append(sc.engines, h)
		sc.locals = appendLocals(sc.locals, g.content, int(o.index), int(o.index)+1, seed)
		sc.masks = append(sc.masks, o.tiers)
		t.pool.remove(h)
		h, ok = t.pool.firstChild(h)
	}
	t.storeStretch(place{kind: atBlock, id: id, ns: ns}, tier, sc.engines, blockhash.Content{Locals: sc.locals}, 0, nil)
	out.Attached += len(sc.engines)
	for i, e := range sc.engines {
		if m := sc.masks[i] &^ tier.Mask(); m != 0 {
			t.claimRest(t.blocks.find(e), e, m, out)
		}
	}
}

func lowest(m indexer.TierMask) indexer.Tier {
	return indexer.Tier(bits.TrailingZeros8(uint8(m)))
}

// subContent is the content of blocks i..j.
func subContent(c blockhash.Content, i, j int) blockhash.Content {
	if c.Locals != nil {
		c.Locals = c.Locals[i:j]
		return c
	}
	c.Tokens = c.Tokens[i*c.BlockSize : (j-1)*c.BlockSize+c.Window]
	if c.Multimodal != nil {
		items := make([]blockhash.Item, 0, len(c.Multimodal))
		for _, it := range c.Multimodal {
			if it.Block >= i && it.Block < j {
				items = append(items, blockhash.Item{Block: it.Block - i, Hash: it.Hash})
			}
		}
		c.Multimodal = items
	}
	return c
}

func cloneContent(c blockhash.Content) blockhash.Content {
	if c.Locals != nil {
		return blockhash.Content{Locals: slices.Clone(c.Locals)}
	}
	c.Tokens = slices.Clone(c.Tokens)
	c.Multimodal = slices.Clone(c.Multimodal)
	return c
}

// appendLocals appends the local hashes of blocks i..j.
func appendLocals(dst []uint64, c blockhash.Content, i, j int, seed uint64) []uint64 {
	if c.Locals != nil {
		return append(dst, c.Locals[i:j]...)
	}
	return subContent(c, i, j).AppendLocals(dst, seed)
}

func firstLocal(c blockhash.Content, i int, seed uint64) uint64 {
	if c.Locals != nil {
		return c.Locals[i]
	}
	var one [1]uint64
	return subContent(c, i, i+1).AppendLocals(one[:0], seed)[0]
}
