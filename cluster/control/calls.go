package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/transport/link"
)

// The calls between nodes.
//
//	log.propose    command, encoded      -> state.Result (msgpack)
//	log.readindex  identity (msgpack)    -> log index, 8 bytes little-endian
//	log.status     -                     -> status (msgpack)
//	control.why    identity (msgpack)    -> why the node is not taken in, as text, or
//	                                        ErrRemoved
//	control.votes  identity (msgpack)    -> one byte, 1 = that server votes in the log
const (
	methodPropose   = "log.propose"
	methodReadIndex = "log.readindex"
	methodStatus    = "log.status"
	methodWhy       = "control.why"
	methodVotes     = "control.votes"
)

// identity is the process that asks.
type identity struct {
	ServerID string
	Boot     uint64
}

// status is how far a node's log is.
type status struct {
	ServerID  string
	Applied   uint64
	Committed uint64 // the last log index that it knows to be committed
	Removed   bool   // it knows that it was removed
}

// Forwarder implements raftlog.Forwarder by calls. It exists before the log does, since
// the log is opened with it; Serve completes it.
type Forwarder struct {
	calls  Calls
	gossip Gossip
	log    atomic.Pointer[raftlog.Log]
}

// NewForwarder returns a forwarder that finds the leader's name in gossip, and in the
// log once it has one.
func NewForwarder(calls Calls, gossip Gossip) *Forwarder {
	return &Forwarder{calls: calls, gossip: gossip}
}

// Serve answers other nodes' commands with a log.
func (f *Forwarder) Serve(log *raftlog.Log) {
	f.log.Store(log)
	f.calls.Handle(methodPropose, func(ctx context.Context, _ string, req []byte) ([]byte, error) {
		r, err := log.Serve(ctx, req)
		if err != nil {
			return nil, err
		}
		return msgpack.Marshal(&r)
	})
}

// Forward implements raftlog.Forwarder.
func (f *Forwarder) Forward(ctx context.Context, leader raft.ServerID, command []byte) (state.Result, error) {
	name, ok := f.name(string(leader))
	if !ok {
		return state.Result{}, fmt.Errorf("%w: nobody knows the address of server %s", raftlog.ErrNoLeader, leader)
	}
	body, err := f.calls.Call(ctx, name, methodPropose, command)
	if err != nil {
		return state.Result{}, forwardError(err)
	}
	var r state.Result
	if err := msgpack.Unmarshal(body, &r); err != nil {
		return state.Result{}, fmt.Errorf("result of %s from %s: %w", methodPropose, name, err)
	}
	return r, nil
}

// forwardError sorts the failures of a forwarded command: not carried out, outcome not
// known, or final.
func forwardError(err error) error {
	var remote *link.CallError
	switch {
	case errors.Is(err, raftlog.ErrNoLeader), errors.Is(err, raftlog.ErrUnknownOutcome), errors.Is(err, link.ErrTooLarge):
		return err
	case errors.Is(err, link.ErrPeer), errors.Is(err, link.ErrBusy), errors.Is(err, link.ErrMethod), errors.Is(err, link.ErrClosed):
		return fmt.Errorf("%w: %w", raftlog.ErrNoLeader, err)
	case errors.As(err, &remote) && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled):
		return err
	}
	return fmt.Errorf("%w: %w", raftlog.ErrUnknownOutcome, err)
}

// name finds the member that has a server id.
func (f *Forwarder) name(serverID string) (string, bool) {
	if log := f.log.Load(); log != nil {
		for _, m := range log.View().Members {
			if m.ServerID == serverID {
				return m.Name, true
			}
		}
	}
	for _, p := range f.gossip.Peers() {
		if p.ServerID == serverID {
			return p.Name, true
		}
	}
	return "", false
}

// ReadIndex returns a log index such that a state that has applied it is no older than
// this call (rule Q3). It asks the leader; without one it fails with
// raftlog.ErrNoLeader, and with ErrRemoved when this process is no member any more.
func (c *Control) ReadIndex(ctx context.Context) (uint64, error) {
	index, err := c.deps.Log.ReadIndex(ctx)
	if err == nil || !errors.Is(err, raftlog.ErrNoLeader) {
		return index, err
	}
	name, err := c.leaderName()
	if err != nil {
		return 0, err
	}
	body, err := c.ask(ctx, name, methodReadIndex)
	if errors.Is(err, ErrRemoved) {
		c.noteRemoved()
	}
	if err != nil {
		return 0, err
	}
	if len(body) != 8 {
		return 0, fmt.Errorf("answer of %s from %s: %d bytes", methodReadIndex, name, len(body))
	}
	return binary.LittleEndian.Uint64(body), nil
}

// leaderName returns the name of another node that leads.
func (c *Control) leaderName() (string, error) {
	id, ok := c.deps.Log.Leader()
	if !ok || string(id) == c.cfg.Self.ServerID {
		return "", raftlog.ErrNoLeader
	}
	for _, m := range c.View().Members {
		if m.ServerID == string(id) {
			return m.Name, nil
		}
	}
	for _, p := range c.deps.Gossip.Peers() {
		if p.ServerID == string(id) {
			return p.Name, nil
		}
	}
	return "", fmt.Errorf("%w: nobody knows the address of server %s", raftlog.ErrNoLeader, id)
}

// ask calls a method that wants to know who asks.
func (c *Control) ask(ctx context.Context, name, method string) ([]byte, error) {
	req, err := msgpack.Marshal(&identity{c.cfg.Self.ServerID, c.cfg.Self.Boot})
	if err != nil {
		return nil, err
	}
	return c.deps.Calls.Call(ctx, name, method, req)
}

func (c *Control) serveReadIndex(ctx context.Context, _ string, req []byte) ([]byte, error) {
	var who identity
	if err := msgpack.Unmarshal(req, &who); err != nil {
		return nil, err
	}
	index, err := c.deps.Log.ReadIndex(ctx)
	if err != nil {
		return nil, err
	}
	if c.View().WasRemoved(who.ServerID, who.Boot) {
		return nil, ErrRemoved
	}
	return binary.LittleEndian.AppendUint64(nil, index), nil
}

func (c *Control) askStatus(ctx context.Context, name string) (status, error) {
	body, err := c.deps.Calls.Call(ctx, name, methodStatus, nil)
	if err != nil {
		return status{}, err
	}
	var s status
	if err := msgpack.Unmarshal(body, &s); err != nil {
		return status{}, fmt.Errorf("answer of %s from %s: %w", methodStatus, name, err)
	}
	return s, nil
}

func (c *Control) serveStatus(context.Context, string, []byte) ([]byte, error) {
	s := status{ServerID: c.cfg.Self.ServerID, Applied: c.deps.Log.AppliedIndex(), Committed: c.deps.Log.CommitIndex()}
	s.Removed = c.isRemoved()
	return msgpack.Marshal(&s)
}

// serveWhy answers with the reason, or with nothing when the node is or will be taken in.
// Everybody knows of removals, and only the leader of the rest.
func (c *Control) serveWhy(ctx context.Context, _ string, req []byte) ([]byte, error) {
	var who identity
	if err := msgpack.Unmarshal(req, &who); err != nil {
		return nil, err
	}
	if c.View().WasRemoved(who.ServerID, who.Boot) {
		return nil, ErrRemoved
	}
	if !c.deps.Log.Leads(ctx) {
		return nil, raftlog.ErrNoLeader
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return []byte(c.mu.refused[who.ServerID]), nil
}

// serveVotes says what the leader knows of the vote of a server.
func (c *Control) serveVotes(ctx context.Context, _ string, req []byte) ([]byte, error) {
	var who identity
	if err := msgpack.Unmarshal(req, &who); err != nil {
		return nil, err
	}
	if !c.deps.Log.Leads(ctx) {
		return nil, raftlog.ErrNoLeader
	}
	votes, err := c.hasVote(who.ServerID)
	if err != nil {
		return nil, err
	}
	if votes {
		return []byte{1}, nil
	}
	return []byte{0}, nil
}
