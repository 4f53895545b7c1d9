//go:build !amd64 || race || purego

package translate

type kernel uint8

const kernelGo kernel = 0

func bestKernel() kernel { return kernelGo }

func (m *blockMap) probeBatch(keys []uint64, out []probe) { m.probeGo(keys, out) }
