package driver

import (
	"math/rand/v2"
	"sync"
)

// Recorder keeps which requests of a plan were issued. Safe for concurrent use.
type Recorder struct {
	mu struct {
		sync.Mutex
		issued []uint32
	}
}

// Issue records that request i was sent to its worker.
func (r *Recorder) Issue(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.issued = append(r.mu.issued, uint32(i))
}

// Len returns the number of requests issued so far.
func (r *Recorder) Len() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.issued)
}

// Issued returns a copy of the list, in the order of the calls.
func (r *Recorder) Issued() []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint32(nil), r.mu.issued...)
}

// Sample returns n different issued requests (all when there are fewer), chosen by
// the seed.
func (r *Recorder) Sample(n int, seed uint64) []uint32 {
	list := r.Issued()
	rnd := rand.New(rand.NewPCG(seed, 3))
	rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(n, len(list))]
}
