//go:build amd64 && !race && !purego

package translate

import "golang.org/x/sys/cpu"

func allKernels() []namedKernel {
	ks := []namedKernel{{"go", kernelGo}}
	if cpu.X86.HasAVX2 {
		ks = append(ks, namedKernel{"avx2", kernelAVX2})
	}
	if cpu.X86.HasAVX512F {
		ks = append(ks, namedKernel{"avx512", kernelAVX512})
	}
	return ks
}
