package member

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvcluster/kvcluster/cluster"
	"github.com/kvcluster/kvcluster/cluster/control"
	"github.com/kvcluster/kvcluster/cluster/fanout"
	"github.com/kvcluster/kvcluster/cluster/owner"
	"github.com/kvcluster/kvcluster/cluster/search"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/transport/link"
)

// ErrRefused: the log refuses what was asked, with a reason.
var ErrRefused = errors.New("refused")

// refusal is an ErrRefused with the text of the log, which says that it refuses.
type refusal struct{ error }

func (r refusal) Unwrap() []error { return []error{ErrRefused, r.error} }

// Node returns the node with its ingest.
func (m *Member) Node() *cluster.Node { return m.node }

// Search returns the reads.
func (m *Member) Search() *search.Search { return m.search }

// Control returns the part in the running of the cluster.
func (m *Member) Control() *control.Control { return m.control }

// Owner returns the copies that other nodes write.
func (m *Member) Owner() *owner.Owner { return m.owner }

// Fanout returns the way of frames to other nodes.
func (m *Member) Fanout() *fanout.Fanout { return m.fanout }

// Links returns what is known of the links.
func (m *Member) Links() map[string]link.PeerStats { return m.hub.PeerStats() }

// Alive reports whether gossip hears of a member.
func (m *Member) Alive(name string) bool { return m.alive(name) }

// Handle says who answers calls of other nodes.
func (m *Member) Handle(method string, fn link.CallHandler) { m.hub.Handle(method, fn) }

// Call asks another node.
func (m *Member) Call(ctx context.Context, peer, method string, req []byte) ([]byte, error) {
	return m.hub.Call(ctx, peer, method, req)
}

// LogLag returns how many log entries this node knows of and has not applied.
func (m *Member) LogLag() uint64 { return m.raft.Lag() }

// BeginLeave has the log note that a member leaves; the leader does the rest.
func (m *Member) BeginLeave(ctx context.Context, name string) error {
	if _, ok := m.control.View().Member(name); !ok {
		return fmt.Errorf("leave: %w: %s", control.ErrNotMember, name)
	}
	r, err := m.control.Propose(ctx, state.Command{Leave: &name})
	if err != nil {
		return err
	}
	if err := r.Err(); err != nil {
		return refusal{err}
	}
	return nil
}
