//go:build linux && !race

package translate

import (
	"testing"
	"unsafe"
)

// Trim gives back exactly the pages that are wholly free, once; what is in use keeps
// its content, and what was given back can be used again.
func TestTrim(t *testing.T) {
	m := NewMemory()
	const n = 6000 // bytes: not a whole number of pages, so that borders are shared
	var ps []unsafe.Pointer
	for i := range 300 {
		p := m.alloc(n)
		b := unsafe.Slice((*byte)(p), n)
		for j := range b {
			b[j] = byte(i)
		}
		ps = append(ps, p)
	}
	if got := m.Trim(100); got > slabBytes {
		t.Errorf("%d bytes given back while everything is in use", got)
	}
	for i := 0; i < 300; i++ {
		if i%10 != 0 {
			m.release(ps[i], n)
		}
	}
	got := m.Trim(100)
	if free := uint64(270 * n); got < free/2 || got > 2*slabBytes {
		t.Errorf("%d bytes given back of %d free ones", got, free)
	}
	if again := m.Trim(100); again != 0 {
		t.Errorf("%d bytes given back again", again)
	}
	for i := 0; i < 300; i += 10 {
		for j, v := range unsafe.Slice((*byte)(ps[i]), n) {
			if v != byte(i) {
				t.Fatalf("byte %d of object %d is %d", j, i, v)
			}
		}
	}
	p := m.alloc(n)
	clear(unsafe.Slice((*byte)(p), n))
	m.release(p, n)
	if got := m.Trim(0); got != 0 {
		t.Errorf("%d bytes from no slab", got)
	}
	for i := 0; i < 300; i += 10 {
		m.release(ps[i], n)
	}
}
