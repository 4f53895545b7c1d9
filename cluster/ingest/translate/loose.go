package translate

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// A loose block was inherited, and the tag of its path is not known: a block above it is
// gone. It is mapped and credited like any other, and a removal ends it. But a store that
// names it cannot be checked (rule N2), so then its name is dropped and the hash is taken
// as the store says, like one never heard of before: stored again if the store has it,
// unknown if it is the parent.

// looseBlock is a loose block that an event names.
type looseBlock struct {
	hash  uint64
	tiers indexer.TierMask
}

func (t *Translator) markLoose(h uint64) {
	if t.loose == nil {
		t.loose = map[uint64]struct{}{}
	}
	t.loose[h] = struct{}{}
}

func (t *Translator) isLoose(h uint64) bool {
	_, ok := t.loose[h]
	return ok
}

// letLooseGo drops the loose blocks of a store and returns them with the tiers that they
// had.
func (t *Translator) letLooseGo(s *Store, ids []uint32) (were []looseBlock) {
	for i, h := range s.Engines {
		if ids[i] != 0 && t.isLoose(h) {
			were = append(were, looseBlock{h, t.blocks.tiers(ids[i])})
			t.dropLoose(h, ids[i])
			ids[i] = 0
		}
	}
	return were
}

// dropLoose drops one block in all its tiers.
func (t *Translator) dropLoose(h uint64, id uint32) {
	delete(t.loose, h)
	m := &t.blocks
	run, pos, bit := m.run(id), m.pos(id), uint32(1)<<(id&3)
	rec := t.runs.at(run)
	for tiers := m.tiers(id); tiers != 0; tiers &= tiers - 1 {
		tier := indexer.Tier(bits.TrailingZeros8(uint8(tiers)))
		t.stats.Held[tier]--
		t.addRange(indexer.OpDrop, tier, run, rec, pos, 1)
		if _, freed := m.dropTiers(id>>2, bit, tier); freed {
			t.releaseUnit(run, rec)
		}
	}
}

// claimAgain gives blocks that were loose the tiers back that they had, where they are now.
func (t *Translator) claimAgain(were []looseBlock, out *Outcome) {
	for _, w := range were {
		if id := t.blocks.find(w.hash); id != 0 {
			t.claimRest(id, w.hash, w.tiers, out)
			continue
		}
		t.stats.LooseDropped++
		for tiers := w.tiers; tiers != 0; tiers &= tiers - 1 {
			t.pool.addTier(w.hash, lowest(tiers)) // if it waits there
		}
	}
	t.flushRanges()
}

// forgetLoose forgets which of some hashes were loose, if they are no longer mapped.
func (t *Translator) forgetLoose(hashes []uint64) {
	for _, h := range hashes {
		if t.isLoose(h) && t.blocks.find(h) == 0 {
			delete(t.loose, h)
		}
	}
}

// sweepLoose does that for all of them.
func (t *Translator) sweepLoose() {
	for h := range t.loose {
		if t.blocks.find(h) == 0 {
			delete(t.loose, h)
		}
	}
}
