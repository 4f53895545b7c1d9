package translate

import (
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// openRun returns the run that takes the blocks after at, and its length: the
// predecessor's run when that ends there and has room (rule N3), or a new one.
func (t *Translator) openRun(at place, c blockhash.Content, first int, seed uint64, room int) (run uint32, start int, parent indexer.Parent) {
	if at.kind == atRoot {
		part := t.parts.index(t.cfg.Partition(firstLocal(c, first, seed)))
		return t.runs.open(&t.parts, part, t.spaces.hold(at.ns)), 0, parent
	}
	word := t.blocks.unit(at.id >> 2)[0]
	prev, pos := uint32(word&runMask), unitPos(word)+int(at.id&3)
	rec := t.runs.at(prev)
	rec.touch()
	if n := rec.length(); pos == n-1 && n+room <= indexer.MaxRunLength {
		return prev, n, parent
	}
	parent = indexer.Parent{Kind: indexer.ParentName, Run: rec.name(), Pos: uint32(pos)}
	return t.runs.open(&t.parts, uint32(rec.part), t.spaces.hold(at.ns)), 0, parent
}

// mapRun enters hashes as positions start.. of a run and returns the last block.
// If a hash occurs twice it undoes everything, the opening of the run included.
func (t *Translator) mapRun(at place, run uint32, rec *runRecord, start int, tier indexer.Tier, engines []uint64, probes []probe) (last uint32, ok bool) {
	m := &t.blocks
	tag := t.tagAt(at)
	keep := t.pool.len() > 0
	probes = probes[:len(engines)]
	table := m.table
	for i := 0; i < len(engines); {
		pos := start + i
		off := uint32(pos & 3)
		u := at.id >> 2
		if off == 0 {
			u = m.allocUnit()
			m.unit(u)[0] = packUnit(run, pos, tag)
			rec.extent += oneUnit
		}
		unit := m.unit(u)
		n := min(4-int(off), len(engines)-i)
		for j := range n {
			h := engines[i+j]
			slot := off + uint32(j)
			unit[1+slot] = h
			tag = mixTag(tag, h)
			p := &probes[i+j]
			if e := p.slot(); table[e] == 0 && e%bucketWords < bucketSlots {
				table[e] = p.tag | u<<2 | slot
				m.count++
			} else if !m.addSearched(h, u<<2|slot, p) {
				t.unmapRun(rec, run, start, u, engines[:i+j])
				return 0, false
			}
			if keep {
				t.scratch.fresh = append(t.scratch.fresh, u<<2|slot)
			}
		}
		set := uint32(1<<n-1) << off
		if tier == indexer.Device {
			unit[0] |= uint64(set) << maskShift
		} else {
			m.lowerWord(u)[u%chunkUnits] |= uint16(set) << (4 * (tier - 1))
		}
		last = u<<2 | (off + uint32(n) - 1)
		i += n
	}
	rec.extent += uint32(len(engines)) + uint32(start) - rec.extent&lengthMask
	t.stats.Held[tier] += uint64(len(engines))
	return last, true
}

// unmapRun undoes a mapRun that entered the hashes in done and was in unit u.
func (t *Translator) unmapRun(rec *runRecord, run uint32, start int, u uint32, done []uint64) {
	m := &t.blocks
	free := func(u uint32) {
		m.freeUnit(u)
		rec.extent -= oneUnit
	}
	if (start+len(done))&3 == 0 {
		free(u) // was just begun
	}
	for i := len(done) - 1; i >= 0; i-- {
		home, tag := m.hash(done[i])
		id, b, slot := m.search(done[i], home, tag)
		m.eraseAt(home, b, slot)
		if pos := start + i; pos&3 == 0 {
			free(id >> 2)
		} else if i == 0 {
			// The unit that the run's tip was in before: its further positions go.
			m.unit(id >> 2)[0] &^= uint64(0xf<<(pos&3)&0xf) << maskShift
			if m.lower != nil {
				keep := uint16(1<<(pos&3)-1) * 0x111
				m.lowerWord(id >> 2)[id>>2%chunkUnits] &= keep
			}
		}
	}
	if rec.extent == 0 {
		t.spaces.release(rec.ns)
		t.runs.cancel(&t.parts, run)
	}
}
