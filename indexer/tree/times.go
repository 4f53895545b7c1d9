package tree

import (
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// sampleFrames is how many frames pass between two whose time is taken: looking at
// the clock costs as much as a small frame.
const sampleFrames = 64

// applyTimes are the times that single frames took, in quarters of powers of two of
// ns.
type applyTimes struct{ buckets [4 * 40]atomic.Uint64 }

func (a *applyTimes) measure(l *Lane, f indexer.Frame) {
	from := time.Now()
	l.Apply(f)
	a.add(time.Since(from))
}

func (a *applyTimes) add(d time.Duration) {
	n := uint64(max(d, 4))
	k := bits.Len64(n) // the two bits below the highest choose the quarter
	a.buckets[min(4*k+int(n>>(k-3)&3), len(a.buckets)-1)].Add(1)
}

// quantile returns the upper end of the bucket in which the quantile lies.
func (a *applyTimes) quantile(q float64) time.Duration {
	total := uint64(0)
	for i := range a.buckets {
		total += a.buckets[i].Load()
	}
	rank, seen := uint64(q*float64(total)), uint64(0)
	for i := range a.buckets {
		if seen += a.buckets[i].Load(); total > 0 && seen > rank {
			k, quarter := i/4, i%4
			return time.Duration(5+quarter) << (k - 3)
		}
	}
	return 0
}
