package translate

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// removeBatch bounds the hashes probed at once, so that what the probes brought
// into the cache is still there when it is used.
const removeBatch = 512

// Remove translates one removal event: each hash loses its claim in one tier.
// Hashes that have none there are counted, nothing else happens to them.
func (t *Translator) Remove(tier indexer.Tier, engines []uint64) Outcome {
	t.mustBeOpen()
	var out Outcome
	if tier >= indexer.NumTiers {
		out.Unknown = len(engines)
		t.count(&out)
		return out
	}
	if t.heir != nil {
		all := len(engines)
		engines = t.unsettled(engines)
		out.Settled = all - len(engines)
	}
	for left := engines; len(left) > 0; {
		n := min(len(left), removeBatch)
		t.remove(tier, left[:n], &out)
		left = left[n:]
	}
	t.flushRanges()
	if len(t.loose) > 0 {
		t.forgetLoose(engines)
	}
	t.blocks.fit()
	t.count(&out)
	return out
}

func (t *Translator) remove(tier indexer.Tier, engines []uint64, out *Outcome) {
	m := &t.blocks
	if m.count == 0 {
		for _, h := range engines {
			t.removeUnmapped(h, tier, out)
		}
		return
	}
	probes := t.scratch.probes(len(engines))
	m.probe(engines, probes)
	var cur, have, dead uint32 // unit in hand; its positions held in the tier, and to be dropped
	for i, h := range engines {
		p := &probes[i]
		id := p.id
		if id == 0 || m.key(id) != h {
			id = m.resolve(h, p)
		}
		if id == 0 {
			t.removeUnmapped(h, tier, out)
			continue
		}
		if id>>2 != cur {
			t.dropUnit(cur, dead, tier)
			cur, dead = id>>2, 0
			have = m.tierBits(cur, tier)
		}
		bit := uint32(1) << (id & 3)
		if have&^dead&bit == 0 {
			out.Unknown++
			continue
		}
		if t.copies.take(h, tier) {
			out.Trimmed++ // one of several copies: the claim stays
			continue
		}
		dead |= bit
		out.Dropped++
		if m.lower != nil && m.tiers(id) != tier.Mask() {
			continue
		}
		if p.found&probeMatch != 0 && p.id == id {
			m.table[p.home*bucketWords+uint32(bits.TrailingZeros32(p.found))] = 0
			m.count--
			m.removed++
		} else {
			m.erase(h)
		}
	}
	t.dropUnit(cur, dead, tier)
}

// removeUnmapped handles a removed hash that is not mapped: it may be in the pool.
func (t *Translator) removeUnmapped(h uint64, tier indexer.Tier, out *Outcome) {
	switch {
	case !t.pool.holds(h, tier):
		out.Unknown++
	case t.copies.take(h, tier):
		out.Trimmed++
	default:
		t.pool.dropTier(h, tier)
		out.Forgotten++
	}
}

// dropUnit ends one tier for the positions in dead of a unit. Entries of positions
// that no tier holds any more are erased by the caller.
func (t *Translator) dropUnit(u, dead uint32, tier indexer.Tier) {
	if dead == 0 {
		return
	}
	m := &t.blocks
	word := m.unit(u)[0]
	run, base := uint32(word&runMask), unitPos(word)
	rec := t.runs.at(run)
	t.stats.Held[tier] -= uint64(bits.OnesCount32(dead))
	for d := dead; d != 0; {
		from := bits.TrailingZeros32(d)
		n := bits.TrailingZeros32(^(d >> from))
		t.addRange(indexer.OpDrop, tier, run, rec, base+from, n)
		d &^= (1<<n - 1) << from
	}
	m.clearTierBits(u, dead, tier)
	if m.liveBits(u) == 0 {
		m.freeUnit(u)
		t.releaseUnit(run, rec)
	}
}

// releaseUnit takes a freed unit off its run.
func (t *Translator) releaseUnit(run uint32, rec *runRecord) {
	if rec.extent -= oneUnit; rec.units() == 0 {
		t.spaces.release(rec.ns)
		t.runs.retire(&t.parts, run)
	}
}

// Clear translates a clear of one tier, or of everything.
func (t *Translator) Clear(tier indexer.Tier) Outcome {
	t.mustBeOpen()
	var out Outcome
	switch {
	case t.heir != nil && (tier == indexer.AllTiers || tier < indexer.NumTiers):
		out.Dropped = t.clearUnsettled(tier)
	case tier == indexer.AllTiers:
		out.Dropped = t.clearAll()
	case tier < indexer.NumTiers:
		out.Dropped = t.clearTier(tier)
	}
	t.sweepLoose()
	t.count(&out)
	return out
}

// clearAll drops every claim and every orphan, and returns the number of claims.
func (t *Translator) clearAll() int {
	n := t.sendClear(indexer.AllTiers)
	for tier := range t.stats.Held {
		n += int(t.stats.Held[tier])
		t.stats.Held[tier] = 0
	}
	t.blocks.reset()
	t.runs.each(func(run uint32, rec *runRecord) {
		t.spaces.release(rec.ns)
		t.runs.retire(&t.parts, run)
	})
	t.pool.clear(indexer.AllTiers)
	t.copies.clear(indexer.AllTiers)
	return n
}

func (t *Translator) clearTier(tier indexer.Tier) int {
	n := t.sendClear(tier) + int(t.stats.Held[tier])
	t.stats.Held[tier] = 0
	t.blocks.eachUnit(func(u uint32) {
		set := t.blocks.tierBits(u, tier)
		if set == 0 {
			return
		}
		run := uint32(t.blocks.unit(u)[0] & runMask)
		if _, freed := t.blocks.dropTiers(u, set, tier); freed {
			t.releaseUnit(run, t.runs.at(run))
		}
	})
	t.pool.clear(tier)
	t.copies.clear(tier)
	t.blocks.fit()
	return n
}

// sendClear puts a clear into the frame of every partition where the slot holds
// anything. It returns 0.
func (t *Translator) sendClear(tier indexer.Tier) int {
	for p := range t.parts.list {
		if t.parts.list[p].runs > 0 {
			t.builder(uint32(p)).Clear(tier)
		}
	}
	return 0
}
