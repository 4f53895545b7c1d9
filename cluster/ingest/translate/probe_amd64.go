//go:build amd64 && !race && !purego

package translate

import "golang.org/x/sys/cpu"

// The assembly kernels read memory that the race detector does not follow, so race
// builds use the portable one.

//go:noescape
func probeAVX512(keys *uint64, out *probe, n int, table *uint32, buckets uint64, tagMask uint32, chunks **chunk) (open int)

//go:noescape
func probeAVX2(keys *uint64, out *probe, n int, table *uint32, buckets uint64, tagMask uint32, chunks **chunk) (open int)

//go:noescape
func scanAVX512(bucket *[bucketWords]uint32, tag, tagMask uint32) uint32

//go:noescape
func scanAVX2(bucket *[bucketWords]uint32, tag, tagMask uint32) uint32

// kernel is the widest one that this CPU has; tests set it to compare them.
type kernel uint8

const (
	kernelGo kernel = iota
	kernelAVX2
	kernelAVX512
)

func bestKernel() kernel {
	switch {
	case cpu.X86.HasAVX512F:
		return kernelAVX512
	case cpu.X86.HasAVX2:
		return kernelAVX2
	}
	return kernelGo
}

func (m *blockMap) probeBatch(keys []uint64, out []probe) (open int) {
	if m.scratch.kernel == kernelGo || len(m.chunks) == 0 {
		return m.probeGo(keys, out)
	}
	if m.scratch.kernel == kernelAVX512 {
		return probeAVX512(&keys[0], &out[0], len(keys), &m.table[0], m.buckets, m.tagMask, &m.chunks[0])
	}
	return probeAVX2(&keys[0], &out[0], len(keys), &m.table[0], m.buckets, m.tagMask, &m.chunks[0])
}

// scan compares one bucket; the result is as probe.found.
func (m *blockMap) scan(b uint64, tag uint32) uint32 {
	switch m.scratch.kernel {
	case kernelAVX512:
		return scanAVX512(m.bucket(b), tag, m.tagMask)
	case kernelAVX2:
		return scanAVX2(m.bucket(b), tag, m.tagMask)
	}
	return m.scanGo(b, tag)
}
