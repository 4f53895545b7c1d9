package translate

import "github.com/kvcluster/kvcluster/indexer"

// pendingRange is a stretch of dropped positions that may still grow.
type pendingRange struct {
	part uint32
	run  uint32
	wire indexer.Run
	from int
	to   int // exclusive; 0 = none
	tier indexer.Tier
}

// Remove translates one removal event: each hash loses its claim in one tier.
// Hashes that are not mapped there are counted, nothing else happens to them.
func (t *Translator) Remove(tier indexer.Tier, engines []uint64) Outcome {
	t.mustBeOpen()
	var out Outcome
	if tier >= indexer.NumTiers {
		out.Unknown = len(engines)
		return t.count(out)
	}
	for _, h := range engines {
		id := t.blocks.find(h)
		switch {
		case id != 0 && t.blocks.tiers(id).Has(tier):
			if t.copies.take(h, tier) {
				out.Trimmed++ // one of several copies: the claim stays
				continue
			}
			t.drop(id, tier)
			out.Dropped++
		case id == 0 && t.pool.holds(h, tier):
			if t.copies.take(h, tier) {
				out.Trimmed++
				continue
			}
			t.pool.dropTier(h, tier)
			out.Forgotten++
		default:
			out.Unknown++
		}
	}
	t.flushDrop()
	return t.count(out)
}

// drop ends the claim of one tier. The range is emitted by flushDrop at the latest.
func (t *Translator) drop(id uint32, tier indexer.Tier) {
	run, pos := t.blocks.run(id), t.blocks.pos(id)
	rec := &t.runs.list[run]
	p := &t.pending
	switch {
	case p.to != 0 && p.run == run && p.tier == tier && pos+1 == p.from:
		p.from--
	case p.to != 0 && p.run == run && p.tier == tier && pos == p.to:
		p.to++
	default:
		t.flushDrop()
		*p = pendingRange{part: rec.part, run: run, wire: rec.wire, from: pos, to: pos + 1, tier: tier}
	}
	t.stats.Held[tier]--
	if t.blocks.dropTier(id, tier) {
		t.release(run, 1)
	}
}

// release takes n blocks off a run that lost them in all tiers.
func (t *Translator) release(run uint32, n int) {
	rec := &t.runs.list[run]
	if rec.blocks -= n; rec.blocks == 0 {
		t.flushDrop()
		t.spaces.release(rec.ns)
		t.runs.retire(&t.parts, run)
	}
}

func (t *Translator) flushDrop() {
	p := &t.pending
	if p.to != 0 {
		t.builder(p.part).Drop(p.tier, indexer.MakeRange(p.wire, p.from, p.to-p.from))
		p.to = 0
	}
}

// Clear translates a clear of one tier, or of everything.
func (t *Translator) Clear(tier indexer.Tier) Outcome {
	t.mustBeOpen()
	var out Outcome
	switch {
	case tier == indexer.AllTiers:
		out.Dropped = t.clearAll()
	case tier < indexer.NumTiers:
		out.Dropped = t.clearTier(tier)
	}
	return t.count(out)
}

// clearAll drops every claim and every orphan, and returns the number of claims.
func (t *Translator) clearAll() int {
	n := 0
	for tier := range t.stats.Held {
		n += int(t.stats.Held[tier])
		t.stats.Held[tier] = 0
	}
	for p := range t.parts.list {
		if t.parts.list[p].runs > 0 {
			t.builder(uint32(p)).Clear(indexer.AllTiers)
		}
	}
	t.blocks.reset()
	t.runs.each(func(run uint32) {
		t.spaces.release(t.runs.list[run].ns)
		t.runs.retire(&t.parts, run)
	})
	t.pool.clear(indexer.AllTiers)
	t.copies.clear(indexer.AllTiers)
	return n
}

func (t *Translator) clearTier(tier indexer.Tier) int {
	n := int(t.stats.Held[tier])
	t.stats.Held[tier] = 0
	for p := range t.parts.list {
		if t.parts.list[p].runs > 0 {
			t.builder(uint32(p)).Clear(tier)
		}
	}
	t.blocks.each(func(id uint32) {
		if t.blocks.tiers(id).Has(tier) {
			run := t.blocks.run(id)
			if t.blocks.dropTier(id, tier) {
				t.release(run, 1)
			}
		}
	})
	t.pool.clear(tier)
	t.copies.clear(tier)
	return n
}

// Shed drops about n blocks for the memory bound.
func (t *Translator) Shed(n int) Outcome {
	t.mustBeOpen()
	var out Outcome
	t.shed(n, &out)
	return t.count(out)
}

// shed drops up to n blocks in all tiers. Policy: a clock hand goes over the runs
// in the order of their records; a run that was extended, re-announced or built
// upon since the hand last passed is spared once; any other loses blocks from its
// end on, so that what remains is still a prefix.
func (t *Translator) shed(n int, out *Outcome) {
	for n > 0 && t.blocks.len() > 0 {
		if int(t.clock) >= len(t.runs.list) {
			t.clock = 0
		}
		rec := &t.runs.list[t.clock]
		if rec.blocks == 0 || rec.touched {
			rec.touched = false
			t.clock++
			continue
		}
		got := t.shedRun(t.clock, n)
		out.Shed += got
		n -= got
	}
	t.flushDrop()
}

// shedRun drops up to n of a run's blocks, last first, and returns how many.
func (t *Translator) shedRun(run uint32, n int) int {
	ids := t.blocks.ofRun(run)
	if len(ids) > n {
		ids = ids[len(ids)-n:]
	}
	for tier := range indexer.Tier(indexer.NumTiers) {
		for i := len(ids) - 1; i >= 0; i-- {
			if id := ids[i]; t.blocks.tiers(id).Has(tier) {
				t.copies.forget(t.blocks.key(id))
				t.drop(id, tier)
			}
		}
	}
	return len(ids)
}
