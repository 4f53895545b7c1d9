package translate

import (
	"errors"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// Config says for whom a translator works. The zero limits mean the defaults.
type Config struct {
	Group     indexer.GroupID
	Slot      indexer.Slot
	Life      uint64 // log index of the command that began this life
	Tenure    uint64 // log index that gave the source to this ingest
	BlockSize int    // tokens per block of the group
	// Partition maps the first local hash of a chain to its partition.
	Partition func(first uint64) indexer.PartitionID
	// Lora and Salt are the namespace of root blocks that say nothing themselves.
	Lora, Salt string
	// CountCopies: count stores of one hash and end the claim with the last removal,
	// instead of one claim per hash (the default, set semantics).
	CountCopies bool
	// MaxOrphanBlocks bounds the pool of blocks whose parent is not known; 0 = 65,536.
	MaxOrphanBlocks int
	// MaxTainted bounds the hashes known not to name a prefix; beyond it the slot is
	// refused: nothing more is credited to it. 0 = 65,536.
	MaxTainted int
	// MaxBlocks bounds the blocks held (rule N8: the translator drops and says so,
	// see Shed); 0 = 2^27, which is also the most.
	MaxBlocks int
	// AwaitAck: a run number is used again only after Acknowledge of the batch that
	// emptied the run (rule N4). Otherwise it is as soon as End has emitted it.
	AwaitAck bool
	// Memory is shared by the translators of a process; nil means the Go heap.
	Memory *Memory
	// Scratch is shared by the translators of one goroutine; nil means an own one.
	Scratch *Scratch
}

// Store is one store event of the prefix-indexable cache group.
type Store struct {
	Tier      indexer.Tier
	HasParent bool
	Parent    uint64
	Engines   []uint64
	Content   blockhash.Content // of len(Engines) blocks; empty for a placeholder
	// Lora and Salt, when not empty, are the namespace that the event names. Empty
	// means: as the parent's, or the configured one at the root.
	Lora, Salt string
	// Placeholder: hashes only. It claims a further tier of hashes that are mapped
	// already; others are counted and dropped.
	Placeholder bool
}

// Outcome says what became of one event, block by block.
type Outcome struct {
	Stored      int   // newly stored blocks (first tier)
	Claimed     int   // blocks that gained a further tier
	Trimmed     int   // blocks already mapped at that tier: duplicates, re-announcements
	Attached    int   // orphans that found their parent through this event
	Orphaned    int   // blocks put into the pool
	Forgotten   int   // removed blocks that were still in the pool
	Dropped     int   // claims ended (one block in one tier)
	Unknown     int   // removed hashes (or placeholder hashes) that are not mapped
	Uncredited  int   // blocks left out because their hash or their parent is tainted
	OrphansLost int   // orphans that fell out of the full pool
	Settled     int   // blocks of a batch given again that their partition has already (see Heir)
	Shed        int   // blocks dropped for the memory bound, in all tiers
	Err         error // the event was rejected whole: wraps ErrRejected or ErrRefused
}

// Errors in Outcome.Err.
var (
	// ErrRejected: this event contradicts what is known of its hashes and was left
	// out whole; the stream goes on.
	ErrRejected = errors.New("event rejected")
	// ErrRefused: the slot's hashes do not name prefixes; nothing of it is credited
	// until a new life.
	ErrRefused = errors.New("slot refused")
)

// HashState is what a translator knows of one engine hash.
type HashState uint8

// The states of a hash.
const (
	HashUnknown HashState = iota // never announced, or removed
	HashHeld
	HashOrphan
	HashTainted
)

// Stats counts since the translator began; the gauges are of now.
type Stats struct {
	Stored, Claimed, Trimmed, Attached, Orphaned, Forgotten, Dropped uint64 // blocks
	Unknown, Uncredited, OrphansLost, Shed, Rejected                 uint64
	Inherited, LooseDropped                                          uint64                   // blocks
	Held                                                             [indexer.NumTiers]uint64 // gauge: mapped hashes per tier
	Mapped                                                           uint64                   // gauge: mapped hashes
	Runs                                                             uint64                   // gauge: live runs
	Orphans                                                          uint64                   // gauge: blocks in the pool
	Tainted                                                          uint64                   // gauge: tainted hashes
	Loose                                                            uint64                   // gauge: see Heir.Inherit
	Refused                                                          bool
	Bytes                                                            uint64 // gauge: memory of the translator without Scratch; pool and sets estimated
}

// Interface is what a source needs of a translator. *Translator keeps it. All
// methods belong to one goroutine.
type Interface interface {
	// Begin opens a batch: the frames made until End carry its sequence.
	Begin(sequence uint64)
	// Store, Remove and Clear translate one event each, in the order of the batch.
	Store(s Store) Outcome
	Remove(tier indexer.Tier, engines []uint64) Outcome
	Clear(tier indexer.Tier) Outcome
	// End closes the batch and gives every frame of it to emit, at most one for each
	// partition. The frames are valid until the next Begin.
	End(emit func(indexer.Frame) error) error
	// Shed drops a share, above 0 and at most 1, of the blocks in the partitions that in
	// accepts (nil = all), rounded up and at most three more, within a batch. Runs that
	// were extended, re-announced or built upon lately are spared; the others lose blocks
	// from their end on (mostly, see shed.go).
	Shed(share float64, in func(indexer.PartitionID) bool) Outcome
	// Lookup says what is known of a hash.
	Lookup(engine uint64) HashState
	Stats() Stats
}
