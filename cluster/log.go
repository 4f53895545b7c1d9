package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"

	"github.com/kvcluster/kvcluster/cluster/state"
)

// Log is the way of a command into the replicated state.
type Log interface {
	// Propose applies a command and returns its outcome once this node has applied it.
	// An error means that the outcome is not known or that nothing was applied; the
	// command may be proposed again with the same id.
	Propose(ctx context.Context, c state.Command) (state.Result, error)
	// Subscribe calls fn with every new view, in the order of the log, one at a time,
	// beginning with the present one. fn must not propose synchronously.
	Subscribe(fn func(*state.View))
}

// SoloLog is the log of a node that is its whole cluster: a counter and a lock. Nothing
// is kept on disk; engines' replays fill a restarted node.
type SoloLog struct {
	mu struct {
		sync.Mutex
		state *state.State
		index uint64
		fns   []func(*state.View)
	}
}

// NewSoloLog founds a cluster of one member that owns every partition.
func NewSoloLog(member state.Member, partitions uint32) (*SoloLog, error) {
	l := &SoloLog{}
	l.mu.state = state.New()
	moves := make([]state.Move, partitions)
	for p := range moves {
		moves[p] = state.Move{Partition: uint32(p), To: member.Name}
	}
	for _, c := range []state.Command{
		{Found: &state.Founding{ClusterID: rand.Text(), Partitions: partitions, Replicas: 1}},
		{Introduce: &member},
		{Begin: &state.Begin{Moves: moves}},
	} {
		r, err := l.Propose(context.Background(), c)
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return nil, fmt.Errorf("found a cluster of one: %w", err)
		}
	}
	return l, nil
}

// Propose implements Log.
func (l *SoloLog) Propose(ctx context.Context, c state.Command) (state.Result, error) {
	if err := ctx.Err(); err != nil {
		return state.Result{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.index++
	r := l.mu.state.Apply(l.mu.index, c)
	if r.Code == state.OK {
		for _, fn := range l.mu.fns {
			fn(l.mu.state.View())
		}
	}
	return r, nil
}

// Subscribe implements Log.
func (l *SoloLog) Subscribe(fn func(*state.View)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.fns = append(l.mu.fns, fn)
	fn(l.mu.state.View())
}

// newCommandID returns the random id that makes a command idempotent.
func newCommandID() (id [16]byte) {
	_, _ = rand.Read(id[:]) // crypto/rand.Read never fails (it aborts the process)
	return id
}
