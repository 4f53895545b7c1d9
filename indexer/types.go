package indexer

import "fmt"

// GroupID numbers an index group (model name, routing group) densely.
type GroupID uint32

// PartitionID is one of the P fixed pieces of a group's key space.
type PartitionID uint32

// Slot is the dense number, within its group, of one (instance, rank) in one life.
type Slot uint32

// Run names consecutive blocks that one slot stored in one partition. Numbers are
// dense per (slot, partition) and reused only after the frame that emptied the
// run has been applied (rule N4).
type Run uint32

// MaxRunLength is the largest number of positions in a run (rule N3).
const MaxRunLength = 1 << 16

// Tier is a storage tier of a worker. The order is the order of the tier walk.
type Tier uint8

// The storage tiers.
const (
	Device Tier = iota
	Host
	Disk
	External

	// NumTiers is the number of tiers.
	NumTiers = 4
	// AllTiers stands for every tier, in a clear only.
	AllTiers Tier = 0xff
)

// String returns the name used in flags, metrics and JSON.
func (t Tier) String() string {
	switch t {
	case Device:
		return "device"
	case Host:
		return "host"
	case Disk:
		return "disk"
	case External:
		return "external"
	case AllTiers:
		return "all"
	}
	return fmt.Sprintf("tier(%d)", uint8(t))
}

// TierMask is a set of tiers, bit t for Tier t.
type TierMask uint8

// Mask returns the set that holds t alone (or all tiers for AllTiers).
func (t Tier) Mask() TierMask {
	if t == AllTiers {
		return 1<<NumTiers - 1
	}
	return 1 << t
}

// Has reports whether t is in the set.
func (m TierMask) Has(t Tier) bool { return m&(1<<t) != 0 }

// Range is a stretch of positions of one run, packed into a word:
// run<<32 | from<<16 | (length-1).
type Range uint64

// MakeRange packs n positions of run r from position from. n is 1..MaxRunLength
// and from+n must not exceed MaxRunLength.
func MakeRange(r Run, from, n int) Range {
	return Range(r)<<32 | Range(from)<<16 | Range(n-1)
}

// Run returns the run.
func (r Range) Run() Run { return Run(r >> 32) }

// From returns the first position.
func (r Range) From() int { return int(uint16(r >> 16)) }

// Len returns the number of positions, at least 1.
func (r Range) Len() int { return int(uint16(r)) + 1 }

// ParentKind says what the first block of a new run hangs below.
type ParentKind uint8

// The kinds of parent.
const (
	// ParentRoot: the run begins at the root of its tree (or at an anchor).
	ParentRoot ParentKind = iota
	// ParentName: the run begins below position Pos of run Run of the same slot
	// and partition. The name may be dead; its position in the tree is not.
	ParentName
)

// Parent is the place below which a new run begins.
type Parent struct {
	Kind   ParentKind
	Anchor uint64 // ParentRoot: root key of a branch (rule M6), 0 for the group's own root
	Run    Run    // ParentName
	Pos    uint32 // ParentName
}
