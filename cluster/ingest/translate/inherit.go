package translate

import (
	"errors"
	"fmt"
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// Inherited is what an owner has of the slot in one partition.
type Inherited struct {
	Partition indexer.PartitionID
	// Cursor: every batch up to it is in Stretches, and nothing of a later one.
	Cursor    uint64
	Stretches []indexer.Stretch // as indexer.Index.Dump gives them
}

// Heir is kept by translators that can go on where another one stopped.
type Heir interface {
	Interface
	// Inherit makes an empty translator the heir of the one whose frames led to parts.
	// Every partition that exists must be among them; one that is not counts as having
	// the highest cursor. Batches are then given again from the lowest cursor on; of
	// those up to the cursor of a partition nothing is said to it a second time (rule
	// T4). Loose blocks are those of all whose path tag is not known. After an error the
	// translator can only be closed.
	Inherit(parts []Inherited) (blocks, loose int, err error)
	// Inheriting says whether batches up to the latest cursor are still to come.
	Inheriting() bool
	// Disinherit ends that: what comes now counts for every partition.
	Disinherit()
	// Orphaned returns the batch that brought the oldest block whose parent is not known.
	// An heir that is given the batches from there on again knows those blocks too.
	Orphaned() (batch uint64, ok bool)
	// Sound is false once hashes contradicted each other: which, is not in a dump, and
	// without that knowledge blocks would be credited that are not (rule N2).
	Sound() bool
}

var _ Heir = (*Translator)(nil)

// Orphaned implements Heir.
func (t *Translator) Orphaned() (batch uint64, ok bool) { return t.pool.oldest() }

// ErrInherit is wrapped by errors of Inherit.
var ErrInherit = errors.New("cannot be inherited")

// heir is what a translator keeps until it has caught up with every partition.
type heir struct {
	cursors map[indexer.PartitionID]uint64
	last    uint64 // the highest
}

func (h *heir) cursor(p indexer.PartitionID) uint64 {
	if c, ok := h.cursors[p]; ok {
		return c
	}
	return h.last
}

// Inheriting says whether batches up to the latest cursor are still to come.
func (t *Translator) Inheriting() bool { return t.heir != nil }

// Sound reports that no hash is tainted.
func (t *Translator) Sound() bool { return len(t.taint) == 0 && !t.refused }

// Disinherit ends the inheritance.
func (t *Translator) Disinherit() { t.heir = nil }

// Inherit rebuilds the map from dumps. A run carries the path tag of the block above it
// and its namespace (indexer.Mark), so each is rebuilt by itself. Tags of further blocks
// are computed from the hashes before them, and those of dead names are not in a dump:
// what comes after the first dead name of a run is loose, and runs without a mark are.
func (t *Translator) Inherit(parts []Inherited) (blocks, loose int, err error) {
	if t.open || t.blocks.len() > 0 || t.heir != nil {
		return 0, 0, fmt.Errorf("%w: the translator is in use", ErrInherit)
	}
	if len(parts) > maxParts {
		return 0, 0, fmt.Errorf("%w: %d partitions", ErrInherit, len(parts))
	}
	h := &heir{cursors: make(map[indexer.PartitionID]uint64, len(parts))}
	for i := range parts {
		p := &parts[i]
		if _, again := h.cursors[p.Partition]; again {
			return 0, 0, fmt.Errorf("%w: partition %d comes twice", ErrInherit, p.Partition)
		}
		h.cursors[p.Partition] = p.Cursor
		h.last = max(h.last, p.Cursor)
		if err := t.inheritPart(p); err != nil {
			return 0, 0, fmt.Errorf("partition %d: %w", p.Partition, err)
		}
	}
	t.heir = h
	t.stats.Inherited = uint64(t.blocks.len())
	return t.blocks.len(), len(t.loose), nil
}

// gapRuns bounds the run numbers between live ones that are made usable again, beyond
// four for each live run.
const gapRuns = 1 << 16

func (t *Translator) inheritPart(p *Inherited) error {
	stretches := p.Stretches
	if len(stretches) == 0 {
		return nil
	}
	part := t.parts.index(p.Partition)
	top := indexer.Run(0)
	used := map[indexer.Run]bool{}
	for len(stretches) > 0 {
		n := 1
		for n < len(stretches) && stretches[n].Run == stretches[0].Run {
			n++
		}
		number := stretches[0].Run
		if used[number] {
			return fmt.Errorf("%w: run %d in two pieces", ErrInherit, number)
		}
		used[number] = true
		top = max(top, number)
		if err := t.inheritRun(part, stretches[:n]); err != nil {
			return fmt.Errorf("%w: run %d: %w", ErrInherit, number, err)
		}
		stretches = stretches[n:]
	}
	rec := &t.parts.list[part]
	rec.wires = uint32(top) + 1
	if int(top) > 4*len(used)+gapRuns {
		return nil
	}
	for number := indexer.Run(0); number < top; number++ {
		if !used[number] { // no owner has it any more (rule N4)
			t.runs.recycle(&t.parts, t.runs.make(runRecord{wire: uint32(number), part: uint16(part)}))
		}
	}
	return nil
}

// inheritRun maps the names of one run.
func (t *Translator) inheritRun(part uint32, of []indexer.Stretch) error {
	mark := of[0].Mark
	first := of[0].Path
	if len(first) == 0 {
		first = of[0].Locals
	}
	if len(first) == 0 || t.cfg.Partition(first[0]) != t.parts.list[part].id {
		return errors.New("lies in another partition")
	}
	ns := t.spaces.hold(t.spaces.internKey(spaceKey{mark.Note[0], mark.Note[1]}))
	b := inheritance{
		run: t.runs.make(runRecord{wire: uint32(of[0].Run), part: uint16(part), ns: ns, extent: indexer.MaxRunLength}),
		tag: mark.Tag, known: mark.Set,
	}
	b.rec = t.runs.at(b.run)
	t.parts.list[part].runs++
	t.runs.live++
	end := 0 // of the names so far
	for i := range of {
		st := &of[i]
		n := len(st.Engines)
		switch {
		case n == 0 || n != len(st.Locals) || int(st.Start) < end || int(st.Start)+n > indexer.MaxRunLength ||
			st.Tiers == 0 || st.Tiers >= 1<<indexer.NumTiers || st.Mark != mark:
			return fmt.Errorf("stretch of %d names at %d", n, st.Start)
		case t.blocks.len()+n > maxHeld:
			return errors.New("too many blocks")
		}
		b.known = b.known && int(st.Start) == end
		end = int(st.Start) + n
		if !t.inheritNames(&b, st) {
			return errors.New("an engine hash has two names")
		}
	}
	return nil
}

// inheritance is the run that is being rebuilt. Its length is set so that nothing
// extends it: how many dead names lie behind its last one is not known.
type inheritance struct {
	run   uint32
	rec   *runRecord
	unit  uint32
	base  int    // position of the unit's first block, plus 1; 0 = there is none
	tag   uint16 // of the path above the next block, if known
	known bool
}

// inheritNames maps the names of a stretch.
func (t *Translator) inheritNames(b *inheritance, st *indexer.Stretch) bool {
	m := &t.blocks
	pos := int(st.Start)
	for left := st.Engines; len(left) > 0; {
		hashes := left[:min(len(left), removeBatch)]
		left = left[len(hashes):]
		m.reserve(len(hashes))
		m.reserveUnits(len(hashes)/4 + 2)
		probes := t.scratch.probes(len(hashes))
		m.probe(hashes, probes)
		for i, h := range hashes {
			off := uint32(pos & 3)
			if base := pos&^3 + 1; b.base != base {
				b.unit, b.base = m.allocUnit(), base
				*m.unit(b.unit) = [unitWords]uint64{packUnit(b.run, pos, b.tag)}
				b.rec.extent += oneUnit
			}
			id := b.unit<<2 | off
			p := &probes[i]
			if (p.found&probeMatch != 0 || p.found&probeEnds == 0) && m.resolve(h, p) != 0 {
				return false
			}
			m.unit(b.unit)[1+off] = h
			if e := p.slot(); m.table[e] == 0 && e%bucketWords < bucketSlots {
				m.table[e] = p.tag | id
				m.count++
			} else if !m.addSearched(h, id, p) {
				return false
			}
			for tiers := st.Tiers; tiers != 0; tiers &= tiers - 1 {
				tier := lowest(tiers)
				m.setTier(id, tier)
				t.stats.Held[tier]++
			}
			b.tag = mixTag(b.tag, h)
			if !b.known {
				t.markLoose(h)
			}
			pos++
		}
	}
	return true
}

// settled says whether a partition has the batch at hand already.
func (t *Translator) settled(p indexer.PartitionID) bool {
	return t.heir != nil && t.heir.cursor(p) >= t.seq
}

func (t *Translator) settledBlock(id uint32) bool {
	return t.settled(t.parts.list[t.runs.at(t.blocks.run(id)).part].id)
}

// settledStore says whether a store is of a partition that has it already.
func (t *Translator) settledStore(s *Store, at place, ids []uint32) bool {
	switch at.kind {
	case atRoot:
		return t.settled(t.cfg.Partition(firstLocal(s.Content, 0, t.spaces.seed(at.ns))))
	case atBlock:
		return t.settledBlock(at.id)
	}
	for _, id := range ids {
		if id != 0 {
			return t.settledBlock(id)
		}
	}
	return false
}

// settle carries out a store that its partition has already: nothing of it is said again.
// A block that the dump does not name was dropped since, or it waited for its parent and
// still does: it goes to the pool. If it was dropped, that drop is still to come and takes
// it out again. It attaches when its parent is named, which only a batch does that the
// partition does not have yet. What hangs off the root has not waited.
func (t *Translator) settle(s *Store, at place, ids []uint32, out *Outcome) {
	out.Settled = len(ids)
	if at.kind == atRoot || at.kind == atTainted {
		return
	}
	parent := s.Parent
	for i := 0; i < len(ids); {
		j := i
		for j < len(ids) && ids[j] == 0 {
			j++
		}
		if j > i {
			t.poolStretch(s, parent, i, j, out)
		} else {
			j++
		}
		parent, i = s.Engines[j-1], j
	}
	out.Settled -= out.Orphaned
}

// unsettled leaves out the removed hashes whose partition has the removal already.
func (t *Translator) unsettled(engines []uint64) []uint64 {
	if t.blocks.len() == 0 {
		return engines
	}
	left := t.scratch.engines[:0]
	for _, h := range engines {
		if id := t.blocks.find(h); id == 0 || !t.settledBlock(id) {
			left = append(left, h)
		}
	}
	t.scratch.engines = left
	return left
}

// clearUnsettled clears the partitions that do not have the clear yet, and the pool. It
// returns the number of claims.
func (t *Translator) clearUnsettled(tier indexer.Tier) (n int) {
	for p := range t.parts.list {
		if rec := &t.parts.list[p]; rec.runs > 0 && !t.settled(rec.id) {
			t.builder(uint32(p)).Clear(tier)
		}
	}
	m := &t.blocks
	m.eachUnit(func(u uint32) {
		run := uint32(m.unit(u)[0] & runMask)
		rec := t.runs.at(run)
		if t.settled(t.parts.list[rec.part].id) {
			return
		}
		for tiers := tier.Mask(); tiers != 0; tiers &= tiers - 1 {
			one := lowest(tiers)
			set := m.tierBits(u, one)
			if set == 0 {
				continue
			}
			n += bits.OnesCount32(set)
			t.stats.Held[one] -= uint64(bits.OnesCount32(set))
			if _, freed := m.dropTiers(u, set, one); freed {
				t.releaseUnit(run, rec)
				return
			}
		}
	})
	t.pool.clear(tier)
	t.copies.clear(tier)
	m.fit()
	return n
}
