package translate

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

const rebuildBatch = 128

// Scratch is working memory that translators of one goroutine share: it stays in
// the cache while they take turns. Batches of translators that share one must not
// overlap: no Begin before the End of another.
type Scratch struct {
	keys        []uint64
	out         []probe
	ids         []uint32
	fresh       []uint32
	engines     []uint64
	locals      []uint64
	masks       []indexer.TierMask
	builders    []*indexer.FrameBuilder
	rebuildKeys [rebuildBatch]uint64
	rebuildIDs  [rebuildBatch]uint32
	kernel      kernel
	minIDBits   int // tests: leaves few bits of tag, so that false candidates are common
	seen        []uint32
}

// NewScratch returns scratch memory for the translators of one goroutine.
func NewScratch() *Scratch { return &Scratch{kernel: bestKernel()} }

// probes returns room for n probes, whose content is undefined.
func (s *Scratch) probes(n int) []probe {
	if cap(s.out) < n {
		s.out = make([]probe, n+n/2)
	}
	return s.out[:n]
}

// duplicate reports whether a value occurs twice in keys.
func (s *Scratch) duplicate(keys []uint64) bool {
	size := 1 << bits.Len(uint(2*len(keys)))
	if cap(s.seen) < size {
		s.seen = make([]uint32, size)
	}
	seen := s.seen[:size]
	clear(seen)
	for i, k := range keys {
		at := (k ^ k>>32) * hashMul >> 32 & uint64(size-1)
		for ; seen[at] != 0; at = (at + 1) & uint64(size-1) {
			if keys[seen[at]-1] == k {
				return true
			}
		}
		seen[at] = uint32(i + 1)
	}
	return false
}
