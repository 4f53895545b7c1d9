package translate

import "github.com/kvcluster/kvcluster/indexer"

// mixTag extends the 16-bit tag of a path by one engine hash. For a given hash it
// is a bijection of the predecessor's tag, so two different predecessor tags
// never meet.
func mixTag(tag uint16, h uint64) uint16 {
	return tag*0x9e35 + uint16(h*0x9e3779b97f4a7c15>>48)
}

// blockMap maps engine hashes to blocks; a block is a small number, 0 = none.
type blockMap struct {
	index map[uint64]uint32
	list  []blockRecord
	free  []uint32
}

type blockRecord struct {
	key   uint64
	run   uint32
	pos   int
	tiers indexer.TierMask
	tag   uint16
}

func (m *blockMap) init() {
	m.index = map[uint64]uint32{}
	m.list = make([]blockRecord, 1)
}

func (m *blockMap) reset()                           { *m = blockMap{}; m.init() }
func (m *blockMap) len() int                         { return len(m.index) }
func (m *blockMap) bytes() uint64                    { return uint64(cap(m.list)) * 64 }
func (m *blockMap) find(h uint64) uint32             { return m.index[h] }
func (m *blockMap) key(id uint32) uint64             { return m.list[id].key }
func (m *blockMap) run(id uint32) uint32             { return m.list[id].run }
func (m *blockMap) pos(id uint32) int                { return m.list[id].pos }
func (m *blockMap) tag(id uint32) uint16             { return m.list[id].tag }
func (m *blockMap) tiers(id uint32) indexer.TierMask { return m.list[id].tiers }

// follows reports whether block id is the next position of prev's run.
func (m *blockMap) follows(prev, id uint32) bool {
	return prev != 0 && m.list[prev].run == m.list[id].run && m.list[prev].pos+1 == m.list[id].pos
}

func (m *blockMap) insert(h uint64, run uint32, pos int, tier indexer.Tier, tag uint16) uint32 {
	rec := blockRecord{key: h, run: run, pos: pos, tiers: tier.Mask(), tag: tag}
	id := uint32(len(m.list))
	if n := len(m.free); n > 0 {
		id = m.free[n-1]
		m.free = m.free[:n-1]
		m.list[id] = rec
	} else {
		m.list = append(m.list, rec)
	}
	m.index[h] = id
	return id
}

func (m *blockMap) addTier(id uint32, tier indexer.Tier) { m.list[id].tiers |= tier.Mask() }

// dropTier ends one tier and reports whether the block is gone.
func (m *blockMap) dropTier(id uint32, tier indexer.Tier) bool {
	b := &m.list[id]
	b.tiers &^= tier.Mask()
	if b.tiers != 0 {
		return false
	}
	delete(m.index, b.key)
	b.run = 0
	m.free = append(m.free, id)
	return true
}

// each visits every block; visit may drop it.
func (m *blockMap) each(visit func(id uint32)) {
	for id := range m.list {
		if m.list[id].tiers != 0 {
			visit(uint32(id))
		}
	}
}

// ofRun returns the blocks of a run in the order of their positions.
func (m *blockMap) ofRun(run uint32) []uint32 {
	byPos := map[int]uint32{}
	last := 0
	for id := range m.list {
		if b := &m.list[id]; b.tiers != 0 && b.run == run {
			byPos[b.pos] = uint32(id)
			last = max(last, b.pos)
		}
	}
	var ids []uint32
	for pos := 0; pos <= last; pos++ {
		if id := byPos[pos]; id != 0 {
			ids = append(ids, id)
		}
	}
	return ids
}
