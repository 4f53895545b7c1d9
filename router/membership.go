package router

import (
	"time"
)

// MemberStatus is one member of the cluster as this node sees it.
type MemberStatus struct {
	Name    string
	Address string // for links between nodes
	HTTP    string // address of its API
	// Role is its part in the log: "leader", "voter", "follower" (has no vote), or
	// "unknown".
	Role string
	// Phase is "active" or "leaving"; "joining" for one that the log does not know yet.
	Phase string
	// Alive: gossip hears of it. Since says for how long that has been so, 0 = not known.
	Alive   bool
	Since   time.Duration
	Boot    uint64 // boot id of the process that the log knows
	Zone    string
	Weight  float64
	Version string
	// Partitions that it owns, and those of them that it may be read for.
	Partitions, Ready int
	Sources           int // that it reads
}

// ShardsStatus says who has what.
type ShardsStatus struct {
	Partitions []PartitionStatus // by number
	Changes    []ChangeStatus    // ordered by id
}

// PartitionStatus is one partition.
type PartitionStatus struct {
	Owners    []OwnerStatus
	Receivers []string // that are being filled
	// HeldBlocks counts the blocks held in it, once for every rank that holds one, in this
	// node's copy; -1 = not known.
	HeldBlocks int64
}

// OwnerStatus is one owner of a partition.
type OwnerStatus struct {
	Name  string
	Ready bool
}

// ChangeStatus is a layout change under way.
type ChangeStatus struct {
	ID    uint64
	Moves []MoveStatus
	// Waiting are the nodes that have not reported that the new copies are complete.
	Waiting []string
	// Copies of ranks' partitions that this node has filled for it, of all that it has to
	// fill; what it sent for that, and how fast. Other nodes have their own.
	Done, Total int
	Bytes       uint64
	Rate        float64 // bytes a second
}

// MoveStatus is one new copy of a change.
type MoveStatus struct {
	Partition uint32
	To        string // "" = no new copy
	Drop      string // "" = nobody goes
}

// PeerTraffic counts what goes between this node and another since this one began. Bytes
// are payloads, without what link and TCP add and without repetitions.
type PeerTraffic struct {
	Peer string
	Up   bool // something can be sent to it now
	// All payloads of the link but calls: frames, fills and control, and the same of the
	// other direction.
	BytesOut, BytesIn uint64
	// Frames of streams, for copies that are open there, the blocks that stores in them
	// have, and their bytes, removals included: Bytes/Blocks is the cost of a new block.
	Frames, Blocks, Bytes uint64
	FillBytes             uint64 // of copies that were filled
}

// DiskStatus is the disk of a node's data folder.
type DiskStatus struct {
	Free int64 // bytes that may still be written; 0 with Known unset
	// Low: so little that this node does not lead while another one can.
	Low   bool
	Known bool
}

// ClusterStatus is the state of the cluster in short, for /status and /metrics. The zero
// value is that of a node that is its whole cluster.
type ClusterStatus struct {
	ID       string // of the cluster, "" = a node alone
	Leader   string // "" = none is known
	MapIndex uint64 // log index of the layout that this node works with
	// LeaseHeld: the map is proved to be current; MapAge is how old it may be.
	LeaseHeld bool
	MapAge    time.Duration
	Members   int
	Alive     int
	Replicas  int
	// Balance is the largest weight of a member's partitions over the mean, 1 = even;
	// 0 = not known.
	Balance float64
	// LogLag is how many log entries are known and not applied here.
	LogLag uint64
	// Unready are partitions with fewer ready owners than the cluster wants, Unowned those
	// that nobody may be read for.
	Unready, Unowned int
	// DegradedSlots lost events; UnreadableSlots have a copy on this node that may not be
	// read now.
	DegradedSlots, UnreadableSlots int
	Changes                        int // under way
	Disk                           DiskStatus
}

// SearchStatus counts how a node's queries were answered by the cluster.
type SearchStatus struct {
	Local     uint64 // questions answered from this node's own trees
	Calls     uint64 // to other owners
	Served    uint64 // calls of others
	Hedges    uint64 // second calls because a first one was slow
	HedgesWon uint64 // whose answer came first
	Replans   uint64 // times that an owner knew a later layout
	// Failed are calls without a usable answer, ServedFailed calls of others that were not
	// answered, Partial requests that lacked something: by reason.
	Failed, ServedFailed, Partial map[string]uint64
	Unreadable                    uint64 // slots that an owner could not answer for
	Stale, Refused                uint64 // requests without proof of a current map; those refused
	LeaseFailed                   uint64 // renewals of the lease that failed
	HedgeDelay                    time.Duration
}

// SnapshotResult says what Cluster.Snapshot has written.
type SnapshotResult struct {
	Path   string
	Bytes  int64
	Slots  int
	Copies int    // of slots' partitions
	Blocks uint64 // held in them, once for every copy
	Took   time.Duration
}
