package translate

import "math/bits"

// probe is what one look at a hash's home bucket found.
type probe struct {
	home  uint32 // bucket
	tag   uint32 // in place for an entry
	found uint32 // see below
	id    uint32 // of the first entry with this tag, if any: a candidate, its key is not compared
}

// probe.found: bits 0-14 say which slots have the tag, bits 16-30 which are free,
// bit 31 that this hash did not go past this bucket.
const (
	probeMatch     = 1<<bucketSlots - 1
	probeFreeShift = 16
	probeEnds      = 1 << 31
)

// probe looks at the home bucket of every key; the cache misses of a batch
// overlap. It returns the number of keys that may be mapped. len(out) >= len(keys).
// The table must not be empty.
func (m *blockMap) probe(keys []uint64, out []probe) (open int) {
	if len(keys) == 0 {
		return 0
	}
	return m.probeBatch(keys, out[:len(keys)])
}

// probeGo is the portable kernel, and the judge of the assembly ones.
func (m *blockMap) probeGo(keys []uint64, out []probe) (open int) {
	for i, k := range keys {
		home, tag := m.hash(k)
		p := &out[i]
		p.home, p.tag = uint32(home), tag
		found := m.scanGo(home, tag)
		p.id = 0
		if f := found & probeMatch; f != 0 {
			p.id = m.bucket(home)[bits.TrailingZeros32(f)] &^ m.tagMask
			open++
		} else if found&probeEnds == 0 {
			if m.bucket(home)[bucketSlots]&pastBit(tag) == 0 {
				found |= probeEnds
			} else {
				open++
			}
		}
		p.found = found
	}
	return open
}

// scanGo compares one bucket. Of its bit 31 the filter knows nothing.
func (m *blockMap) scanGo(b uint64, tag uint32) uint32 {
	bu := m.bucket(b)
	var found uint32
	for slot := range bucketSlots {
		e := bu[slot]
		if e == 0 {
			found |= 1 << (probeFreeShift + slot)
		} else if (e^tag)&m.tagMask == 0 {
			found |= 1 << slot
		}
	}
	if bu[bucketSlots] == 0 {
		found |= probeEnds
	}
	return found
}
