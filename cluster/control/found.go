package control

import (
	"context"
	"crypto/rand"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// Founding is how a cluster begins.
type Founding struct {
	First      state.Member // this node
	ClusterID  string       // "" = a random one
	Partitions uint32
	Replicas   int
	// Join: this node was told to join a cluster. It never founds one.
	Join bool
}

// Found begins a cluster of one: this node votes, is a member and owns every partition.
// It returns the id of the cluster. It fails with ErrMayNotFound on a node that was told
// to join and while gossip shows a node with data (its cluster is to be joined), and
// with raftlog.ErrFounded on a data folder that belongs to a cluster; a founding that
// was cut short is completed.
func Found(ctx context.Context, log *raftlog.Log, gossip Gossip, f Founding) (string, error) {
	if f.Join {
		return "", fmt.Errorf("%w: this node was told to join one", ErrMayNotFound)
	}
	for _, p := range gossip.Peers() {
		// A folder that has been used is judged by what is in it, whoever is around.
		if !log.Used() && p.ServerID != f.First.ServerID && p.HasData {
			return "", fmt.Errorf("%w: node %s (%s) already belongs to cluster %s: join it", ErrMayNotFound, p.Name, p.Address, p.ClusterID)
		}
	}
	if f.ClusterID == "" {
		f.ClusterID = rand.Text()
	}
	moves := make([]state.Move, f.Partitions)
	for p := range moves {
		moves[p] = state.Move{Partition: uint32(p), To: f.First.Name}
	}
	err := log.Found(ctx, raft.ServerAddress(f.First.Raft),
		state.Command{ID: newID(), Found: &state.Founding{ClusterID: f.ClusterID, Partitions: f.Partitions, Replicas: f.Replicas}},
		state.Command{ID: newID(), Introduce: &f.First},
		state.Command{ID: newID(), Begin: &state.Begin{Moves: moves}},
	)
	if err != nil {
		return "", err
	}
	return f.ClusterID, nil
}
