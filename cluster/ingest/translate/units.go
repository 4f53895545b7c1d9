package translate

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// A unit is up to four consecutive positions of one run, in five words:
//
//	word 0    run (30) | position/4 (14) | held in the device tier (4) | tag of the predecessor (16)
//	word 1-4  engine hashes of the four positions
//
// The hash of a position that is no longer held stays until the unit is freed: the
// path tags of the later positions are computed from it. Block id = unit*4 +
// position%4; unit 0 is not used, so that no block has id 0.
const (
	unitWords  = 5
	chunkUnits = 64 // one word of the free bitmap; the kernels know it
	chunkIDs   = chunkUnits * 4
	chunkBytes = chunkUnits * unitWords * 8

	// spareUnits stay when an empty chunk is given back.
	spareUnits = 16

	maxRuns = 1 << 30

	baseShift = 30
	maskShift = 44
	tagShift  = 48
	runMask   = 1<<baseShift - 1
	maskBits  = 0xf << maskShift
)

// mixTag extends the 16-bit tag of a path by one engine hash. For a given hash it
// is a bijection of the predecessor's tag, so two different predecessor tags
// never meet.
func mixTag(tag uint16, h uint64) uint16 {
	return tag*0x9e35 + uint16(h*hashMul>>48)
}

type chunk [chunkUnits * unitWords]uint64

// lowerChunk has the lower tiers of a chunk's units: four bits for each of host,
// disk, external. It exists only where a lower tier was seen.
type lowerChunk [chunkUnits]uint16

func packUnit(run uint32, pos int, tag uint16) uint64 {
	return uint64(run) | uint64(pos>>2)<<baseShift | uint64(tag)<<tagShift
}

func (m *blockMap) unit(u uint32) *[unitWords]uint64 {
	c := m.chunks[u/chunkUnits]
	return (*[unitWords]uint64)(c[u%chunkUnits*unitWords:])
}

func (m *blockMap) key(id uint32) uint64 { return m.unit(id >> 2)[1+id&3] }
func (m *blockMap) run(id uint32) uint32 { return uint32(m.unit(id >> 2)[0] & runMask) }

func (m *blockMap) pos(id uint32) int { return unitPos(m.unit(id >> 2)[0]) + int(id&3) }

func unitPos(word uint64) int { return int(word>>baseShift&(1<<14-1)) << 2 }

// tag is the path tag of a block.
func (m *blockMap) tag(id uint32) uint16 {
	u := m.unit(id >> 2)
	tag := uint16(u[0] >> tagShift)
	for i := uint32(0); i <= id&3; i++ {
		tag = mixTag(tag, u[1+i])
	}
	return tag
}

func (m *blockMap) tiers(id uint32) indexer.TierMask {
	dev := m.unit(id >> 2)[0] >> maskShift >> (id & 3) & 1
	if m.lower == nil {
		return indexer.TierMask(dev)
	}
	low := m.lowerOf(id>>2) >> (id & 3)
	return indexer.TierMask(uint64(low&1)<<1 | uint64(low>>4&1)<<2 | uint64(low>>8&1)<<3 | dev)
}

// lowerOf returns the lower tiers of a unit.
func (m *blockMap) lowerOf(u uint32) uint16 {
	if m.lower == nil {
		return 0
	}
	if l := m.lower[u/chunkUnits]; l != nil {
		return l[u%chunkUnits]
	}
	return 0
}

// liveBits is the set of positions of a unit that are held in any tier.
func (m *blockMap) liveBits(u uint32) uint32 {
	low := m.lowerOf(u)
	return uint32(m.unit(u)[0]>>maskShift&0xf) | uint32(low|low>>4|low>>8)&0xf
}

// setTier marks a position of a unit as held in a tier.
func (m *blockMap) setTier(id uint32, tier indexer.Tier) {
	if tier == indexer.Device {
		m.unit(id >> 2)[0] |= 1 << (maskShift + id&3)
		return
	}
	m.lowerWord(id >> 2)[id>>2%chunkUnits] |= 1 << (4*uint16(tier-1) + uint16(id&3))
}

// lowerWord returns the lower tiers of the chunk of unit u, made if need be.
func (m *blockMap) lowerWord(u uint32) *lowerChunk {
	if m.lower == nil {
		m.lower = make([]*lowerChunk, len(m.chunks))
	}
	l := m.lower[u/chunkUnits]
	if l == nil {
		l = new(lowerChunk)
		m.lower[u/chunkUnits] = l
	}
	return l
}

// clearTier ends tier for the positions in set of a unit.
func (m *blockMap) clearTierBits(u uint32, set uint32, tier indexer.Tier) {
	if tier == indexer.Device {
		m.unit(u)[0] &^= uint64(set) << maskShift
	} else if m.lower != nil && m.lower[u/chunkUnits] != nil {
		m.lower[u/chunkUnits][u%chunkUnits] &^= uint16(set) << (4 * (tier - 1))
	}
}

// tierBits is the set of positions of a unit held in one tier.
func (m *blockMap) tierBits(u uint32, tier indexer.Tier) uint32 {
	if tier == indexer.Device {
		return uint32(m.unit(u)[0] >> maskShift & 0xf)
	}
	return uint32(m.lowerOf(u)>>(4*(tier-1))) & 0xf
}

// follows reports whether block id is the next position of prev's run.
func (m *blockMap) follows(prev, id uint32) bool {
	if prev == 0 {
		return false
	}
	if prev>>2 == id>>2 {
		return prev+1 == id
	}
	a, b := m.unit(prev >> 2)[0], m.unit(id >> 2)[0]
	return a&runMask == b&runMask && prev&3 == 3 && id&3 == 0 && unitPos(a)+4 == unitPos(b)
}

// allocUnit returns a free unit. Units are handed out in ascending order from
// where the last one was, so that a run's units lie together.
func (m *blockMap) allocUnit() uint32 {
	if m.freeUnits == 0 {
		m.addChunk()
	}
	w := m.rotor
	for m.free[w] == 0 {
		if w++; w == len(m.free) {
			w = 0
		}
	}
	m.rotor = w
	b := bits.TrailingZeros64(m.free[w])
	m.free[w] &= m.free[w] - 1
	m.freeUnits--
	return uint32(w)<<6 | uint32(b)
}

func (m *blockMap) freeUnit(u uint32) {
	m.free[u>>6] |= 1 << (u & 63)
	m.freeUnits++
	if m.lower != nil && m.lower[u/chunkUnits] != nil {
		m.lower[u/chunkUnits][u%chunkUnits] = 0
	}
	if at := u / chunkUnits; m.free[at] == ^uint64(0) {
		m.empty = append(m.empty, at)
	}
}

// trimUnits gives empty chunks back, but for some spare units. It runs between
// events, since probes of an event may name blocks that the event erased. The chunks
// that a slot needs for a moment, between storing and removing, are thus the same
// ones for all slots that share a Memory.
func (m *blockMap) trimUnits() {
	for _, at := range m.empty {
		if m.free[at] == ^uint64(0) && m.freeUnits >= chunkUnits+spareUnits {
			m.dropChunk(int(at))
		}
	}
	m.empty = m.empty[:0]
}

// addChunk makes room for chunkUnits more units: in place of a chunk that was
// given back, or at the end.
func (m *blockMap) addChunk() {
	at := len(m.chunks)
	if m.holes > 0 {
		for at = m.lowestHole; m.chunks[at] != nil; at++ {
		}
		m.holes--
		m.lowestHole = at + 1
	} else {
		if at == cap(m.chunks) {
			// By an eighth: append would double, and thousands of slots do the same.
			room := at + at/8 + 4
			m.chunks = append(make([]*chunk, 0, room), m.chunks...)
			m.free = append(make([]uint64, 0, room), m.free...)
		}
		m.chunks = append(m.chunks, nil)
		m.free = append(m.free, 0)
		if m.lower != nil {
			m.lower = append(m.lower, nil)
		}
	}
	m.chunks[at] = m.mem.chunk()
	m.free[at] = ^uint64(0)
	m.freeUnits += chunkUnits
	if at == 0 {
		m.free[0] &^= 1
		m.freeUnits--
	}
	m.rotor = at
}

// dropChunk gives an empty chunk back.
func (m *blockMap) dropChunk(at int) {
	m.mem.freeChunk(m.chunks[at])
	m.chunks[at] = nil
	m.free[at] = 0
	m.freeUnits -= chunkUnits
	m.holes++
	m.lowestHole = min(m.lowestHole, at)
	if m.lower != nil {
		m.lower[at] = nil
	}
}

// eachUnit visits every unit in use; visit may free it.
func (m *blockMap) eachUnit(visit func(u uint32)) {
	for w := range m.free {
		if m.chunks[w] == nil {
			continue
		}
		used := ^m.free[w]
		if w == 0 {
			used &^= 1
		}
		for ; used != 0; used &= used - 1 {
			visit(uint32(w)<<6 | uint32(bits.TrailingZeros64(used)))
		}
	}
}
