package bench

// ticks reads the time stamp counter.
//
//go:noescape
func ticks() uint64
