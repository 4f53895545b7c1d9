package sim

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// raftTimeout bounds one message of raft; a snapshot may take longer.
const raftTimeout = 500 * time.Millisecond

var errUnreachable = errors.New("not reachable")

// raftNet is where raft's servers find each other. An address is the name of a node. As on
// raftlog.Wire, a message reaches nobody but the server that is meant.
type raftNet struct {
	net *network
	mu  struct {
		sync.Mutex
		at map[raft.ServerAddress]*raftTransport
	}
}

func newRaftNet(net *network) *raftNet {
	r := &raftNet{net: net}
	r.mu.at = map[raft.ServerAddress]*raftTransport{}
	return r
}

// raftTransport implements raft.Transport for one process. Each direction of a message
// has a way of its own, unlike those of raft.InmemTransport.
type raftTransport struct {
	all      *raftNet
	name     string
	id       raft.ServerID
	consumer chan raft.RPC
	closed   chan struct{}
	once     sync.Once
}

var (
	_ raft.Transport   = (*raftTransport)(nil)
	_ raft.WithPreVote = (*raftTransport)(nil)
	_ raft.WithClose   = (*raftTransport)(nil)
)

// listen makes a process of a node reachable in place of an earlier one.
func (r *raftNet) listen(name, serverID string) *raftTransport {
	t := &raftTransport{all: r, name: name, id: raft.ServerID(serverID), consumer: make(chan raft.RPC, 64), closed: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.at[raft.ServerAddress(name)] = t
	return t
}

// Close implements raft.WithClose.
func (t *raftTransport) Close() error {
	t.once.Do(func() { close(t.closed) })
	t.all.mu.Lock()
	defer t.all.mu.Unlock()
	if t.all.mu.at[raft.ServerAddress(t.name)] == t {
		delete(t.all.mu.at, raft.ServerAddress(t.name))
	}
	return nil
}

// travel waits as long as a message takes.
func (t *raftTransport) travel(from, to string, deadline <-chan time.Time) error {
	d, ok := t.all.net.way(from, to)
	var arrived <-chan time.Time
	if ok {
		timer := time.NewTimer(d)
		defer timer.Stop()
		arrived = timer.C
	}
	select {
	case <-arrived:
		return nil
	case <-deadline:
		return fmt.Errorf("raft from %s to %s: %w", from, to, errUnreachable)
	case <-t.closed:
		return raft.ErrTransportShutdown
	}
}

// call sends a message and waits for its answer.
func call[T any](t *raftTransport, id raft.ServerID, to raft.ServerAddress, command any, data io.Reader, timeout time.Duration, out *T) error {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	if err := t.travel(t.name, string(to), timer.C); err != nil {
		return err
	}
	t.all.mu.Lock()
	peer := t.all.mu.at[to]
	t.all.mu.Unlock()
	if peer == nil || peer.id != id {
		return fmt.Errorf("raft from %s to %s: %w", t.name, to, errUnreachable)
	}
	answer := make(chan raft.RPCResponse, 1)
	late := fmt.Errorf("raft from %s to %s: no answer", t.name, to)
	select {
	case peer.consumer <- raft.RPC{Command: command, Reader: data, RespChan: answer}:
	case <-peer.closed:
		return late
	case <-t.closed:
		return raft.ErrTransportShutdown
	case <-timer.C:
		return late
	}
	select {
	case r := <-answer:
		if err := t.travel(string(to), t.name, timer.C); err != nil {
			return err
		}
		if r.Error != nil {
			return r.Error
		}
		*out = *r.Response.(*T)
		return nil
	case <-peer.closed:
		return late
	case <-t.closed:
		return raft.ErrTransportShutdown
	case <-timer.C:
		return late
	}
}

// Consumer implements raft.Transport.
func (t *raftTransport) Consumer() <-chan raft.RPC { return t.consumer }

// LocalAddr implements raft.Transport.
func (t *raftTransport) LocalAddr() raft.ServerAddress { return raft.ServerAddress(t.name) }

// AppendEntriesPipeline implements raft.Transport: without, raft sends one after another.
func (t *raftTransport) AppendEntriesPipeline(raft.ServerID, raft.ServerAddress) (raft.AppendPipeline, error) {
	return nil, raft.ErrPipelineReplicationNotSupported
}

// AppendEntries implements raft.Transport.
func (t *raftTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, a *raft.AppendEntriesRequest, r *raft.AppendEntriesResponse) error {
	return call(t, id, to, a, nil, raftTimeout, r)
}

// RequestVote implements raft.Transport.
func (t *raftTransport) RequestVote(id raft.ServerID, to raft.ServerAddress, a *raft.RequestVoteRequest, r *raft.RequestVoteResponse) error {
	return call(t, id, to, a, nil, raftTimeout, r)
}

// RequestPreVote implements raft.WithPreVote.
func (t *raftTransport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, a *raft.RequestPreVoteRequest, r *raft.RequestPreVoteResponse) error {
	return call(t, id, to, a, nil, raftTimeout, r)
}

// InstallSnapshot implements raft.Transport.
func (t *raftTransport) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, a *raft.InstallSnapshotRequest, r *raft.InstallSnapshotResponse, data io.Reader) error {
	return call(t, id, to, a, data, 10*raftTimeout, r)
}

// TimeoutNow implements raft.Transport.
func (t *raftTransport) TimeoutNow(id raft.ServerID, to raft.ServerAddress, a *raft.TimeoutNowRequest, r *raft.TimeoutNowResponse) error {
	return call(t, id, to, a, nil, raftTimeout, r)
}

// EncodePeer implements raft.Transport.
func (t *raftTransport) EncodePeer(_ raft.ServerID, a raft.ServerAddress) []byte { return []byte(a) }

// DecodePeer implements raft.Transport.
func (t *raftTransport) DecodePeer(b []byte) raft.ServerAddress { return raft.ServerAddress(b) }

// SetHeartbeatHandler implements raft.Transport: there is no fast way.
func (t *raftTransport) SetHeartbeatHandler(func(raft.RPC)) {}
