package raftlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/state"
)

// MaxVoters bounds the voters: five survive two deaths, and more only slow the log down.
const MaxVoters = 5

// Errors of the log.
var (
	// ErrNoLeader: nobody leads at the moment; try again.
	ErrNoLeader = errors.New("no leader")
	// ErrUnknownOutcome: the command may or may not be applied; propose it again with
	// the same id.
	ErrUnknownOutcome = errors.New("outcome not known")
	// ErrFounded: a node with data cannot found a cluster.
	ErrFounded = errors.New("this data folder already belongs to a cluster")
)

// Stores are where raft keeps its things. Package cluster/disk opens them in a folder;
// simulations use memory.
type Stores struct {
	Log       raft.LogStore
	Stable    raft.StableStore
	Snapshots raft.SnapshotStore
}

// Forwarder carries a command of a follower to the leader and brings its result.
type Forwarder interface {
	Forward(ctx context.Context, leader raft.ServerID, command []byte) (state.Result, error)
}

// Config of a Log. The zero value of every duration means its default.
type Config struct {
	ServerID string
	// Heartbeat is raft's heartbeat and election time-out. Default 1 s.
	Heartbeat time.Duration
	// SnapshotEvery and KeepLogs are raft's snapshot threshold and trailing logs.
	// Defaults 1,024 and 1,024: entries are few and small.
	SnapshotEvery, KeepLogs uint64
	// ApplyTimeout bounds the enqueueing of one command. Default 5 s.
	ApplyTimeout time.Duration
	Logger       *slog.Logger
}

func (c *Config) applyDefaults() {
	if c.Heartbeat == 0 {
		c.Heartbeat = time.Second
	}
	if c.SnapshotEvery == 0 {
		c.SnapshotEvery = 1024
	}
	if c.KeepLogs == 0 {
		c.KeepLogs = 1024
	}
	if c.ApplyTimeout == 0 {
		c.ApplyTimeout = 5 * time.Second
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Validate reports what makes no sense.
func (c Config) Validate() error {
	var errs []error
	if c.ServerID == "" {
		errs = append(errs, errors.New("raft: no server id"))
	}
	if c.Heartbeat < 0 || c.ApplyTimeout < 0 {
		errs = append(errs, fmt.Errorf("raft: negative time: heartbeat %v, apply %v", c.Heartbeat, c.ApplyTimeout))
	}
	return errors.Join(errs...)
}
