package model

import (
	"cmp"
	"slices"
)

// Walk is the tier walk of one holder: Walk[Device] is the device score, and
// Walk[t] how far the holder gets when tier t continues where tier t-1 ended.
type Walk [NumTiers]int

// Walk returns the tier walk of a query, given by the local hashes of its blocks.
func (m *Model[H]) Walk(h H, locals []uint64) (w Walk) {
	o := m.holders[h]
	if o == nil {
		return w
	}
	pos, at := 0, path(0)
	for t := range NumTiers {
		for pos < len(locals) {
			next, known := m.paths.number[edge{at, locals[pos]}]
			if !known || !o.holds(next, t) {
				break
			}
			pos, at = pos+1, next
		}
		w[t] = pos
	}
	return w
}

// Held is the device score of a query.
func (m *Model[H]) Held(h H, locals []uint64) int { return m.Walk(h, locals)[Device] }

// Bounds returns what a device score may be at least and at most in the contract of
// indexes that do not fill holes.
func (m *Model[H]) Bounds(h H, locals []uint64) (reachable, held int) {
	held = m.Held(h, locals)
	o := m.holders[h]
	if o == nil {
		return 0, held
	}
	at := path(0)
	for _, l := range locals {
		next, known := m.paths.number[edge{at, l}]
		if _, ok := o.reachable[next]; !known || !ok {
			break
		}
		at = next
		reachable++
	}
	return min(reachable, held), held
}

// Scores returns the walks of all holders that hold the first block in any tier.
func (m *Model[H]) Scores(locals []uint64) map[H]Walk {
	out := map[H]Walk{}
	for h, o := range m.holders {
		if len(o.cover) == 0 {
			continue
		}
		if w := m.Walk(h, locals); w[External] > 0 {
			out[h] = w
		}
	}
	return out
}

// State is what a model knows of one engine hash of a holder.
type State uint8

// The states of a hash. A tainted hash that is claimed still, from before, is Held.
const (
	Unknown State = iota
	Held
	Orphan
	Tainted
)

// Lookup returns the state of a hash.
func (m *Model[H]) Lookup(h H, engine uint64) State {
	o := m.holders[h]
	switch {
	case o == nil:
		return Unknown
	case o.claims[engine] != nil:
		return Held
	case o.tainted[engine]:
		return Tainted
	case o.orphans[engine] != nil:
		return Orphan
	}
	return Unknown
}

// Tiers returns in which tiers a holder holds each block of a query, bit t for tier
// t; a block's own state does not depend on the blocks before it.
func (m *Model[H]) Tiers(h H, locals []uint64) []uint8 {
	out := make([]uint8, len(locals))
	o := m.holders[h]
	at := path(0)
	for i, l := range locals {
		next, known := m.paths.number[edge{at, l}]
		if !known {
			break
		}
		at = next
		for t := range NumTiers {
			if o != nil && o.holds(at, t) {
				out[i] |= 1 << t
			}
		}
	}
	return out
}

// Claim is one engine hash that a holder is credited with.
type Claim struct {
	Engine uint64
	Path   []uint64 // local hashes from the root on, its own last
	Tiers  uint8    // bit t for tier t
}

// Claims returns the claims of a holder in the order of their hashes.
func (m *Model[H]) Claims(h H) []Claim {
	o := m.holders[h]
	if o == nil {
		return nil
	}
	out := make([]Claim, 0, len(o.claims))
	for hash, c := range o.claims {
		k := Claim{Engine: hash, Path: m.paths.blocks(c.at)}
		for t, n := range c.copies {
			if n > 0 {
				k.Tiers |= 1 << t
			}
		}
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Claim) int { return cmp.Compare(a.Engine, b.Engine) })
	return out
}

// Counts says how much a model holds.
type Counts struct {
	Held     [NumTiers]int // (holder, path) pairs covered
	Distinct int           // paths that any holder holds
	Claims   int           // live engine hashes
	Orphans  int           // blocks that wait for a parent
	Tainted  int           // hashes known not to name a prefix
}

// Counts adds up all holders.
func (m *Model[H]) Counts() (c Counts) {
	distinct := map[path]bool{}
	for _, o := range m.holders {
		for at, tiers := range o.cover {
			distinct[at] = true
			for t, n := range tiers {
				if n > 0 {
					c.Held[t]++
				}
			}
		}
		c.Claims += len(o.claims)
		c.Orphans += len(o.orphans)
		c.Tainted += len(o.tainted)
	}
	c.Distinct = len(distinct)
	return c
}
