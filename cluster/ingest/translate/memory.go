package translate

import "unsafe"

// allocator hands out the memory of one translator: from a Memory that translators
// share, or from the Go heap.
type allocator struct{ mem *Memory }

// words returns n zeroed words.
func (a allocator) words(n int) []uint32 {
	if a.mem == nil {
		return make([]uint32, n)
	}
	w := unsafe.Slice((*uint32)(a.mem.alloc(4*n)), n)
	clear(w)
	return w
}

func (a allocator) freeWords(w []uint32) {
	if a.mem != nil && len(w) > 0 {
		a.mem.release(unsafe.Pointer(&w[0]), 4*len(w))
	}
}

// chunk returns a chunk whose content is undefined.
func (a allocator) chunk() *chunk {
	if a.mem == nil {
		return new(chunk)
	}
	return (*chunk)(a.mem.alloc(chunkBytes))
}

func (a allocator) freeChunk(c *chunk) {
	if a.mem != nil {
		a.mem.release(unsafe.Pointer(c), chunkBytes)
	}
}
