package router

import (
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// StreamState is the state of a rank's stream as /workers shows it.
type StreamState string

// The states of a stream.
const (
	StreamPending    StreamState = "pending"     // registered, not connected yet
	StreamBuffering  StreamState = "buffering"   // holding live batches back while older ones are fetched
	StreamCatchingUp StreamState = "catching_up" // applying replayed batches
	StreamActive     StreamState = "active"
	StreamPaused     StreamState = "paused"
	StreamFailed     StreamState = "failed"
)

// streamStates is every state, in the order in which one of them decides the state of
// a whole worker.
var streamStates = []StreamState{
	StreamFailed, StreamPending, StreamBuffering, StreamCatchingUp, StreamActive, StreamPaused,
}

// aggregate returns the state of a worker from those of its ranks.
func aggregate(states []StreamState) StreamState {
	for _, s := range streamStates {
		for _, have := range states {
			if have == s {
				return s
			}
		}
	}
	return StreamPending
}

// StreamStatus describes the stream of one rank. Counters run since this rank was
// registered, over all its lives.
type StreamStatus struct {
	Instance string
	Rank     uint32
	Group    uint32
	Reader   string // node that reads it; "" = this one, which is alone
	State    StreamState
	// LastError is the last thing that went wrong, "" for nothing.
	LastError string
	// Registered is the time since the registration; LastEvent since the last batch
	// that carried this rank, negative when there was none yet.
	Registered time.Duration
	LastEvent  time.Duration

	Life uint64 // that the reader writes; 0 = none yet
	// Sequence is the latest batch, and Acknowledged the latest one that every owner of its
	// blocks has applied, with all before it; -1 = none.
	Sequence, Acknowledged int64

	Batches uint64
	Events  uint64
	Gaps    uint64 // sequence gaps seen
	Losses  uint64 // times that batches were missing and did not come back by replay
	Replays uint64 // replays asked for
	Lives   uint64 // lives of this rank so far; 1 = never restarted
	// Inherited are the blocks that came with a life of another reader; Loose are those of
	// them below a block that is gone, whose names cannot be checked.
	Inherited, Loose uint64

	// Rejected counts events left out, and RejectedBlocks the blocks in them, by reason
	// ("malformed", "unknown_tag", "token_count", "block_size", "contradiction", ...).
	Rejected       map[string]uint64
	RejectedBlocks map[string]uint64
	Orphans        uint64 // blocks that wait for their parent, now
	OrphansLost    uint64 // blocks that fell out of the full pool
	// BlockSizeMismatches counts stores whose blocks have another size than registered;
	// SeenBlockSize is the last such size.
	BlockSizeMismatches uint64
	SeenBlockSize       uint32

	Held [indexer.NumTiers]uint64 // blocks held now, per tier
	// Degraded says why the content is known to be incomplete, "" when it is sound. Scores
	// may be too low until the stream is rebuilt.
	Degraded string
	// Refused: the engine's hashes do not name prefixes, nothing of it is credited.
	Refused bool
	Lag     time.Duration // of the last batch, from the engine's clock to applied; 0 = not known
	// Warnings are further remarks of whoever reads the stream.
	Warnings []string
}
