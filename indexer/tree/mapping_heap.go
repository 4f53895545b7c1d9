//go:build race || !linux

package tree

import "unsafe"

// defaultReserve is small here: the memory comes from the Go heap, because the race
// detector sees no accesses to mapped memory.
const defaultReserve = 64 << 20

// mapping is memory of the Go heap in place of reserved address space.
type mapping struct{ mem []uint64 }

func (m *mapping) reserve(size, _ uint64) error {
	size = min(size, defaultReserve)
	m.mem = make([]uint64, size/8)
	return nil
}

func (m *mapping) base() unsafe.Pointer     { return unsafe.Pointer(unsafe.SliceData(m.mem)) }
func (m *mapping) length() uint64           { return uint64(len(m.mem)) * 8 }
func (m *mapping) commit(_, _ uint64) error { return nil }
func (m *mapping) decommit(_, _ uint64)     {}
func (m *mapping) release() error           { m.mem = nil; return nil }
