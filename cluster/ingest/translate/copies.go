package translate

import "github.com/kvcluster/kvcluster/indexer"

// maxCopies bounds the copies counted for one hash and tier.
const maxCopies = 255

// copyCounts counts the copies beyond the first of a hash in a tier, for engines
// that announce and remove each physical copy. It is empty with set semantics.
type copyCounts struct {
	on    bool
	extra map[copyKey]uint8
}

type copyKey struct {
	hash uint64
	tier indexer.Tier
}

func (c *copyCounts) init(on bool) {
	c.on = on
	if on {
		c.extra = map[copyKey]uint8{}
	}
}

// add counts one more copy; beyond maxCopies copies are not told apart.
func (c *copyCounts) add(h uint64, tier indexer.Tier) {
	if c.on {
		if k := (copyKey{h, tier}); c.extra[k] < maxCopies-1 {
			c.extra[k]++
		}
	}
}

// take removes one copy and reports whether another one is left.
func (c *copyCounts) take(h uint64, tier indexer.Tier) bool {
	if len(c.extra) == 0 {
		return false
	}
	k := copyKey{h, tier}
	n := c.extra[k]
	switch n {
	case 0:
		return false
	case 1:
		delete(c.extra, k)
	default:
		c.extra[k] = n - 1
	}
	return true
}

// forget sets the counts of a hash back to one copy, in all tiers.
func (c *copyCounts) forget(h uint64) {
	if len(c.extra) > 0 {
		for tier := range indexer.Tier(indexer.NumTiers) {
			delete(c.extra, copyKey{h, tier})
		}
	}
}

// clear sets the counts of one tier, or of all, back.
func (c *copyCounts) clear(tier indexer.Tier) {
	if tier == indexer.AllTiers {
		clear(c.extra)
		return
	}
	for k := range c.extra {
		if k.tier == tier {
			delete(c.extra, k)
		}
	}
}
