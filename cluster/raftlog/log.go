package raftlog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/state"
)

// Log is one server of the replicated log. Its methods may be called from any
// goroutine after Open.
type Log struct {
	cfg     Config
	log     *slog.Logger
	fsm     *fsm
	entries raft.LogStore
	raft    *raft.Raft
	fwd     Forwarder

	applied struct { // wakes those who wait for an index
		sync.Mutex
		ch chan struct{}
	}
	// lead holds the term for which a barrier has been applied here. It is a channel of
	// one and not a lock, since whoever has it may wait for a quorum.
	lead chan uint64
}

// Open starts raft on its stores; it may replay a log from disk before it returns.
// Close must be called.
func Open(cfg Config, stores Stores, transport raft.Transport, fwd Forwarder) (*Log, error) {
	cfg.applyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	l := &Log{cfg: cfg, log: cfg.Logger.With("component", "raft"), fwd: fwd, lead: make(chan uint64, 1), entries: stores.Log}
	l.lead <- 0
	l.fsm = newFSM(l.log)
	l.fsm.subscribe(func(*state.View) { l.wake() })
	rc := raft.DefaultConfig()
	rc.LocalID = raft.ServerID(cfg.ServerID)
	rc.HeartbeatTimeout, rc.ElectionTimeout = cfg.Heartbeat, cfg.Heartbeat
	rc.LeaderLeaseTimeout, rc.CommitTimeout = cfg.Heartbeat/2, cfg.Heartbeat/20
	rc.SnapshotThreshold, rc.TrailingLogs = cfg.SnapshotEvery, cfg.KeepLogs
	rc.ShutdownOnRemove = false // a process ends as a whole, when it hears of its removal
	rc.Logger = HCLog(l.log)
	r, err := raft.NewRaft(rc, l.fsm, stores.Log, stores.Stable, stores.Snapshots, newQuiet(transport, cfg.Heartbeat/4))
	if err != nil {
		return nil, fmt.Errorf("open raft log: %w", err)
	}
	l.raft = r
	return l, nil
}

// Close stops raft. It does not close the stores.
func (l *Log) Close() error {
	if err := l.raft.Shutdown().Error(); err != nil {
		return fmt.Errorf("stop raft: %w", err)
	}
	return nil
}

// Found makes this server the first voter of a new cluster and applies the first
// entries. It fails with ErrFounded on a data folder that has been used, unless all that
// ever happened there is a founding that did not come to its first entry.
func (l *Log) Found(ctx context.Context, addr raft.ServerAddress, first ...state.Command) error {
	err := l.raft.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{
		ID: raft.ServerID(l.cfg.ServerID), Address: addr, Suffrage: raft.Voter,
	}}}).Error()
	if errors.Is(err, raft.ErrCantBootstrap) {
		err = l.unfinished(ctx)
	}
	if err != nil {
		return fmt.Errorf("found cluster: %w", err)
	}
	for _, c := range first {
		if err := l.proposeUntilLed(ctx, c); err != nil {
			return fmt.Errorf("found cluster: %w", err)
		}
	}
	return nil
}

// Used reports whether this server's stores held anything when they were opened, or do
// by now.
func (l *Log) Used() bool { return l.raft.LastIndex() > 0 || l.raft.CurrentTerm() > 0 }

// unfinished returns nil if this server is its whole group and leads it, and the log
// does not found a cluster: the process died between the two steps of Found.
func (l *Log) unfinished(ctx context.Context) error {
	for {
		changed := l.changed()
		servers, err := l.Servers()
		if err != nil {
			return err
		}
		if len(servers) != 1 || servers[0].ID != raft.ServerID(l.cfg.ServerID) || l.View().Cluster.ClusterID != "" {
			return ErrFounded
		}
		if l.Leads(ctx) {
			if l.View().Cluster.ClusterID != "" {
				return ErrFounded
			}
			return nil
		}
		if err := l.pause(ctx, changed); err != nil {
			return err
		}
	}
}

// proposeUntilLed repeats a command while the first election is under way.
func (l *Log) proposeUntilLed(ctx context.Context, c state.Command) error {
	for {
		changed := l.changed()
		r, err := l.Propose(ctx, c)
		switch {
		case err == nil:
			return r.Err()
		case !errors.Is(err, ErrNoLeader) && !errors.Is(err, ErrUnknownOutcome):
			return err
		}
		if err := l.pause(ctx, changed); err != nil {
			return err
		}
	}
}

// View returns the state as this server has applied it.
func (l *Log) View() *state.View { return l.fsm.view() }

// Subscribe implements cluster.Log.
func (l *Log) Subscribe(fn func(*state.View)) { l.fsm.subscribe(fn) }

// Leader returns the server that leads, as far as this one knows.
func (l *Log) Leader() (raft.ServerID, bool) {
	_, id := l.raft.LeaderWithID()
	return id, id != ""
}

// Leads reports whether this server leads and its state machine has caught up with its
// term. It may wait for the first barrier of the term.
func (l *Log) Leads(ctx context.Context) bool { return l.current(ctx) == nil }

// CommitIndex returns the last log index that this server knows to be committed.
func (l *Log) CommitIndex() uint64 { return l.raft.CommitIndex() }

// LastIndex returns the last log index that this server has stored, committed or not.
func (l *Log) LastIndex() uint64 { return l.raft.LastIndex() }

// LeaderCh delivers changes of this server's leadership; changes may be merged.
func (l *Log) LeaderCh() <-chan bool { return l.raft.LeaderCh() }

// Lag returns how many entries this server has stored and not applied.
func (l *Log) Lag() uint64 {
	last, applied := l.raft.LastIndex(), l.raft.AppliedIndex()
	return last - min(last, applied)
}

// AppliedIndex returns the last log index that this server has applied.
func (l *Log) AppliedIndex() uint64 { return l.raft.AppliedIndex() }

func (l *Log) wake() {
	l.applied.Lock()
	defer l.applied.Unlock()
	if l.applied.ch != nil {
		close(l.applied.ch)
		l.applied.ch = nil
	}
}

func (l *Log) changed() <-chan struct{} {
	l.applied.Lock()
	defer l.applied.Unlock()
	if l.applied.ch == nil {
		l.applied.ch = make(chan struct{})
	}
	return l.applied.ch
}
