package translate

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// The hash table that finds blocks: buckets of one cache line each,
//
//	word 0-14  tag of the hash (32 - idBits) | block id (idBits); 0 = free
//	word 15    entries that went past this bucket on the way from their home (8) |
//	           filter of their tags (24)
//
// A hash's home is the high word of hash*buckets, so there may be any number of
// buckets; its tag is the bits that follow. An entry that finds its bucket full
// goes to the next one. A search ends at a bucket that nothing went past, so there
// are no tombstones, and removal frees the slot at once. The filter ends most
// searches for absent hashes where something did go past; it is cleared when the
// count falls to 0. A count of 255 is not counted down any more.
const (
	bucketSlots = 15
	bucketWords = 16

	// maxIDBits leaves two bits of tag. maxHeld bounds the blocks of one slot so
	// that ids fit even if every unit holds one block.
	maxIDBits = 30
	maxHeld   = 1 << 27

	hashMul = 0x9e3779b97f4a7c15

	pastMask  = 0xff
	pastShift = 8
)

// pastBit is the filter bit of a tag.
func pastBit(tag uint32) uint32 { return 1 << (pastShift + tag>>16*24>>16) }

// blockMap maps engine hashes to blocks. All of it is free of pointers that the
// collector would have to follow, except one per chunk of 256 block ids.
type blockMap struct {
	table   []uint32 // buckets * bucketWords
	buckets uint64
	count   int // entries
	tagMask uint32

	chunks     []*chunk
	lower      []*lowerChunk // nil until a lower tier is seen
	free       []uint64      // bit u: unit u is free
	rotor      int           // word of free where the last unit came from
	freeUnits  int
	holes      int // chunks given back, none below lowestHole
	lowestHole int
	empty      []uint32 // chunks that may be empty

	removed int  // entries removed since fit last looked
	churned bool // more was removed once than half of what was held then
	mem     allocator
	scratch *Scratch
}

func (m *blockMap) init(mem *Memory, scratch *Scratch) {
	*m = blockMap{mem: allocator{mem}, scratch: scratch}
}

func (m *blockMap) len() int { return m.count }

func (m *blockMap) bytes() uint64 {
	n := uint64(len(m.table))*4 + uint64(len(m.chunks)-m.holes)*chunkBytes + uint64(cap(m.free)+cap(m.chunks)+cap(m.lower))*8
	for _, l := range m.lower {
		if l != nil {
			n += chunkUnits * 2
		}
	}
	return n
}

// reset forgets all blocks and gives the memory back.
func (m *blockMap) reset() {
	for _, c := range m.chunks {
		if c != nil {
			m.mem.freeChunk(c)
		}
	}
	m.mem.freeWords(m.table)
	*m = blockMap{mem: m.mem, scratch: m.scratch}
}

func (m *blockMap) hash(k uint64) (home uint64, tag uint32) {
	hi, lo := bits.Mul64((k^k>>32)*hashMul, m.buckets)
	return hi, uint32(lo>>32) & m.tagMask
}

func (m *blockMap) bucket(b uint64) *[bucketWords]uint32 {
	return (*[bucketWords]uint32)(m.table[b*bucketWords:])
}

// find returns the block of a hash, 0 = not mapped.
func (m *blockMap) find(k uint64) uint32 {
	if m.count == 0 {
		return 0
	}
	home, tag := m.hash(k)
	id, _, _ := m.search(k, home, tag)
	return id
}

// search finds a hash and the bucket and slot of its entry.
func (m *blockMap) search(k, home uint64, tag uint32) (id uint32, b uint64, slot int) {
	for b = home; ; {
		found := m.scan(b, tag)
		for f := found & probeMatch; f != 0; f &= f - 1 {
			slot = bits.TrailingZeros32(f)
			if id = m.bucket(b)[slot] &^ m.tagMask; m.key(id) == k {
				return id, b, slot
			}
		}
		if found&probeEnds != 0 || m.bucket(b)[bucketSlots]&pastBit(tag) == 0 {
			return 0, 0, 0
		}
		if b++; b == m.buckets {
			b = 0
		}
	}
}

// resolve turns the probe of a hash into its block, 0 = not mapped.
func (m *blockMap) resolve(k uint64, p *probe) uint32 {
	home := uint64(p.home)
	if p.found&probeMatch == 0 {
		if p.found&probeEnds != 0 {
			return 0
		}
		if home++; home == m.buckets {
			home = 0
		}
	} else if m.key(p.id) == k {
		return p.id // its chunk is there: trimUnits runs between events only
	}
	id, _, _ := m.search(k, home, p.tag)
	return id
}

// addSearched enters a hash that was not mapped when it was probed, and that found
// its slot taken. It returns false if the hash has been entered since. Another hash
// of the event took the slot, or this hash itself did: two equal hashes are given
// the same slot by equal probes, so the second one always comes here.
func (m *blockMap) addSearched(k uint64, id uint32, p *probe) bool {
	b := uint64(p.home)
	if p.found&(probeMatch<<probeFreeShift) == 0 && p.found&probeMatch == 0 {
		// It was full of others before the event, so it still is.
		if b++; b == m.buckets {
			b = 0
		}
	}
	for {
		found := m.scan(b, p.tag)
		for f := found & probeMatch; f != 0; f &= f - 1 {
			if m.key(m.bucket(b)[bits.TrailingZeros32(f)]&^m.tagMask) == k {
				return false
			}
		}
		if found&probeEnds != 0 || m.bucket(b)[bucketSlots]&pastBit(p.tag) == 0 {
			m.place(uint64(p.home), p.tag|id)
			return true
		}
		if b++; b == m.buckets {
			b = 0
		}
	}
}

// slot returns where in the table a hash goes by its probe, or a position that is
// no slot if its home is full. Which of the free slots depends on the tag, so that
// hashes of one event that share a home rarely want the same.
func (p *probe) slot() uint32 {
	free := p.found >> probeFreeShift & probeMatch
	from := p.tag >> 28
	slot := from + uint32(bits.TrailingZeros32((free|free<<bucketSlots)>>from))
	if slot >= bucketSlots {
		slot -= bucketSlots
	}
	return p.home*bucketWords + min(slot, bucketSlots)
}

// place puts an entry into the first bucket from its home on that has room.
func (m *blockMap) place(home uint64, entry uint32) {
	for b := home; ; {
		bu := m.bucket(b)
		if free := m.scan(b, 0) >> probeFreeShift & probeMatch; free != 0 {
			bu[bits.TrailingZeros32(free)] = entry
			m.count++
			return
		}
		if bu[bucketSlots]&pastMask < pastMask {
			bu[bucketSlots]++
		}
		bu[bucketSlots] |= pastBit(entry & m.tagMask)
		if b++; b == m.buckets {
			b = 0
		}
	}
}

// erase removes the entry of a mapped hash.
func (m *blockMap) erase(k uint64) {
	home, tag := m.hash(k)
	_, b, slot := m.search(k, home, tag)
	m.eraseAt(home, b, slot)
}

func (m *blockMap) eraseAt(home, b uint64, slot int) {
	m.bucket(b)[slot] = 0
	for home != b {
		switch past := &m.bucket(home)[bucketSlots]; *past & pastMask {
		case 1:
			*past = 0
		case pastMask:
		default:
			*past--
		}
		if home++; home == m.buckets {
			home = 0
		}
	}
	m.count--
	m.removed++
}

// Table sizes, as loads (entries per slot): a table doubles while the slot fills;
// once it has churned it is fitted to its content and may be overfull for a moment,
// since engines announce what they store before what they evicted for it.
const (
	maxLoad   = 0.75
	growLoad  = 0.375
	fitLoad   = 0.75
	peakLoad  = 0.90 // of a churned table
	looseLoad = 0.62 // a churned table below this is fitted
	minTable  = 4    // buckets
)

// reserve makes room for n more entries.
func (m *blockMap) reserve(n int) {
	limit, load := maxLoad, growLoad
	if m.churned {
		limit, load = peakLoad, fitLoad
	}
	need := m.count + n
	for float64(need) > limit*float64(m.buckets*bucketSlots) {
		idBits := bits.TrailingZeros32(m.tagMask)
		if m.churned || m.count < need/2 || idBits+1 > maxIDBits {
			m.rebuild(need, load)
			return
		}
		m.double(idBits + 1)
	}
}

// double doubles the table without a look at the keys: the top bit of a tag says
// which of the two new buckets is home, and ids get the bit that the tag gives up,
// which suits since there will be twice as many. Only an entry that may have gone
// past a bucket needs its key to find its home.
func (m *blockMap) double(idBits int) {
	old, oldMask := m.table, m.tagMask
	n := m.buckets
	homes := *m // hashes as before
	m.table = m.mem.words(int(2*n) * bucketWords)
	m.buckets, m.tagMask, m.count = 2*n, ^uint32(0)<<idBits, 0
	past := old[(n-1)*bucketWords+bucketSlots] & pastMask
	count := 0
	for b := range n {
		from := (*[bucketWords]uint32)(old[b*bucketWords:])
		pair := (*[2 * bucketWords]uint32)(m.table[2*b*bucketWords:])
		// Bits are random, so nothing branches on them: a free slot writes a zero that
		// the next entry overwrites.
		var next [2]uint32
		for _, e := range from[:bucketSlots] {
			id := e &^ oldMask
			moved := e&oldMask<<1 | id
			top := e >> 31
			at := top*bucketWords + next[top]&(bucketWords-1)
			if past != 0 || pair[at] != 0 {
				if e != 0 {
					home, _ := homes.hash(m.key(id))
					m.place(2*home+uint64(top), moved)
				}
				continue
			}
			pair[at] = moved
			used := (e | -e) >> 31
			next[top] += used
			count += int(used)
		}
		past = from[bucketSlots] & pastMask
	}
	m.count += count
	m.mem.freeWords(old)
}

// fit looks, after every removal of half the content, whether the table and the
// units are much too large for what is left, and shrinks them. Block ids change.
func (m *blockMap) fit() {
	if m.removed <= m.count/2 || m.buckets <= minTable {
		return
	}
	if m.count == 0 {
		m.reset()
		return
	}
	m.removed, m.churned = 0, true
	m.trimUnits()
	if float64(m.count) < looseLoad*float64(m.buckets*bucketSlots) {
		m.rebuild(m.count, fitLoad)
	}
	m.compact()
}

// rebuild makes a new table for need entries at a load.
func (m *blockMap) rebuild(need int, load float64) {
	buckets := max(uint64(float64(need)/load/bucketSlots)+1, minTable)
	// Tags get what ids leave. Ids may outgrow their bits later: see grownIDs.
	ids := max(uint64(len(m.chunks)+1)*chunkIDs, uint64(float64(need)*1.25))
	m.retable(buckets, max(bits.Len64(ids), m.scratch.minIDBits))
}

func (m *blockMap) retable(buckets uint64, idBits int) {
	if idBits > maxIDBits {
		panic("translate: block ids exhausted") // MaxBlocks <= maxHeld rules it out
	}
	old := m.table
	m.table = m.mem.words(int(buckets) * bucketWords)
	m.buckets, m.tagMask = buckets, ^uint32(0)<<idBits
	m.count = 0
	s := m.scratch
	keys, ids := s.rebuildKeys[:0], s.rebuildIDs[:0]
	flush := func() {
		probes := s.probes(len(keys))
		m.probe(keys, probes)
		for i := range keys {
			p := &probes[i]
			if e := p.slot(); m.table[e] == 0 && e%bucketWords < bucketSlots {
				m.table[e] = p.tag | ids[i]
				m.count++
			} else {
				m.place(uint64(p.home), p.tag|ids[i])
			}
		}
		keys, ids = keys[:0], ids[:0]
	}
	m.eachUnit(func(u uint32) {
		unit := m.unit(u)
		for live := m.liveBits(u); live != 0; live &= live - 1 {
			off := uint32(bits.TrailingZeros32(live))
			keys = append(keys, unit[1+off])
			ids = append(ids, u<<2|off)
		}
		if len(keys) >= rebuildBatch-4 {
			flush()
		}
	})
	flush()
	m.mem.freeWords(old)
}

// reserveUnits makes room for n more units, and widens the ids of the table when
// the units have outgrown them.
func (m *blockMap) reserveUnits(n int) {
	for m.freeUnits < n {
		m.addChunk()
	}
	if top := uint32(len(m.chunks)*chunkIDs - 1); top&m.tagMask != 0 {
		m.retable(m.buckets, bits.Len32(top)+1)
	}
}

// compact moves units out of sparse chunks until the free units are few, and gives
// the empty chunks back.
func (m *blockMap) compact() {
	used := (len(m.chunks)-m.holes)*chunkUnits - 1 - m.freeUnits
	if m.freeUnits < used/4+2*chunkUnits {
		return
	}
	keep := used*9/8 + chunkUnits // units that stay allocated
	for at := len(m.chunks) - 1; at > 0 && (len(m.chunks)-m.holes)*chunkUnits > keep+chunkUnits; at-- {
		if m.chunks[at] == nil {
			continue
		}
		// Take the chunk's free units away, so that none is handed out again.
		used := ^m.free[at]
		m.freeUnits -= bits.OnesCount64(m.free[at])
		m.free[at] = 0
		for ; used != 0; used &= used - 1 {
			m.moveUnit(uint32(at)<<6 | uint32(bits.TrailingZeros64(used)))
		}
		m.freeUnits += chunkUnits
		m.dropChunk(at)
	}
	for n := len(m.chunks); n > 1 && m.chunks[n-1] == nil; n = len(m.chunks) {
		m.chunks, m.free = m.chunks[:n-1], m.free[:n-1]
		if m.lower != nil {
			m.lower = m.lower[:n-1]
		}
		m.holes--
	}
	m.lowestHole, m.rotor = 0, 0
}

// moveUnit gives the blocks of a unit new ids.
func (m *blockMap) moveUnit(from uint32) {
	to := m.allocUnit()
	src, dst := m.unit(from), m.unit(to)
	*dst = *src
	if low := m.lowerOf(from); low != 0 {
		m.lowerWord(to)[to%chunkUnits] = low
	}
	for live := m.liveBits(from); live != 0; live &= live - 1 {
		off := uint32(bits.TrailingZeros32(live))
		k := src[1+off]
		home, tag := m.hash(k)
		_, b, slot := m.search(k, home, tag)
		m.bucket(b)[slot] = tag | to<<2 | off
	}
}

// dropTiers ends one tier for the positions in set of a unit, erases those that no
// tier holds any more, and reports whether the unit was freed. It serves clears
// and shedding; removal events have a faster way.
func (m *blockMap) dropTiers(u uint32, set uint32, tier indexer.Tier) (gone int, freed bool) {
	before := m.liveBits(u)
	m.clearTierBits(u, set, tier)
	dead := before &^ m.liveBits(u)
	unit := m.unit(u)
	for d := dead; d != 0; d &= d - 1 {
		m.erase(unit[1+bits.TrailingZeros32(d)])
	}
	if before == dead {
		m.freeUnit(u)
		freed = true
	}
	return bits.OnesCount32(dead), freed
}
