package translate

import (
	"fmt"
	"github.com/kvcluster/kvcluster/indexer"
	"math/bits"
)

// audit checks the structure against itself; tests call it after every batch.
func (t *Translator) audit() error {
	m := &t.blocks
	units := map[uint32]int{} // per run
	last := map[uint32]int{}
	var held [4]uint64
	var err error
	used, blocks := 0, 0
	m.eachUnit(func(u uint32) {
		used++
		word := m.unit(u)[0]
		run := uint32(word & runMask)
		units[run]++
		live := m.liveBits(u)
		if live == 0 {
			err = fmt.Errorf("unit %d is empty", u)
		}
		for tier := range held {
			held[tier] += uint64(bits.OnesCount32(m.tierBits(u, indexer.Tier(tier))))
		}
		for off := uint32(0); off < 4; off++ {
			if live>>off&1 == 0 {
				continue
			}
			blocks++
			id := u<<2 | off
			if m.find(m.key(id)) != id {
				err = fmt.Errorf("block %d is not found by its key", id)
			}
			last[run] = max(last[run], m.pos(id))
		}
	})
	if err != nil {
		return err
	}
	for h := range t.loose {
		if m.find(h) == 0 {
			return fmt.Errorf("loose block %x is not mapped", h)
		}
	}
	if blocks != m.count {
		return fmt.Errorf("%d blocks, counted %d", blocks, m.count)
	}
	if held != t.stats.Held {
		return fmt.Errorf("held %v, counted %v", held, t.stats.Held)
	}
	if all := (len(m.chunks) - m.holes) * chunkUnits; all > 0 && all-1-m.freeUnits != used {
		return fmt.Errorf("%d units used, %d of %d free", used, m.freeUnits, all)
	}
	if err := m.auditTable(); err != nil {
		return err
	}
	live := 0
	spaces := map[uint32]int{0: 1}
	parts := map[uint16]uint32{}
	t.runs.each(func(run uint32, rec *runRecord) {
		live++
		spaces[rec.ns]++
		parts[rec.part]++
		if rec.units() != units[run] {
			err = fmt.Errorf("run %d says %d units, has %d", run, rec.units(), units[run])
		}
		if last[run] >= rec.length() {
			err = fmt.Errorf("run %d has position %d, length %d", run, last[run], rec.length())
		}
	})
	if err != nil {
		return err
	}
	if live != t.runs.live || live != len(units) {
		return fmt.Errorf("%d live runs, counted %d, units name %d", live, t.runs.live, len(units))
	}
	for i := range t.parts.list {
		if got := t.parts.list[i].runs; got != parts[uint16(i)] {
			return fmt.Errorf("partition %d has %d runs, counted %d", i, parts[uint16(i)], got)
		}
	}
	for i := range t.spaces.list {
		if t.spaces.list[i].runs != spaces[uint32(i)] {
			return fmt.Errorf("space %d has %d runs, counted %d", i, spaces[uint32(i)], t.spaces.list[i].runs)
		}
	}
	return nil
}

// auditTable checks that every entry is where a search finds it and that the
// counts of entries that went past a bucket are right.
func (m *blockMap) auditTable() error {
	past := make([]uint32, m.buckets)
	entries := 0
	for b := range m.buckets {
		for _, e := range m.bucket(b)[:bucketSlots] {
			if e == 0 {
				continue
			}
			entries++
			home, tag := m.hash(m.key(e &^ m.tagMask))
			if tag != e&m.tagMask {
				return fmt.Errorf("bucket %d: entry %#x with tag %#x", b, e, tag)
			}
			for ; home != b; home = (home + 1) % m.buckets {
				past[home]++
				if m.bucket(home)[bucketSlots]&pastBit(tag) == 0 {
					return fmt.Errorf("bucket %d: the filter denies tag %#x in bucket %d", home, tag, b)
				}
			}
		}
	}
	if entries != m.count {
		return fmt.Errorf("%d entries, counted %d", entries, m.count)
	}
	for b := range m.buckets {
		if got := m.bucket(b)[bucketSlots] & pastMask; got != past[b] && got != pastMask {
			return fmt.Errorf("bucket %d: %d went past, counted %d", b, past[b], got)
		}
	}
	return nil
}
