package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/plan"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/transport/link"
)

// Errors of this package.
var (
	// ErrRemoved: this process was a member and has been removed. It must stop serving;
	// its data folder may be used by another process, which joins empty.
	ErrRemoved = errors.New("this node was removed from the cluster")
	// ErrLeft is the ErrRemoved of a member that has given away what it had, as was asked.
	ErrLeft = fmt.Errorf("it has left: %w", ErrRemoved)
	// ErrRefused: the cluster does not take this node in; the text says why.
	ErrRefused = errors.New("refused by the cluster")
	// ErrAlive: a member that is alive is not removed without force.
	ErrAlive = errors.New("the member is alive")
	// ErrMajority: without that member less than a majority of the voters would be alive.
	ErrMajority = errors.New("the others are no majority of the voters")
	// ErrNotMember: there is no such member.
	ErrNotMember = errors.New("no such member")
	// ErrMayNotFound: this node must not found a cluster.
	ErrMayNotFound = errors.New("may not found a cluster")
)

// CallErrors are the errors that calls of this package carry from node to node, for
// link.Config.Errors.
func CallErrors() map[string]error {
	return map[string]error{
		"no-leader": raftlog.ErrNoLeader, "unknown-outcome": raftlog.ErrUnknownOutcome, "removed": ErrRemoved,
	}
}

// Config of a Control. Zero durations mean their defaults.
type Config struct {
	// Self is this node as it introduces itself; Boot is its present process.
	Self state.Member
	// ClusterID is the cluster that this node belongs to; "" = not known yet (it joins).
	ClusterID string
	// Protocol must be the same on all nodes.
	Protocol int
	// Grace is how long a member is dead before its copies are made elsewhere. Default
	// 60 s: longer than a restart, shorter than what a second death may wait for.
	Grace time.Duration
	// StartGrace is how long after its start a node holds members for alive that it has
	// not met in gossip. Default 10 s: a join of gossip and a little.
	StartGrace time.Duration
	// Settle is how long after the last arrival of a member copies for balance begin.
	// Default 2 s.
	Settle time.Duration
	// Tick is how often the duties are looked at when nothing wakes them. Default 200 ms.
	Tick time.Duration
	// MaxMoves bounds the copies being made at the same time. Default plan.DefaultMaxMoves.
	MaxMoves int
	Logger   *slog.Logger
}

func (c *Config) applyDefaults() {
	for d, v := range map[*time.Duration]time.Duration{
		&c.Grace: time.Minute, &c.StartGrace: 10 * time.Second, &c.Settle: 2 * time.Second, &c.Tick: 200 * time.Millisecond,
	} {
		if *d == 0 {
			*d = v
		}
	}
	if c.MaxMoves == 0 {
		c.MaxMoves = plan.DefaultMaxMoves
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports what makes no sense.
func (c Config) Validate() error {
	var errs []error
	if c.Self.Name == "" || c.Self.ServerID == "" || c.Self.Boot == 0 || c.Self.Raft == "" {
		errs = append(errs, fmt.Errorf("control: a node needs a name, a server id, a boot id and a raft address (%q, %q, %d, %q)", c.Self.Name, c.Self.ServerID, c.Self.Boot, c.Self.Raft))
	}
	if c.Grace < 0 || c.StartGrace < 0 || c.Settle < 0 || c.Tick < 0 || c.MaxMoves < 0 {
		errs = append(errs, fmt.Errorf("control: negative: grace %v, start grace %v, settle %v, tick %v, moves %d", c.Grace, c.StartGrace, c.Settle, c.Tick, c.MaxMoves))
	}
	return errors.Join(errs...)
}

// Peer and Meta are those of package gossip.
type (
	Peer = gossip.Peer
	Meta = gossip.Meta
)

// Gossip is who is there, as a hint; *gossip.Gossip is one. Changed is read by Run alone.
type Gossip interface {
	// Peers returns all nodes that gossip knows, also those that it holds for dead.
	Peers() []gossip.Peer
	// Changed delivers when Peers may have changed; signals are merged.
	Changed() <-chan struct{}
}

// Calls are the calls of a link.Hub.
type Calls interface {
	Call(ctx context.Context, peer, method string, req []byte) ([]byte, error)
	Handle(method string, fn link.CallHandler)
}

// Deps is what a Control works with. Log, Gossip and Calls are required.
type Deps struct {
	Log    *raftlog.Log
	Gossip Gossip
	Calls  Calls
	// LowSpace reports that the disk of the log is nearly full.
	LowSpace func() bool
	// Weights returns the measured weight of every partition, or nil.
	Weights func() []float64
}
