package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// commandTimeout bounds one command of ingest; ingest repeats it with a back-off.
const commandTimeout = 10 * time.Second

// commands is the log as ingest sees it: asynchronous, because in a cluster a command
// is a Raft round trip and ingest's loops must not wait.
type commands struct{ n *Node }

// run gives fn a goroutine that ends with the node.
func (c commands) run(fn func(ctx context.Context)) {
	c.n.pending.Go(func() { fn(c.n.life) })
}

func (c commands) propose(cmd state.Command, done func(error)) {
	c.run(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, commandTimeout)
		defer cancel()
		_, err := c.n.propose(ctx, cmd)
		done(err)
	})
}

// tellAgain is how long a command that nobody waits for rests after a failure.
const tellAgain = time.Second

// tellBigram lets the log know that engines of a group send EAGLE pages, however long it
// takes: queries at other nodes find none of their blocks before.
func (n *Node) tellBigram(group indexer.GroupID) {
	id := uint32(group)
	commands{n}.run(func(ctx context.Context) {
		for {
			pctx, cancel := context.WithTimeout(ctx, commandTimeout)
			_, err := n.propose(pctx, state.Command{Bigram: &id})
			cancel()
			if err == nil || errors.Is(err, catalog.ErrNotFound) { // its last worker has gone
				return
			}
			rest := time.NewTimer(tellAgain)
			select {
			case <-ctx.Done():
				rest.Stop()
				return
			case <-rest.C:
			}
		}
	})
}

// NewLife implements ingest.Log.
func (c commands) NewLife(instance string, rank uint32, life uint64, done func(error)) {
	c.propose(state.Command{NewLife: &state.NewLife{Instance: instance, Rank: rank, Life: life}}, done)
}

// Filled implements ingest.Log.
func (c commands) Filled(instance string, rank uint32, life uint64, done func(error)) {
	c.propose(state.Command{Filled: &state.Filled{Instance: instance, Rank: rank, Life: life}}, done)
}

// Discover implements ingest.Log.
func (c commands) Discover(source uint64, rank uint32, done func(error)) {
	c.propose(state.Command{Discover: &state.Discover{Source: source, Rank: rank}}, done)
}

// Purged implements ingest.Log: the node drops what its index may still have, then
// tells the cluster.
func (c commands) Purged(r catalog.Retired, done func(error)) {
	c.run(func(ctx context.Context) {
		select {
		case c.n.purge <- purgeRequest{r, done}:
		case <-ctx.Done():
			done(ctx.Err())
		}
	})
}
