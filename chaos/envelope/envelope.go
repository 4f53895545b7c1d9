// Package envelope judges scores that are read while engines change what they hold: a
// score lies between what was held during the whole query and what was held at some
// moment of it, claim by claim. It does not know
// how moments are recorded or which of them a query has seen.
package envelope

import (
	"iter"
	"math/bits"
)

// Moment is what one engine held of one prompt of at most 64 blocks: a bit for each
// block, in the device tier and in the host tier.
type Moment [2]uint64

// Bounds returns the tier walk of a prompt (device score, then how far the host tier
// carries on), in blocks, at least and at most for a query that may have seen any of the
// moments. There must be one.
func Bounds(moments iter.Seq[Moment]) (least, most [2]int) {
	all, some := Moment{^uint64(0), ^uint64(0)}, Moment{}
	for m := range moments {
		for t := range m {
			all[t] &= m[t]
			some[t] |= m[t]
		}
	}
	return all.walk(), some.walk()
}

// walk continues in the host tier where the device tier ends.
func (m Moment) walk() (w [2]int) {
	w[0] = bits.TrailingZeros64(^m[0])
	w[1] = w[0] + bits.TrailingZeros64(^(m[1] >> w[0]))
	return w
}
