package shard

import (
	"fmt"
	"slices"

	"github.com/buraksezer/consistent"
	"github.com/zeebo/xxh3"
)

// The ring parameters: load 1.25 with 100 to 200 virtual nodes moved the fewest
// partitions per join of those measured; more virtual nodes buy nothing.
const (
	ringLoad         = 1.25
	ringVirtualNodes = 150
)

// ring gives every partition a preferred member with bounded load. It wraps
// buraksezer/consistent against what was found there:
//
//   - virtual node keys are name plus decimal index without a separator, so names
//     that end in digits collide: ring names end in '#';
//   - a full ring panics under its lock after the member was added: a fresh ring is
//     built each time from sorted members, sizes are checked before, and a panic
//     that comes all the same becomes an error;
//   - its replica choice gives every partition of one member the same backup: only
//     the first owner is taken from it.
//
// Weights are given by entering a member several times.
func ringOwners(partitions uint32, members []Member) (owners []int, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("place %d partitions on %d members: %v", partitions, len(members), r)
		}
	}()
	shares := ringShares(partitions, members)
	var names []consistent.Member
	index := map[string]int{}
	for i, m := range members {
		for s := range shares[i] {
			n := ringName(fmt.Sprintf("%s/%d#", m.Name, s))
			index[string(n)] = i
			names = append(names, n)
		}
	}
	c := consistent.New(names, consistent.Config{
		Hasher: ringHasher{}, PartitionCount: int(partitions), ReplicationFactor: ringVirtualNodes, Load: ringLoad,
	})
	owners = make([]int, partitions)
	for p := range owners {
		owners[p] = index[c.GetPartitionOwner(p).String()]
	}
	return owners, nil
}

// ringShares turns weights into small whole numbers: the lightest member enters once,
// the others in proportion, as far as there are partitions for all.
func ringShares(partitions uint32, members []Member) []int {
	shares := make([]int, len(members))
	least := slices.MinFunc(members, func(a, b Member) int { return cmpFloat(a.weight(), b.weight()) }).weight()
	total := 0
	for i, m := range members {
		shares[i] = min(16, max(1, int(m.weight()/least+0.5)))
		total += shares[i]
	}
	if total > int(partitions) {
		for i := range shares {
			shares[i] = 1
		}
	}
	return shares
}

type ringName string

func (n ringName) String() string { return string(n) }

type ringHasher struct{}

func (ringHasher) Sum64(b []byte) uint64 { return xxh3.Hash(b) }
