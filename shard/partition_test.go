package shard

import "testing"

// A thousand chains in each of two groups: every partition gets its share within
// the noise of a binomial draw (five standard deviations), for any P.
func TestPartitionIsEven(t *testing.T) {
	const chains = 200_000
	for _, p := range []uint32{1, 2, 7, 256, 1000} {
		l := Layout{Partitions: p}
		counts := make([]int, p)
		for i := range uint64(chains) {
			counts[l.Partition(3, i*8, 0)]++
		}
		mean := float64(chains) / float64(p)
		for part, n := range counts {
			if d := float64(n) - mean; d*d > 25*mean+1 {
				t.Errorf("P=%d: partition %d has %d chains, mean %.1f", p, part, n, mean)
			}
		}
	}
}

// Placement is stored in logs and snapshots: a change of the function must be a
// decision, not an accident.
func TestPartitionIsPinned(t *testing.T) {
	l := Layout{Partitions: 256}
	got := [4]uint32{l.Partition(1, 0, 0), l.Partition(1, 1, 0), l.Partition(2, 0, 0), l.Partition(1, ^uint64(0), 9)}
	if want := pinned; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if l.Partition(1, 5, 0) != l.Partition(1, 5, 77) {
		t.Error("the slot moved a chain")
	}
}

var pinned = [4]uint32{94, 233, 100, 165}
