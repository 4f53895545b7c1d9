package differential

import "encoding/binary"

// Shape is the size of a pool of prompts.
type Shape struct {
	Systems, Documents, Turns int
	// Blocks of one system prompt, one document (the last one has four times as
	// many) and one turn.
	SystemBlocks, DocumentBlocks, TurnBlocks int
}

// SmallShape is the pool of the serial runs: 36 prompts of up to 42 blocks.
func SmallShape() Shape { return Shape{3, 4, 3, 6, 6, 4} }

// SoakShape is the pool of the soak: 432 prompts of up to 51 blocks.
func SoakShape() Shape { return Shape{6, 12, 6, 5, 7, 3} }

// prompts returns every prompt of the pool as its local hashes.
func (s Shape) prompts() (out [][]uint64) {
	for sys := range s.Systems {
		for doc := range s.Documents {
			var p []uint64
			for i := range s.SystemBlocks {
				p = append(p, uint64(1000*(sys+1)+i))
			}
			n := s.DocumentBlocks
			if doc == s.Documents-1 {
				n *= 4
			}
			for i := range n {
				// Documents are shared between system prompts, as content: the
				// local hashes are equal, the paths are not.
				p = append(p, uint64(100_000*(doc+1)+i))
			}
			for turn := range s.Turns {
				for i := range s.TurnBlocks {
					p = append(p, uint64(10_000_000*(turn+1)+i))
				}
				out = append(out, append([]uint64(nil), p...))
			}
		}
	}
	return out
}

// key names a path in a map.
func key(path []uint64) string {
	b := make([]byte, 0, 8*len(path))
	for _, l := range path {
		b = binary.LittleEndian.AppendUint64(b, l)
	}
	return string(b)
}

// engineHash is the hash that an engine of a flavour gives to a path.
func engineHash(path []uint64, flavour uint64) uint64 {
	h := flavour
	for _, l := range path {
		h = mix(h ^ mix(l))
	}
	return h
}

// contentHash is what an engine gives whose hashes do not cover the prefix.
func contentHash(path []uint64, flavour uint64) uint64 {
	return mix(flavour ^ mix(path[len(path)-1]))
}

// mix is the finaliser of SplitMix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
