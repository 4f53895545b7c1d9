//go:build !linux || race

package translate

import "unsafe"

// Memory is the Go heap in this build: the race detector does not see mapped
// memory.
type Memory struct{}

// NewMemory returns a Memory.
func NewMemory() *Memory { return &Memory{} }

// Reserved returns 0, 0 in this build.
func (m *Memory) Reserved() (reserved, used uint64) { return 0, 0 }

// Trim does nothing in this build.
func (m *Memory) Trim(int) uint64 { return 0 }

func (m *Memory) alloc(n int) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(make([]uint64, (n+7)/8)))
}

func (m *Memory) release(unsafe.Pointer, int) {}
