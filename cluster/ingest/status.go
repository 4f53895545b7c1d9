package ingest

import (
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// State is the state of one rank's listener, as GET /workers shows it.
type State uint8

// The states.
const (
	Pending    State = iota // no connection to the publisher
	Buffering               // batches wait for a slot
	CatchingUp              // a replay is running
	Active                  // live
	Paused                  // by an operator
	Failed                  // needs attention; LastError says why
)

// String is the text in JSON and metrics.
func (s State) String() string {
	return [...]string{"pending", "buffering", "catching_up", "active", "paused", "failed"}[s]
}

// ReplayEnd says why a replay ended without closing what it was asked for.
type ReplayEnd uint8

// The reasons, in the order of SourceCounters.ReplayFailed.
const (
	ReplaySilent       ReplayEnd = iota // no answer, or it stopped in the middle
	ReplayEmpty                         // it has nothing at or after the cursor
	ReplayStartedLate                   // it begins after the cursor
	ReplayHole                          // a batch in the middle is missing for good
	ReplayEndedEarly                    // it ends before the live batches begin
	ReplayOtherContent                  // the batch at the cursor is another one: a restart
	ReplayUnreachable                   // the endpoint cannot be used
	NumReplayEnds      = iota
)

// String is the metric label.
func (r ReplayEnd) String() string {
	return [...]string{"silent", "empty", "started_late", "hole", "ended_early", "other_content", "unreachable"}[r]
}

// Result says what became of an event.
type Result uint8

// The results, in the order of RankCounters.Events.
const (
	Applied        Result = iota // it changed the slot, or repeated what was known
	Orphaned                     // parent not known: its blocks wait, without credit
	UnknownBlock                 // a removal of nothing that is held
	Rejected                     // it contradicts what is known of its hashes
	Refused                      // the slot's hashes do not name prefixes
	OtherGroup                   // of a cache group that is not indexed
	WrongBlockSize               // of blocks of another size than the group's
	NumResults     = iota
)

// String is the metric label.
func (r Result) String() string {
	return [...]string{"ok", "parent_block_not_found", "block_not_found", "invalid_block", "refused", "other_cache_group", "block_size_mismatch"}[r]
}

// SourceCounters count what happened on one source since it was opened here.
type SourceCounters struct {
	Messages, Bytes uint64
	Malformed       uint64 // messages whose frames are not a batch's
	Undecodable     uint64 // batches that could not be decoded at all
	Trailing        uint64 // batches with bytes behind the envelope
	Duplicates      uint64 // batches already applied
	NoRank          uint64 // batches that cannot be given to a rank
	OtherTopic      uint64 // messages of a topic that is not this source's
	Conflicts       uint64 // messages dropped because two publishers share a name
	Gaps            uint64 // forward jumps
	Overflow        uint64 // batches dropped from a full backlog, to be replayed

	Replays         uint64 // requests sent
	ReplayedBatches uint64 // batches applied from replays
	ReplayFailed    [NumReplayEnds]uint64
	Probes          uint64 // of Replays: to a silent source, or for older batches
	ProbesSilent    uint64 // probes without an answer

	Connects, Disconnects uint64
	Restarts              uint64 // a new engine run, or continuity that could not be proved
	Losses                uint64 // the same run, but batches are lost for good
	Refills               uint64 // begun again because older batches could be had
}

// RankCounters count what happened to one rank since its source was opened here.
type RankCounters struct {
	Batches uint64
	Events  [engine.Cleared + 1][NumResults]uint64 // by engine.Kind
	Skipped [engine.NumSkipReasons]uint64

	Stored, Claimed, Trimmed, Attached, Orphaned, Dropped uint64 // blocks
	Unknown, Uncredited, OrphansLost, Shed                uint64 // blocks
	OtherGroupBlocks, WrongSizeBlocks                     uint64
	UnknownLower                                          uint64 // of Unknown: in a tier below the device
	DuplicateStores                                       uint64 // events that changed nothing

	Inherited, InheritedLoose uint64 // blocks taken over; those of them below a block that is gone

	Lives       uint64 // new lives that began here
	Degraded    uint64 // times the slot was flagged or cleared because of a loss
	LostRemoval uint64 // events skipped that may have been removals
	DroppedWait uint64 // batches that did not fit while the slot was awaited
}

// RankStatus is a snapshot of one (instance, rank).
type RankStatus struct {
	Rank       uint32
	Slot       indexer.Slot
	Life       uint64 // 0 = no slot yet
	Discovered bool
	State      State
	LastError  string
	Degraded   string   // why the content is known to be incomplete or doubtful; "" = sound
	Warnings   []string // what an operator should look at
	// Short: the stream began late because the replay failed, so the content of older batches
	// is unknown until the engine is asked again (also among Warnings).
	Short bool

	HasSequence bool
	Sequence    uint64 // of the latest batch of this rank
	// Acknowledged is the latest batch of this life of which it is known that every owner has
	// applied it and all before it (invariant I5); it is a few ticks late.
	HasAcknowledged bool
	Acknowledged    uint64
	LastBatch       time.Time
	LastEvent       time.Time     // latest batch with events
	Lag             time.Duration // of the latest batch: engine's clock to the start of its translation
	Waiting         int           // batches held back for the slot
	// WrongBlockSize is the latest block size in an event that is not the group's; 0 = none.
	WrongBlockSize uint32

	Counters   RankCounters
	Translator translate.Stats
}

// SourceStatus is a snapshot of one source. It is immutable.
type SourceStatus struct {
	ID                                 uint64
	Instance                           string
	Group                              indexer.GroupID
	Endpoint, ReplayEndpoint, Topic    string
	Binds                              bool
	Loop                               int
	Connected                          bool
	State                              State
	LastError                          string
	Opened, LastMessage, LastConnected time.Time
	Held                               int // live batches held back during a replay
	Counters                           SourceCounters
	Ranks                              []RankStatus // ordered by number
}
