package translate

import (
	"math"
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// Shed drops blocks for the memory bound.
func (t *Translator) Shed(share float64, in func(indexer.PartitionID) bool) Outcome {
	t.mustBeOpen()
	var out Outcome
	have := t.blocks.len()
	var wanted []bool // by place in the table of partitions
	if in != nil {
		for i := range t.parts.list {
			wanted = append(wanted, in(t.parts.list[i].id))
		}
		have = t.mappedIn(wanted)
	}
	if n := int(math.Ceil(share * float64(have))); n > 0 {
		t.shed(min(n, have), wanted, &out)
	}
	t.sweepLoose()
	t.count(&out)
	return out
}

// shed drops at least n blocks, in all their tiers. Policy: a clock hand goes down
// over the units. Units of one run mostly lie in ascending order, so a run loses
// blocks from its end on and what remains of it mostly is a prefix. A run that was
// extended, re-announced or built upon since the hand last came by is spared for
// one pass. Only blocks of the wanted partitions are dropped, nil = all; there must be n.
func (t *Translator) shed(n int, wanted []bool, out *Outcome) {
	m := &t.blocks
	for n > 0 && m.len() > 0 {
		if t.shedAt--; t.shedAt == 0 || t.shedAt >= uint32(len(m.free)*64) {
			t.shedAt = uint32(len(m.free)*64 - 1)
			t.shedNo = (t.shedNo + 1) &^ touchedMark
		}
		u := t.shedAt
		if m.chunks[u/chunkUnits] == nil || m.free[u>>6]>>(u&63)&1 != 0 || u == 0 {
			continue
		}
		run := uint32(m.unit(u)[0] & runMask)
		rec := t.runs.at(run)
		if wanted != nil && !wanted[rec.part] {
			continue
		}
		if rec.mark&touchedMark != 0 {
			rec.mark = t.shedNo
			continue
		}
		if rec.mark == t.shedNo {
			continue
		}
		got := t.shedUnit(u, run, rec)
		out.Shed += got
		n -= got
	}
	t.flushRanges()
	m.fit()
}

// mappedIn counts the blocks of the wanted partitions.
func (t *Translator) mappedIn(wanted []bool) (n int) {
	m := &t.blocks
	for u := uint32(1); u < uint32(len(m.free)*64); u++ {
		if m.chunks[u/chunkUnits] == nil || m.free[u>>6]>>(u&63)&1 != 0 {
			continue
		}
		if wanted[t.runs.at(uint32(m.unit(u)[0]&runMask)).part] {
			n += bits.OnesCount32(m.liveBits(u))
		}
	}
	return n
}

// shedUnit drops all blocks of a unit and returns how many.
func (t *Translator) shedUnit(u, run uint32, rec *runRecord) int {
	m := &t.blocks
	unit := m.unit(u)
	base := unitPos(unit[0])
	live := m.liveBits(u)
	for l := live; l != 0; l &= l - 1 {
		t.copies.forget(unit[1+bits.TrailingZeros32(l)])
	}
	for tier := range indexer.Tier(indexer.NumTiers) {
		set := m.tierBits(u, tier)
		t.stats.Held[tier] -= uint64(bits.OnesCount32(set))
		for d := set; d != 0; {
			from := bits.TrailingZeros32(d)
			k := bits.TrailingZeros32(^(d >> from))
			t.addRange(indexer.OpDrop, tier, run, rec, base+from, k)
			d &^= (1<<k - 1) << from
		}
		if set != 0 {
			if _, freed := m.dropTiers(u, set, tier); freed {
				t.releaseUnit(run, rec)
			}
		}
	}
	return bits.OnesCount32(live)
}
