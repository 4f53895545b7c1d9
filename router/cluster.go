package router

import (
	"context"
	"errors"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// Cluster is what the router needs of the node that it runs in. All methods may be
// called from any goroutine.
type Cluster interface {
	// View returns the worker catalog as this node has applied it.
	View() *catalog.View
	// Layout says how the key space is cut. It never changes.
	Layout() shard.Layout
	// Bigram reports whether engines of the group send EAGLE pages, whose blocks are
	// hashed over one token more. It may become true when the first such page arrives.
	Bigram(group uint32) bool
	// NewSearcher returns a handle for one querying goroutine at a time. The router
	// keeps a bounded number of them and closes them at its end.
	NewSearcher() Searcher

	// Register adds one rank. It returns when the catalog has it, before the stream is
	// connected. The errors are those of catalog.Register.
	Register(ctx context.Context, r catalog.Registration) error
	// Unregister removes a worker or a rank and returns when no query sees any of its
	// blocks. The errors are those of catalog.Unregister.
	Unregister(ctx context.Context, u catalog.Unregistration) error

	// Streams returns the state of every rank's stream, in the order of View.Workers
	// and their ranks. The slice belongs to the caller.
	Streams() []StreamStatus
	// PauseStream stops and ResumeStream goes on reading a rank's stream.
	PauseStream(ctx context.Context, instance string, rank uint32) error
	ResumeStream(ctx context.Context, instance string, rank uint32) error

	// DumpSlot calls visit for everything that a slot holds, partition by partition.
	// visit must not keep the slices.
	DumpSlot(ctx context.Context, group indexer.GroupID, slot indexer.Slot, visit func(indexer.Stretch) error) error

	// Ready reports whether this node may answer for its part of the index; reason is a
	// word such as ReasonRecovering when it may not.
	Ready() (ok bool, reason string)
	// Status returns counters of the node.
	Status() NodeStatus

	// Members returns every member of the cluster, by name. The slice belongs to the
	// caller.
	Members() []MemberStatus
	// Shards returns who has which partition, and the layout changes under way.
	Shards() ShardsStatus
	// Leave makes a member give away what it has and go. It returns when the cluster knows;
	// Members and Shards show how far it is. Remove forgets a member that is gone for good;
	// one that is alive only with force. The errors wrap catalog.ErrNotFound for an unknown
	// member and catalog.ErrConflict for a refusal, with what to do about it.
	Leave(ctx context.Context, name string) error
	Remove(ctx context.Context, name string, force bool) error

	// Snapshot writes the copies of this node to its disk and returns when they are there.
	// The error wraps catalog.ErrConflict when there is no folder for it, or another one is
	// being written.
	Snapshot(ctx context.Context) (SnapshotResult, error)
}

// Reasons of Cluster.Ready that clients of other indexers know.
const (
	ReasonRecovering     = "recovering_from_peer"
	ReasonInitialWorkers = "waiting_for_min_initial_workers"
)

// ErrUnavailable is wrapped by errors of a Cluster that may go away by themselves: no
// leader, no quorum, shutting down. The router answers 503.
var ErrUnavailable = errors.New("unavailable")

// Searcher answers the questions of one request at a time.
type Searcher interface {
	// Begin starts a request: its questions share a deadline, and end with ctx.
	Begin(ctx context.Context)
	indexer.Reader
	// Prefixes appends what each row's slot holds of the query; the depth of a row is how
	// far its tier walk gets, as far as that is known.
	Prefixes(q indexer.Query, rows []indexer.Row, dst []indexer.Prefix) []indexer.Prefix
	// Pin returns the map index under which the last question was answered; Cluster.View
	// is at or above it. A slot of the answer belongs to the life that has it in a view
	// taken since, if that life began at or before the pin; else to nobody.
	Pin() uint64
	// Completeness ends the request and says what its answers may lack. A node that is its
	// whole cluster returns the zero value. The error, which wraps ErrUnavailable, says that
	// there is no answer at all: it would be stale, and such ones are to be refused.
	Completeness() (Completeness, error)
}

// Completeness says what is missing from an answer (promise 3: it never silently looks
// complete).
type Completeness struct {
	// Partial: a part of the cluster did not answer; Missing names it.
	Partial bool
	Missing []string
	// Stale: the node, or one that it asked, cannot prove that its map is current. MapAge
	// is how old that may be; 0 = not known.
	Stale  bool
	MapAge time.Duration
}

// NodeStatus is a snapshot of a node for /status and /metrics.
type NodeStatus struct {
	Node       string // name of the node, "" when it has none
	Version    string
	MinWorkers int // workers that the node waits for before it is ready, 0 = none
	Index      indexer.Stats
	Events     EventCounts
	Lag        Histogram // from the engine's clock at publishing to the batch applied, in seconds
	Cluster    ClusterStatus
	Search     SearchStatus
	// Peers is what goes over the links to other nodes, by name; empty when alone.
	Peers []PeerTraffic
}

// EventCounts counts engine events since the node began.
type EventCounts struct {
	// Applied counts events by what they say and what became of them.
	Applied map[EventResult]uint64
	// DuplicateStores counts stores that changed nothing.
	DuplicateStores uint64
	// UnknownRemoves counts removed hashes that were not held, in the device tier and
	// in the tiers below it.
	UnknownRemoves, UnknownLowerRemoves uint64
	// CapacityExhausted counts stores that found no slot.
	CapacityExhausted uint64
}

// EventResult is one combination of labels.
type EventResult struct {
	Type   string // "stored", "removed", "cleared"
	Status string // "ok", "parent_block_not_found", "block_not_found", "invalid_block", ...
}

// Histogram is a snapshot of a cumulative histogram.
type Histogram struct {
	Bounds []float64 // upper bounds, ascending, without +Inf
	Counts []uint64  // observations at or below each bound
	Count  uint64
	Sum    float64
}
