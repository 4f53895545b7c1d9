package tree

import "sync/atomic"

// Words that readers look at while the lane writes are only touched through these
// three. A load is a plain load on amd64; a store is an exchange.

func load(p *uint64) uint64     { return atomic.LoadUint64(p) }
func store(p *uint64, v uint64) { atomic.StoreUint64(p, v) }

func lo(w uint64) uint32           { return uint32(w) }
func hi(w uint64) uint32           { return uint32(w >> 32) }
func pack(low, high uint32) uint64 { return uint64(low) | uint64(high)<<32 }

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
