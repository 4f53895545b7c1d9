//go:build linux && !race

package translate

import (
	"fmt"
	"math/bits"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Memory is what the maps of many translators live in, outside the Go heap: the
// collector has nothing to scan there, and huge pages keep the translation of
// addresses cheap. It takes slabs of 2 MiB from the operating system and gives an
// empty slab back. Safe for concurrent use.
type Memory struct {
	mu struct {
		sync.Mutex
		slabs    []*slab
		reserved uint64 // bytes taken from the operating system
		used     uint64 // bytes handed out
	}
}

const (
	slabBytes = 2 << 20
	granule   = 512 // a chunk of units is five
	slabWords = slabBytes / granule / 64
)

// slab is 2 MiB cut into granules.
type slab struct {
	data []byte
	free [slabWords]uint64 // bit = free granule
	left int               // free granules
	// misfit: a request of so many granules failed since the last release.
	misfit int
	// loose: something was released since the last Trim.
	loose bool
}

// pageGranules is a page of the operating system, in granules.
const pageGranules = 4096 / granule

// NewMemory returns an empty Memory.
func NewMemory() *Memory { return &Memory{} }

// Reserved returns the bytes taken from the operating system, and those in use.
func (m *Memory) Reserved() (reserved, used uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.reserved, m.mu.used
}

// alloc returns n bytes whose content is undefined, aligned to a granule.
func (m *Memory) alloc(n int) unsafe.Pointer {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := (n + granule - 1) / granule
	m.mu.used += uint64(g * granule)
	if g > slabBytes/granule {
		return unsafe.Pointer(&m.mapped(roundUp(n))[0])
	}
	for _, s := range m.mu.slabs {
		if s.left >= g && g < s.misfit {
			if at := s.take(g); at >= 0 {
				return unsafe.Pointer(&s.data[at*granule])
			}
			s.misfit = g
		}
	}
	s := &slab{data: m.mapped(slabBytes), left: slabBytes / granule, misfit: slabBytes/granule + 1}
	for i := range s.free {
		s.free[i] = ^uint64(0)
	}
	m.mu.slabs = append(m.mu.slabs, s)
	return unsafe.Pointer(&s.data[s.take(g)*granule])
}

func (m *Memory) release(p unsafe.Pointer, n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := (n + granule - 1) / granule
	m.mu.used -= uint64(g * granule)
	if g > slabBytes/granule {
		m.unmap(unsafe.Slice((*byte)(p), roundUp(n)))
		return
	}
	for i, s := range m.mu.slabs {
		off := uintptr(p) - uintptr(unsafe.Pointer(&s.data[0]))
		if off >= slabBytes {
			continue
		}
		s.put(int(off/granule), g)
		if s.left == slabBytes/granule && len(m.mu.slabs) > 1 {
			m.unmap(s.data)
			last := len(m.mu.slabs) - 1
			m.mu.slabs[i] = m.mu.slabs[last]
			m.mu.slabs = m.mu.slabs[:last]
		}
		return
	}
	panic("translate: release of memory that is not from here")
}

// Trim gives free whole pages inside slabs back to the operating system: what growing
// tables have left behind. It looks at most at max slabs that something was released
// in since they were looked at last, and returns the bytes given back. A page that is
// used again is faulted in again, so Trim is for a quiet moment, not for every release.
func (m *Memory) Trim(max int) (bytes uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.mu.slabs {
		if !s.loose {
			continue
		}
		if max--; max < 0 {
			break
		}
		s.loose = false
		bytes += s.trimPages()
	}
	return bytes
}

// trimPages drops the runs of pages that are wholly free.
func (s *slab) trimPages() (bytes uint64) {
	const pages = slabBytes / granule / pageGranules
	isFree := func(p int) bool {
		return s.free[p*pageGranules/64]>>(p*pageGranules%64)&(1<<pageGranules-1) == 1<<pageGranules-1
	}
	for p := 0; p < pages; p++ {
		from := p
		for p < pages && isFree(p) {
			p++
		}
		if n := p - from; n > 0 {
			b := s.data[from*4096 : p*4096]
			if unix.Madvise(b, unix.MADV_DONTNEED) == nil { // a hint; the memory stays usable
				bytes += uint64(len(b))
			}
		}
	}
	return bytes
}

func roundUp(n int) int { return (n + slabBytes - 1) &^ (slabBytes - 1) }

// mapped returns n zeroed bytes from the operating system, aligned to a slab.
func (m *Memory) mapped(n int) []byte {
	b, err := unix.Mmap(-1, 0, n+slabBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		panic(fmt.Sprintf("translate: map %d bytes: %v", n+slabBytes, err)) // as the runtime does when the heap cannot grow
	}
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & (slabBytes - 1))
	trim(b[:skip])
	trim(b[skip+n:])
	b = b[skip : skip+n : skip+n]
	_ = unix.Madvise(b, unix.MADV_HUGEPAGE) // a hint; small pages work as well
	m.mu.reserved += uint64(n)
	return b
}

func (m *Memory) unmap(b []byte) {
	m.mu.reserved -= uint64(len(b))
	trim(b)
}

// trim gives a part of a mapping back.
func trim(b []byte) {
	if len(b) > 0 {
		if err := unix.MunmapPtr(unsafe.Pointer(&b[0]), uintptr(len(b))); err != nil {
			panic(fmt.Sprintf("translate: unmap %d bytes: %v", len(b), err))
		}
	}
}

// take finds g free granules in a row and returns the first, or -1.
func (s *slab) take(g int) int {
	run := 0
	for i := 0; i < slabBytes/granule; {
		w := s.free[i/64] >> (i % 64)
		if w == 0 {
			run = 0
			i = (i/64 + 1) * 64
			continue
		}
		if z := bits.TrailingZeros64(w); z > 0 {
			run = 0
			i += z
			continue
		}
		ones := min(bits.TrailingZeros64(^w), 64-i%64)
		run += ones
		i += ones
		if run >= g {
			at := i - run
			for j := at; j < at+g; j++ {
				s.free[j/64] &^= 1 << (j % 64)
			}
			s.left -= g
			return at
		}
	}
	return -1
}

func (s *slab) put(at, g int) {
	for j := at; j < at+g; j++ {
		s.free[j/64] |= 1 << (j % 64)
	}
	s.left += g
	s.misfit = slabBytes/granule + 1
	s.loose = true
}
