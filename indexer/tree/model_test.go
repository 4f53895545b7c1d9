package tree

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// model is what a lane must answer: every name by itself, in plain maps.
type model struct {
	copies map[modelCopy]map[uint32][]modelName // by run, then position
}

type modelCopy struct{ partition, slot uint32 }

type modelName struct {
	path   string // local hashes from the root on, anchor first
	tiers  indexer.TierMask
	engine uint64
}

func newModel() *model { return &model{map[modelCopy]map[uint32][]modelName{}} }

func pathOf(anchor uint64, locals ...uint64) string {
	b := binary.LittleEndian.AppendUint64(nil, anchor)
	for _, l := range locals {
		b = binary.LittleEndian.AppendUint64(b, l)
	}
	return string(b)
}

// scores answers a query; byPath is what index returned.
func scores(byPath map[string]map[uint32]indexer.TierMask, anchor uint64, locals []uint64) (rows []indexer.Row, tiers []indexer.TierRow) {
	type state struct {
		pos int
		d   [indexer.NumTiers]uint32
	}
	slots := map[uint32]*state{}
	if len(locals) == 0 {
		return nil, nil
	}
	for s := range byPath[pathOf(anchor, locals[:1]...)] {
		slots[s] = &state{}
	}
	for s, st := range slots {
		for t := range indexer.Tier(indexer.NumTiers) {
			for st.pos < len(locals) && byPath[pathOf(anchor, locals[:st.pos+1]...)][s].Has(t) {
				st.pos++
			}
			st.d[t] = uint32(st.pos)
		}
		if st.d[0] > 0 {
			rows = append(rows, indexer.Row{Slot: indexer.Slot(s), Depth: st.d[0]})
		}
		if st.d[3] > st.d[0] {
			tiers = append(tiers, indexer.TierRow{Slot: indexer.Slot(s), Depth: st.d})
		}
	}
	sortScores(rows, tiers)
	return rows, tiers
}

func sortScores(rows []indexer.Row, tiers []indexer.TierRow) {
	slices.SortFunc(rows, func(a, b indexer.Row) int { return cmp.Compare(a.Slot, b.Slot) })
	slices.SortFunc(tiers, func(a, b indexer.TierRow) int { return cmp.Compare(a.Slot, b.Slot) })
}

// index turns names into what is held on each path.
func (m *model) index(partition uint32) map[string]map[uint32]indexer.TierMask {
	out := map[string]map[uint32]indexer.TierMask{}
	for k, runs := range m.copies {
		if k.partition != partition {
			continue
		}
		for _, names := range runs {
			for _, n := range names {
				if n.tiers == 0 {
					continue
				}
				if out[n.path] == nil {
					out[n.path] = map[uint32]indexer.TierMask{}
				}
				out[n.path][k.slot] |= n.tiers
			}
		}
	}
	return out
}

// totals counts what Stats counts.
func (m *model) totals() (held [indexer.NumTiers]uint64, distinct, copies uint64) {
	for p := range uint32(2) {
		for _, slots := range m.index(p) {
			distinct++
			for _, mask := range slots {
				for t := range indexer.Tier(indexer.NumTiers) {
					if mask.Has(t) {
						held[t]++
					}
				}
			}
		}
	}
	for _, runs := range m.copies {
		if len(runs) > 0 {
			copies++
		}
	}
	return held, distinct, copies
}

// settle forgets a run without live names.
func (m *model) settle(k modelCopy, run uint32) {
	for _, n := range m.copies[k][run] {
		if n.tiers != 0 {
			return
		}
	}
	delete(m.copies[k], run)
}
