package search

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// Method is the name of the call between nodes.
const Method = "search.read"

// StaleReads says what becomes of an answer that this node cannot prove to be current.
type StaleReads string

// The choices: a routing hint that says what it is, or none.
const (
	StaleMark   StaleReads = "mark"
	StaleRefuse StaleReads = "refuse"
)

// ErrStale is wrapped by the error of a refused answer.
var ErrStale = errors.New("map may be stale")

// Config of a Search. Zero means the default.
type Config struct {
	Name string // of this member
	// Boot is the boot id of this process: ownership under another one is that of a
	// process that is gone (rule Q4). Not 0.
	Boot uint64
	// Deadline bounds one request, all its calls and retries included. Default 100 ms:
	// longer than any healthy call, shorter than what a gateway would notice.
	Deadline time.Duration
	// Hedge is after how long a second owner is asked beside the first. 0 = after the 95th
	// percentile of recent calls (between 1 ms and half of Deadline); negative = only when
	// half of Deadline has passed.
	Hedge time.Duration
	// TServe is how old the log that a read is judged by may be (rule I6). It must be the
	// same on all nodes, above three elections. Default 5 s.
	TServe     time.Duration
	StaleReads StaleReads // default StaleMark
	Logger     *slog.Logger

	broken mutant // for tests
}

// mutant switches off a rule, to see that the tests find it missing.
type mutant struct {
	leaseFirst bool // check the lease before the trees are read
	unreadable bool // do not ask which slots are not readable
	lateMark   bool // take the mark for that after the trees were read
	anyOwner   bool // answer for partitions that the log does not call ready here
	otherBoot  bool // answer for what a former process of this node was ready for
	oldView    bool // do not catch up with the answer's map index
	behind     bool // answer before the asker's map index is applied
	noLease    bool // any map counts as current
	whole      bool // say that nothing is missing
}

// Deps is what a Search works with. All functions may be called from any goroutine and
// must return soon after the end of their context.
type Deps struct {
	// View is the replicated state as this node has applied it.
	View func() *state.View
	// Index has the trees of this node.
	Index indexer.Index
	// Owner knows which copies of this node may be read.
	Owner Owner
	// Call asks a peer.
	Call func(ctx context.Context, peer, method string, request []byte) ([]byte, error)
	// Handle says who answers calls of a method. fn's request is its own.
	Handle func(method string, fn func(ctx context.Context, peer string, request []byte) ([]byte, error))
	// Alive is a hint that calls to a peer have a chance.
	Alive func(peer string) bool
	// ReadIndex asks the leader for a log index that is no older than the question.
	ReadIndex func(ctx context.Context) (uint64, error)
	// WaitApplied returns when View is at or above a log index.
	WaitApplied func(ctx context.Context, index uint64) error
	// Peek visits what a peer has of a slot in some of the partitions that it owns, and
	// fails if a copy is not readable there.
	Peek func(ctx context.Context, peer string, group indexer.GroupID, slot indexer.Slot, life uint64,
		partitions []indexer.PartitionID, visit func(indexer.PartitionID, indexer.Stretch) error) error
}

// Owner says which copies of this node may be read.
type Owner interface {
	// Mark is taken before the trees are read.
	Mark() uint64
	// Unreadable appends the slots, of those that lives yields with their life, whose copy
	// of the partition was not open here all the time since the mark, is not current at this
	// moment, or was taken over after the map index. It is asked after the trees were read. lives is called at most once.
	Unreadable(dst []indexer.Slot, since, index uint64, g indexer.GroupID, p indexer.PartitionID, lives iter.Seq2[indexer.Slot, uint64]) []indexer.Slot
}

func (c *Config) applyDefaults() {
	if c.Deadline == 0 {
		c.Deadline = 100 * time.Millisecond
	}
	if c.TServe == 0 {
		c.TServe = 5 * time.Second
	}
	if c.StaleReads == "" {
		c.StaleReads = StaleMark
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports everything that makes no sense.
func (c Config) Validate() error {
	c.applyDefaults()
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("search: "+format, args...)) }
	if c.Name == "" || c.Boot == 0 {
		bad("name %q, boot id %d: both are needed", c.Name, c.Boot)
	}
	if c.Deadline < time.Millisecond {
		bad("deadline %v is below 1 ms", c.Deadline)
	}
	if c.TServe < time.Second {
		bad("lease of %v is below 1 s, and so below three elections", c.TServe)
	}
	if c.StaleReads != StaleMark && c.StaleReads != StaleRefuse {
		bad("stale reads %q: want %q or %q", c.StaleReads, StaleMark, StaleRefuse)
	}
	return errors.Join(errs...)
}

func (d Deps) validate() error {
	if d.View == nil || d.Index == nil || d.Owner == nil || d.Call == nil || d.Handle == nil || d.Alive == nil ||
		d.ReadIndex == nil || d.WaitApplied == nil || d.Peek == nil {
		return errors.New("search: a dependency is missing")
	}
	return nil
}
