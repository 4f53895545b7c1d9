package model

import "slices"

// Config has the choices that change what is true.
type Config struct {
	// CountCopies: a claim ends with as many removals as there were stores.
	CountCopies bool
}

// Model is the truth about one index group whose holders are named by H.
type Model[H comparable] struct {
	config  Config
	paths   paths
	holders map[H]*holder
}

// New returns a model without holders.
func New[H comparable](c Config) *Model[H] {
	return &Model[H]{config: c, paths: newPaths(), holders: map[H]*holder{}}
}

// path is the number of a path of local hashes, 0 for the empty one. Paths are kept
// for ever, so equal numbers mean equal paths and nothing is hashed.
type path int

type edge struct {
	above path
	block uint64
}

type paths struct {
	number map[edge]path
	edges  []edge // by path
}

func newPaths() paths { return paths{number: map[edge]path{}, edges: make([]edge, 1)} }

// child returns the path that continues another one by a block.
func (p *paths) child(above path, block uint64) path {
	e := edge{above, block}
	n, ok := p.number[e]
	if !ok {
		n = path(len(p.edges))
		p.edges = append(p.edges, e)
		p.number[e] = n
	}
	return n
}

// blocks returns the blocks of a path.
func (p *paths) blocks(n path) (out []uint64) {
	for ; n != 0; n = p.edges[n].above {
		out = append(out, p.edges[n].block)
	}
	slices.Reverse(out)
	return out
}

// claim is one engine hash of a holder, in all the tiers that it is held in.
type claim struct {
	at        path // in local hashes
	lineage   path // in engine hashes, from a root that stands for the namespace
	namespace namespace
	copies    [NumTiers]int // 0 = not held in this tier
}

func (c *claim) live() bool { return c.copies != [NumTiers]int{} }

type holder struct {
	claims  map[uint64]*claim          // by engine hash
	cover   map[path]*[NumTiers]int    // live claims on a path, by tier
	orphans map[uint64]*orphan         // by engine hash
	waiting map[uint64]map[uint64]bool // parent -> orphans below it
	tainted map[uint64]bool
	// reachable paths of the device tier, with what is reachable below each.
	reachable map[path]map[path]bool
	// lineages numbers the paths in engine hashes; its roots are namespaces.
	lineages paths
	roots    map[namespace]uint64
}

func (m *Model[H]) holder(h H) *holder {
	o := m.holders[h]
	if o == nil {
		o = newHolder()
		m.holders[h] = o
	}
	return o
}

func newHolder() *holder {
	return &holder{
		claims: map[uint64]*claim{}, cover: map[path]*[NumTiers]int{},
		orphans: map[uint64]*orphan{}, waiting: map[uint64]map[uint64]bool{}, tainted: map[uint64]bool{},
		reachable: map[path]map[path]bool{}, lineages: newPaths(), roots: map[namespace]uint64{},
	}
}

// Apply takes one event of a holder, in the order in which the engine sent it. It
// reports whether the event was taken; a contradiction is not.
func (m *Model[H]) Apply(h H, e Event) bool {
	o := m.holder(h)
	switch e.Kind {
	case Stored:
		if e.Placeholder {
			m.placeholder(o, &e)
			return true
		}
		return m.store(o, &e)
	case Removed:
		for _, hash := range e.Engines {
			o.remove(hash, e.Tier, m.config.CountCopies)
		}
	case Cleared:
		o.clear(e.Tier)
	}
	return true
}

// Remove ends the holder: an unregistered rank, or a life that is over.
func (m *Model[H]) Remove(h H) { delete(m.holders, h) }

// Holders are those that any event came for and that were not removed.
func (m *Model[H]) Holders() []H {
	out := make([]H, 0, len(m.holders))
	for h := range m.holders {
		out = append(out, h)
	}
	return out
}

// hold adds a claim's tier.
func (o *holder) hold(c *claim, tier int, count bool) {
	if c.copies[tier] > 0 {
		if count {
			c.copies[tier]++
		}
		return
	}
	c.copies[tier] = 1
	if o.cover[c.at] == nil {
		o.cover[c.at] = new([NumTiers]int)
	}
	o.cover[c.at][tier]++
}

// remove ends one claim of one tier, or takes one of its copies.
func (o *holder) remove(hash uint64, tier int, count bool) {
	if w := o.orphans[hash]; w != nil {
		if w.copies[tier] > 0 {
			w.copies[tier]--
			if !count {
				w.copies[tier] = 0
			}
		}
		if w.copies == [NumTiers]int{} {
			o.unwait(hash)
		}
		return
	}
	c := o.claims[hash]
	if c == nil || c.copies[tier] == 0 {
		return
	}
	if count && c.copies[tier] > 1 {
		c.copies[tier]--
		return
	}
	o.end(hash, c, tier)
}

func (o *holder) end(hash uint64, c *claim, tier int) {
	c.copies[tier] = 0
	if o.cover[c.at][tier]--; *o.cover[c.at] == [NumTiers]int{} {
		delete(o.cover, c.at)
	}
	if !c.live() {
		delete(o.claims, hash)
	}
	if tier == Device && !o.holds(c.at, Device) {
		o.cut(c.at)
	}
}

func (o *holder) clear(tier int) {
	for t := range NumTiers {
		if tier != AllTiers && tier != t {
			continue
		}
		for hash, c := range o.claims {
			if c.copies[t] > 0 {
				o.end(hash, c, t)
			}
		}
		for hash, w := range o.orphans {
			if w.copies[t] = 0; w.copies == [NumTiers]int{} {
				o.unwait(hash)
			}
		}
	}
}

func (o *holder) holds(at path, tier int) bool {
	c := o.cover[at]
	return c != nil && c[tier] > 0
}
