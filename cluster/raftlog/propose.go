package raftlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/state"
)

// Propose implements cluster.Log. On a follower the command goes to the leader. It
// returns once this server has applied the entry, so that whoever proposed reads its
// own write.
func (l *Log) Propose(ctx context.Context, c state.Command) (state.Result, error) {
	raw, err := c.Encode()
	if err != nil {
		return state.Result{}, err
	}
	r, err := l.Serve(ctx, raw)
	if errors.Is(err, ErrNoLeader) {
		leader, ok := l.Leader()
		if !ok || leader == raft.ServerID(l.cfg.ServerID) || l.fwd == nil {
			return state.Result{}, err
		}
		r, err = l.fwd.Forward(ctx, leader, raw)
	}
	if err != nil {
		return state.Result{}, err
	}
	return r, l.WaitApplied(ctx, r.Index)
}

// Serve proposes an encoded command on the leader: it is what a forwarded command ends
// in. On any other server it fails with ErrNoLeader.
func (l *Log) Serve(ctx context.Context, raw []byte) (state.Result, error) {
	if err := l.current(ctx); err != nil {
		return state.Result{}, err
	}
	timeout := l.cfg.ApplyTimeout
	if d, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(d))
	}
	if err := ctx.Err(); err != nil || timeout <= 0 { // raft takes 0 for no limit
		return state.Result{}, cmp.Or(err, context.DeadlineExceeded)
	}
	f := l.raft.Apply(raw, timeout)
	switch err := f.Error(); {
	case err == nil:
		return f.Response().(state.Result), nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return state.Result{}, ErrNoLeader
	case errors.Is(err, raft.ErrLeadershipLost), errors.Is(err, raft.ErrRaftShutdown):
		return state.Result{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	default: // not enqueued in time, or the entry could not be stored
		return state.Result{}, fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
	}
}

// Lead proposes a command if this server leads, and never forwards it: for what only a
// leader may decide. Otherwise it is like Propose.
func (l *Log) Lead(ctx context.Context, c state.Command) (state.Result, error) {
	raw, err := c.Encode()
	if err != nil {
		return state.Result{}, err
	}
	r, err := l.Serve(ctx, raw)
	if err != nil {
		return state.Result{}, err
	}
	return r, l.WaitApplied(ctx, r.Index)
}

// current makes sure, once for each term, that this leader's state machine has applied
// everything committed before its term. On other servers it fails with ErrNoLeader.
func (l *Log) current(ctx context.Context) error {
	if l.raft.State() != raft.Leader {
		return ErrNoLeader
	}
	term := l.raft.CurrentTerm()
	var done uint64
	select {
	case done = <-l.lead:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNoLeader, ctx.Err())
	}
	defer func() { l.lead <- done }()
	if done == term {
		return nil
	}
	if err := await(ctx, l.raft.Barrier(l.cfg.ApplyTimeout)); err != nil {
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	done = term
	return nil
}

// ReadIndex returns a log index such that a state that has applied it is no older than
// this call (rule Q3). Only the leader can answer; others get ErrNoLeader.
func (l *Log) ReadIndex(ctx context.Context) (uint64, error) {
	if err := l.current(ctx); err != nil {
		return 0, err
	}
	index := l.raft.CommitIndex()
	if err := await(ctx, l.raft.VerifyLeader()); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	return index, nil
}

// await returns the outcome of a raft future, or ctx's error: in rare changes of leadership
// the library never answers one.
func await(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }() // ends with raft at the latest, or with the future
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WaitApplied returns when the state of this server has all commands up to a log index.
// Raft's own count of applied entries only says that they are on their way to the state
// machine; entries that are no commands never get there.
func (l *Log) WaitApplied(ctx context.Context, index uint64) error {
	for {
		changed := l.changed()
		if has := l.View().Index; has >= index || l.raft.AppliedIndex() >= index && !l.commandsIn(has+1, index) {
			return nil
		}
		if err := l.pause(ctx, changed); err != nil {
			return fmt.Errorf("wait for log index %d: %w", index, err)
		}
	}
}

// commandsIn reports whether the log has a command between two indices. Entries that are
// not stored any more are in a snapshot, and so in the state.
func (l *Log) commandsIn(from, to uint64) bool {
	for i := to; i >= from && i > 0; i-- {
		var e raft.Log
		if err := l.entries.GetLog(i, &e); err != nil {
			return !errors.Is(err, raft.ErrLogNotFound)
		}
		if e.Type == raft.LogCommand {
			return true
		}
	}
	return false
}

// pause waits for a change of the state, or a little: entries without effect on the
// state (barriers, configurations) wake nobody.
func (l *Log) pause(ctx context.Context, changed <-chan struct{}) error {
	t := time.NewTimer(20 * time.Millisecond)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-changed:
	case <-t.C:
	}
	return nil
}
