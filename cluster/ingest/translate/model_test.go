package translate

import (
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// model is the translator's meaning in plain maps: engine hash -> path, whole
// paths instead of tags, no runs, no frames. It shares no code with the translator.
type model struct {
	claims  map[uint64]*modelClaim
	waiting map[uint64]*modelOrphan
	tainted map[uint64]bool
	copies  map[modelCopy]int
	count   bool // count copies
	lora    string
	salt    string
	// collided: two different paths met whose 16-bit tags are equal, which rule N2
	// accepts; the translator may not have seen the contradiction.
	collided bool
}

type modelClaim struct {
	engines    []uint64 // path in engine hashes
	locals     string   // path in local hashes
	lora, salt string
	tiers      indexer.TierMask
}

type modelOrphan struct {
	parent     uint64
	tokens     []uint32
	window     int
	lora, salt string // as named
	tiers      indexer.TierMask
}

type modelCopy struct {
	hash uint64
	tier indexer.Tier
}

func newModel() *model {
	return &model{claims: map[uint64]*modelClaim{}, waiting: map[uint64]*modelOrphan{},
		tainted: map[uint64]bool{}, copies: map[modelCopy]int{}}
}

func (m *model) taint(h uint64) {
	m.tainted[h] = true
	delete(m.waiting, h)
	for t := range indexer.Tier(indexer.NumTiers) {
		delete(m.copies, modelCopy{h, t})
	}
	for c, o := range m.waiting {
		if o.parent == h {
			m.taint(c)
		}
	}
}

// store returns false if the event is a contradiction.
func (m *model) store(s Store) bool {
	if m.contradicts(s) {
		for _, h := range s.Engines {
			m.taint(h)
		}
		return false
	}
	prev, hasPrev := s.Parent, s.HasParent
	bad := hasPrev && m.tainted[prev]
	for i, h := range s.Engines {
		bs := s.Content.BlockSize
		tokens := s.Content.Tokens[i*bs : i*bs+s.Content.Window]
		c, o := m.claims[h], m.waiting[h]
		above := m.claims[prev]
		switch {
		case bad:
			m.taint(h)
		case m.tainted[h]:
			bad = true
		case c != nil:
			m.again(h, s.Tier, &c.tiers)
		case !hasPrev:
			m.claims[h] = m.root(s).child(h, tokens, s.Tier.Mask())
		case above != nil:
			m.claims[h] = above.child(h, tokens, s.Tier.Mask())
			if o != nil {
				m.again(h, s.Tier, &o.tiers)
				m.claims[h].tiers |= o.tiers
				delete(m.waiting, h)
			}
		case o != nil:
			m.again(h, s.Tier, &o.tiers)
		default:
			m.waiting[h] = &modelOrphan{prev, slices.Clone(tokens), s.Content.Window, s.Lora, s.Salt, s.Tier.Mask()}
		}
		prev, hasPrev = h, true
	}
	for again := true; again; {
		again = false
		for h, o := range m.waiting {
			above := m.claims[o.parent]
			if above == nil {
				continue
			}
			again = true
			if !fits(above.lora, o.lora) || !fits(above.salt, o.salt) {
				m.taint(h)
				break
			}
			delete(m.waiting, h)
			m.claims[h] = above.child(h, o.tokens, o.tiers)
		}
	}
	return true
}

func (m *model) again(h uint64, tier indexer.Tier, tiers *indexer.TierMask) {
	if tiers.Has(tier) && m.count {
		k := modelCopy{h, tier}
		m.copies[k] = min(m.copies[k]+1, 254)
	}
	*tiers |= tier.Mask()
}

func fits(have, named string) bool { return named == "" || have == named }

func (m *model) root(s Store) *modelClaim {
	c := &modelClaim{lora: s.Lora, salt: s.Salt}
	if c.lora == "" {
		c.lora = m.lora
	}
	if c.salt == "" {
		c.salt = m.salt
	}
	return c
}

func (c *modelClaim) child(h uint64, tokens []uint32, tiers indexer.TierMask) *modelClaim {
	k := *c
	k.engines = append(slices.Clone(c.engines), h)
	l := blockhash.Content{Tokens: tokens, BlockSize: len(tokens), Window: len(tokens)}.
		AppendLocals(nil, blockhash.NamespaceSeed(c.lora, c.salt))
	k.locals = extend(c.locals, l[0])
	k.tiers = tiers
	return &k
}

func (m *model) contradicts(s Store) bool {
	seen := map[uint64]bool{}
	var path *modelClaim
	if s.HasParent {
		seen[s.Parent] = true
		if path = m.claims[s.Parent]; path != nil && (!fits(path.lora, s.Lora) || !fits(path.salt, s.Salt)) {
			return true
		}
	} else {
		path = m.root(s)
	}
	prev, hasPrev := s.Parent, s.HasParent
	for _, h := range s.Engines {
		if seen[h] {
			return true
		}
		seen[h] = true
		if c := m.claims[h]; c != nil {
			if path != nil {
				want := append(slices.Clone(path.engines), h)
				if !slices.Equal(want, c.engines) || path.lora != c.lora || path.salt != c.salt {
					if path.lora == c.lora && path.salt == c.salt && tagOf(c, want) == tagOf(c, c.engines) {
						m.collided = true
					}
					return true
				}
			} else if !fits(c.lora, s.Lora) || !fits(c.salt, s.Salt) {
				return true
			}
			path = c
		} else {
			if path != nil {
				k := *path
				k.engines = append(slices.Clone(path.engines), h)
				path = &k
			}
			if o := m.waiting[h]; o != nil {
				if !hasPrev || o.parent != prev {
					return true
				}
				if (o.lora != "" && s.Lora != "" && o.lora != s.Lora) || (o.salt != "" && s.Salt != "" && o.salt != s.Salt) {
					return true
				}
			}
		}
		prev, hasPrev = h, true
	}
	return false
}

// tagOf is the 16-bit tag of a path.
func tagOf(c *modelClaim, path []uint64) uint16 {
	var spaces spaceTable
	spaces.init(c.lora, c.salt)
	tag := spaces.tag(0)
	for _, h := range path {
		tag = mixTag(tag, h)
	}
	return tag
}

func (m *model) placeholder(s Store) {
	for _, h := range s.Engines {
		if m.tainted[h] {
			continue
		}
		if c := m.claims[h]; c != nil {
			m.again(h, s.Tier, &c.tiers)
		} else if o := m.waiting[h]; o != nil {
			o.tiers |= s.Tier.Mask()
		}
	}
}

func (m *model) remove(tier indexer.Tier, engines []uint64) {
	for _, h := range engines {
		var tiers *indexer.TierMask
		c, o := m.claims[h], m.waiting[h]
		if c != nil {
			tiers = &c.tiers
		} else if o != nil {
			tiers = &o.tiers
		}
		if tiers == nil || !tiers.Has(tier) {
			continue
		}
		if k := (modelCopy{h, tier}); m.copies[k] > 0 {
			m.copies[k]--
			continue
		}
		if *tiers &^= tier.Mask(); *tiers == 0 {
			delete(m.claims, h)
			delete(m.waiting, h)
		}
	}
}

func (m *model) clear(tier indexer.Tier) {
	for h, c := range m.claims {
		if c.tiers &^= tier.Mask(); c.tiers == 0 {
			delete(m.claims, h)
		}
	}
	for h, o := range m.waiting {
		if o.tiers &^= tier.Mask(); o.tiers == 0 {
			delete(m.waiting, h)
		}
	}
	for k := range m.copies {
		if tier.Mask().Has(k.tier) {
			delete(m.copies, k)
		}
	}
}

// covered returns the credited paths, each with its tiers.
func (m *model) covered() map[string]indexer.TierMask {
	out := map[string]indexer.TierMask{}
	for _, c := range m.claims {
		out[c.locals] |= c.tiers
	}
	return out
}

func (m *model) state(h uint64) HashState {
	switch {
	case m.claims[h] != nil:
		return HashHeld
	case m.tainted[h]:
		return HashTainted
	case m.waiting[h] != nil:
		return HashOrphan
	}
	return HashUnknown
}
