//go:build !amd64 || race || purego

package translate

type kernel uint8

const kernelGo kernel = 0

func bestKernel() kernel { return kernelGo }

func (m *blockMap) probeBatch(keys []uint64, out []probe) (open int) { return m.probeGo(keys, out) }

// scan compares one bucket; the result is as probe.found.
func (m *blockMap) scan(b uint64, tag uint32) uint32 { return m.scanGo(b, tag) }
