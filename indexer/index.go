package indexer

import (
	"context"
	"errors"
	"time"
)

// Errors of the index.
var (
	// ErrUnknownName reports an operation on a run or position that this index
	// does not have: a broken invariant of the stream (rule N7), never bad input.
	ErrUnknownName = errors.New("unknown run or position")
	// ErrClosed is returned by calls on a closed index.
	ErrClosed = errors.New("index closed")
)

// Index is the set of trees that one node holds. Frames go in through writers,
// questions are asked through readers; both may be used at the same time.
type Index interface {
	// NewWriter returns a handle for one writing thread. All frames of one slot
	// must pass through one writer, or be separated by Flush.
	NewWriter() Writer
	// NewReader returns a handle for one querying goroutine at a time.
	NewReader() Reader
	// Purge drops everything that the slot holds in every partition and forgets
	// its runs, and returns when readers no longer see any of it. The caller
	// guarantees that no further frame for the slot will come.
	Purge(ctx context.Context, g GroupID, s Slot) error
	// Dump calls visit for every stretch of live names that the slot holds in a
	// partition. The stretches of one partition are one consistent state, taken
	// between two frames; visit must not keep the slices.
	Dump(ctx context.Context, g GroupID, p PartitionID, s Slot, visit func(Stretch) error) error
	// Stats returns a snapshot of the counters. Safe to call at any time.
	Stats() Stats
	// Close stops the lanes and gives all memory back. No writer or reader may be
	// in use.
	Close() error
}

// Writer is the way in for the frames of one thread. Not safe for concurrent use.
type Writer interface {
	// Write takes over one frame: its contents are copied or applied before it
	// returns. It waits while the lane's ring is full (back-pressure).
	//
	// Errors are reported late, through the index's fault handler: a frame that
	// names unknown runs closes that copy and is counted, it does not stop others.
	// A closed copy holds nothing, is credited with nothing, and ignores frames
	// until one whose first operation clears all tiers: from there on its content
	// is known again (that is how a resync begins). Purge forgets it as well.
	//
	// A frame that breaks the format is refused: Write returns an error that wraps
	// ErrFrame and counts a fault, or counts the fault late; nothing is applied.
	Write(f Frame) error
	// Written and Applied count frames. Applied may be read from any goroutine
	// and never exceeds Written; when they are equal, readers see everything.
	Written() uint64
	Applied() uint64
	// Flush waits until Applied has reached the value that Written has now.
	Flush(ctx context.Context) error
	// Close releases the handle after a Flush.
	Close()
}

// Query asks for the holders of a prefix in one tree.
type Query struct {
	Group     GroupID
	Partition PartitionID
	Anchor    uint64   // root key of a branch, 0 for the group's own root
	Locals    []uint64 // local hashes of the complete blocks, from the root (or anchor) on
}

// Row is the score of one slot in the device tier: the number of leading blocks
// of the query that it holds.
type Row struct {
	Slot  Slot
	Depth uint32 // blocks, at least 1
}

// TierRow is the tier walk of one slot: Depth[Device] is the device score, and
// Depth[t] how far the walk gets when tier t continues where tier t-1 ended.
// Depth never falls from one tier to the next.
type TierRow struct {
	Slot  Slot
	Depth [NumTiers]uint32 // blocks
}

// Scores is the answer to a query; its slices are reused by the next Match.
type Scores struct {
	// Rows has every slot with a device score above 0, once, in no order.
	Rows []Row
	// Tiers has every slot for which a lower tier adds something to the device
	// score (or which has no device score and a lower-tier one), once.
	Tiers []TierRow
}

// BlockState explains one block of a query for one slot.
type BlockState struct {
	Tiers TierMask // tiers in which the slot holds the block at this place of the path
	Known bool     // some slot has stored the block here, and the tree still has it
	// Evicted: the slot held it here and dropped it, and holds it no more; whether
	// anybody holds it now does not matter. It is told as far as a bounded log remembers,
	// which are the last 500 blocks at least, and never of a path that the slot did not
	// hold. What a clear took is told or not; a purge is forgotten.
	Evicted bool
}

// Reader answers queries without locks. One goroutine at a time may use it.
type Reader interface {
	SequenceReader
	// Match writes the scores of the query into out. The score of a slot is exact
	// ("held") with respect to the frames applied before the call, and never more
	// than what was held at some moment during the call, claim by claim; a moment
	// between two operations of one frame is one. A claim that was held all the time
	// counts, whatever is under way beside it.
	Match(q Query, out *Scores)
	// Explain appends the state of every block of the query for one slot.
	Explain(q Query, s Slot, dst []BlockState) []BlockState
	// Close gives the handle back.
	Close()
}

// FaultHandler is told of a frame that was refused, with the identity of the frame
// and an error that wraps ErrUnknownName or ErrFrame, or says that memory is used up
// (the copy is closed then, too). It is called by the goroutine
// that applies frames and must not block.
type FaultHandler func(h Header, err error)

// SequenceQuery asks for the path whose rolling sequence hashes are given.
type SequenceQuery struct {
	Group     GroupID
	Partition PartitionID
	Anchor    uint64 // as in Query
	// Before is the sequence hash of the block before the first; it counts only with
	// an anchor. Without one the first block's sequence hash is its local hash.
	Before   uint64
	Sequence []uint64
}

// SequenceReader is kept by readers that can answer for clients that send sequence
// hashes (blockhash.NextSequence) instead of local ones. A sequence hash cannot be
// turned back into a local one, so the tree is walked: of the positions that may follow,
// the one whose local hash continues the sequence.
type SequenceReader interface {
	// AppendPath appends the local hashes of the longest path of the tree whose sequence
	// hashes begin q.Sequence. Nobody stored a deeper block of it, so the scores of the
	// appended path are those of the whole sequence.
	AppendPath(dst []uint64, q SequenceQuery) []uint64
}

// Stretch is a piece of a run whose names are live in the same tiers. Stretches
// come run by run, and within a run by position.
type Stretch struct {
	Run    Run
	Start  uint32 // first position
	Tiers  TierMask
	Anchor uint64 // root key of the tree (Parent.Anchor of the store), 0 for the group's own root
	// Path has the local hashes of all blocks above the stretch, from the root on.
	// A stretch can lie below blocks that its slot no longer holds and that no name
	// of it reaches; the path is what puts it back in its place. The last Start
	// entries are the positions of the run itself that come before the stretch.
	Path   []uint64
	Parent struct {
		Root bool // the stretch begins at the root of its tree: Path is empty
		// Engine is otherwise an engine hash of the block before it: of a live name
		// of the slot if the parent's name is live, else of any name that was there.
		Engine uint64
	}
	Locals  []uint64
	Engines []uint64
	Mark    Mark // of the run
}

// Stats counts what an index holds and has done.
type Stats struct {
	Held     [NumTiers]uint64  // (slot, position) pairs covered, per tier
	Distinct uint64            // positions stored and covered by at least one slot
	Stored   uint64            // positions that have storage, covered or not
	Chains   uint64            // chains (or whatever unit of storage the implementation has)
	Slots    uint64            // (slot, partition) copies that hold anything
	Frames   uint64            // frames applied
	Faults   uint64            // frames refused because of ErrUnknownName or ErrFrame
	Bytes    map[string]uint64 // live bytes by purpose
	Reserved uint64            // bytes taken from the operating system
	Limbo    uint64            // bytes waiting for readers before they can be reused
	// OldestPin is for how long some reader has been in one query, as far as calls of
	// Stats have seen; a stalled reader shows here and in Limbo.
	OldestPin time.Duration
	// Revoked counts queries that had to start again because their reader stalled
	// while memory ran short.
	Revoked uint64
	// WantShed is the number of blocks that the slots' owners should drop to come
	// below the configured memory limit (rule N8); the index itself drops nothing.
	WantShed uint64
	Lanes    []LaneStats
}

// ShedShare is WantShed as a share of what is held, 0 to 1.
func (s *Stats) ShedShare() float64 {
	held := uint64(0)
	for _, n := range s.Held {
		held += n
	}
	if s.WantShed == 0 || held == 0 {
		return 0
	}
	return min(1, float64(s.WantShed)/float64(held))
}

// LaneStats describes one lane.
type LaneStats struct {
	Queued    uint64  // frames waiting
	BusyShare float64 // share of wall time spent applying since the last Stats call, 0..1
	Frames    uint64
	Stalled   uint64 // times a writer had to wait for room
	// ApplyP50 and ApplyP99 are the time that single frames took, sampled since the
	// lane began.
	ApplyP50, ApplyP99 time.Duration
}
