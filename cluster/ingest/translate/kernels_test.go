package translate

type namedKernel struct {
	name   string
	kernel kernel
}
