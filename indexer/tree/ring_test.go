package tree

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// TestRing sends frames of all sizes, too long ones too, from one goroutine to
// another: all arrive whole and in order.
func TestRing(t *testing.T) {
	const frames = 20000
	r := newRing(256)
	sent := make(chan bool)
	go func() {
		defer close(sent)
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range uint64(frames) {
			n := 6 + rng.IntN(60)
			if rng.IntN(50) == 0 {
				n = 100 + rng.IntN(400)
			}
			f := make(indexer.Frame, n)
			f[0] = uint64(n)
			for j := 1; j < n; j++ {
				f[j] = i
			}
			for !r.offer(f) {
				runtime.Gosched()
			}
		}
	}()
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range uint64(frames) {
		n := 6 + rng.IntN(60)
		if rng.IntN(50) == 0 {
			n = 100 + rng.IntN(400)
		}
		f := r.take()
		for ; f == nil; f = r.take() {
			r.publish()
			runtime.Gosched()
		}
		if len(f) != n {
			t.Fatalf("frame %d has %d words, want %d", i, len(f), n)
		}
		for j := 1; j < n; j++ {
			if f[j] != i {
				t.Fatalf("frame %d, word %d: %d", i, j, f[j])
			}
		}
		if i%7 == 0 {
			r.publish()
		}
	}
	r.publish()
	<-sent
	if r.applied.Load() != frames || r.written.Load() != frames || r.tail.Load() != r.head.Load() {
		t.Errorf("written %d, applied %d", r.written.Load(), r.applied.Load())
	}
}
