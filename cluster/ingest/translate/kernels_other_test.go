//go:build !amd64 || race || purego

package translate

func allKernels() []namedKernel { return []namedKernel{{"go", kernelGo}} }
