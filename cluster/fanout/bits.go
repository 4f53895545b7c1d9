package fanout

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/indexer"
)

// set is a set of partitions.
type set []uint64

func newSet(partitions int) set { return make(set, (partitions+63)/64) }

func (s set) has(p int) bool { return s[p>>6]&(1<<(p&63)) != 0 }
func (s set) add(p int)      { s[p>>6] |= 1 << (p & 63) }
func (s set) del(p int)      { s[p>>6] &^= 1 << (p & 63) }

func (s set) or(o set) {
	for i, w := range o {
		s[i] |= w
	}
}

func (s set) andNot(o set) {
	for i, w := range o {
		s[i] &^= w
	}
}

func (s set) and(o set) {
	for i, w := range o {
		s[i] &= w
	}
}

func (s set) clone() set { return append(set(nil), s...) }

func (s set) empty() bool {
	for _, w := range s {
		if w != 0 {
			return false
		}
	}
	return true
}

func (s set) count() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// meets reports whether the sets have something in common.
func (s set) meets(o set) bool {
	for i, w := range o {
		if s[i]&w != 0 {
			return true
		}
	}
	return false
}

// list returns the members in order.
func (s set) list() (out []indexer.PartitionID) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			out = append(out, indexer.PartitionID(i<<6+bits.TrailingZeros64(w)))
		}
	}
	return out
}
