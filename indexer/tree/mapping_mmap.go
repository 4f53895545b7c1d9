//go:build linux && !race

package tree

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// defaultReserve is the address space of a lane: all that a ref can name.
const defaultReserve = maxUnits * unitBytes

// mapping is reserved address space outside the collector's heap.
type mapping struct{ mem []byte }

// reserve takes up to size bytes of address space, at least least: under a limit of
// address space less is better than nothing. The space is not accessible yet, so it
// counts against no commit limit.
func (m *mapping) reserve(size, least uint64) error {
	for {
		mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
		if err == nil {
			m.mem = mem
			return nil
		}
		if size/2 < least {
			return fmt.Errorf("map %d bytes: %w", size, err)
		}
		size = size / 2
	}
}

func (m *mapping) base() unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(m.mem)) }
func (m *mapping) length() uint64       { return uint64(len(m.mem)) }

// commit makes a part accessible. Huge pages are asked for, not needed.
func (m *mapping) commit(at, n uint64) error {
	part := m.mem[at : at+n]
	if err := unix.Mprotect(part, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		return fmt.Errorf("commit %d bytes: %w", n, err)
	}
	_ = unix.Madvise(part, unix.MADV_HUGEPAGE)
	return nil
}

// decommit lets the system take the pages; they stay accessible and read as zero.
func (m *mapping) decommit(at, n uint64) {
	_ = unix.Madvise(m.mem[at:at+n], unix.MADV_DONTNEED)
}

func (m *mapping) release() error {
	if m.mem == nil {
		return nil
	}
	err := unix.Munmap(m.mem)
	m.mem = nil
	if err != nil {
		return fmt.Errorf("unmap: %w", err)
	}
	return nil
}
