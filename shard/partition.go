package shard

// DefaultPartitions is the number of partitions of a new cluster: about 64 for
// each of four nodes (rule 25 of protocol.md keeps it near 64 a node, since a
// (slot, partition) pair costs about 32 bytes).
const DefaultPartitions = 256

// Layout says how the key space is cut. It is fixed when a cluster is founded.
type Layout struct {
	Partitions uint32
}

// Partition returns the partition of a chain: a function of the group, the chain's
// first local hash and the slot. The slot has no influence today; it is in the
// signature so that a hot partition can also be divided by slot.
func (l Layout) Partition(group uint32, first uint64, slot uint32) uint32 {
	h := mix(first ^ mix(uint64(group)))
	// Multiply-high maps the hash evenly to any number of partitions.
	return uint32((h >> 32) * uint64(l.Partitions) >> 32)
}

// mix is the finaliser of splitmix64: a bijection that spreads every input bit.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
