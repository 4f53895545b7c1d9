package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// retireRetry is the pause before a retirement that failed is tried again.
const retireRetry = time.Second

// retirees are the retired slots that the owner purges here: those that this node's
// ingest did not write. Ingest reports its own once their last frame is applied.
type retirees struct {
	mu struct {
		sync.Mutex
		underway map[catalog.Retired]bool
	}
}

// begin returns the slots among wanted that are the owner's to purge and that it does
// not have yet.
func (t *retirees) begin(wanted []catalog.Retired, ingestReports func(catalog.Retired) bool) (out []catalog.Retired) {
	t.mu.Lock()
	defer t.mu.Unlock()
	underway := map[catalog.Retired]bool{}
	for _, r := range wanted {
		if ingestReports(r) {
			continue
		}
		underway[r] = true
		if !t.mu.underway[r] {
			out = append(out, r)
		}
	}
	t.mu.underway = underway
	return out
}

// again lets the slot be purged with the next view.
func (t *retirees) again(r catalog.Retired) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.mu.underway, r)
}

// retiredHere tells the log that nothing is left of a slot that other nodes wrote.
func (n *Node) retiredHere(r catalog.Retired, err error) {
	commands{n}.run(func(ctx context.Context) {
		if err == nil {
			pctx, cancel := context.WithTimeout(ctx, commandTimeout)
			defer cancel()
			_, err = n.propose(pctx, state.Command{Purged: &state.Purged{Member: n.cfg.Name, Boot: n.cfg.Boot, Slot: r}})
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		n.log.Warn("retired slot not purged; trying again", "group", r.Group, "slot", r.Slot, "life", r.Life, "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(retireRetry):
		}
		n.retired.again(r)
		n.following.Lock()
		defer n.following.Unlock()
		n.owe(n.View())
	})
}

// owe gives the owner the retired slots that are its to purge.
func (n *Node) owe(v *state.View) {
	for _, r := range n.retired.begin(v.ToPurge[n.cfg.Name], n.ingest.Reports) {
		n.deps.Spread.Owner.Retire(r, func(err error) { n.retiredHere(r, err) })
	}
}

// Renew has the source of a slot begin again under a new tenure, so that the slot gets a
// new life and is filled from the engine: a part of what it held is nowhere any more. The
// takeover that comes with the tenure finds that out, also for a life that has been taken
// over before. Ingest may be about to begin a new life for reasons of its own: the log
// lets only one of the two happen, or each would undo what the other began.
func (n *Node) Renew(ctx context.Context, group, slot uint32, life uint64) error {
	v := n.View()
	for _, src := range v.Catalog.Sources() {
		a := v.Assignments[src.ID]
		if src.Group.ID != group || a.Node != n.cfg.Name {
			continue
		}
		for _, r := range src.Ranks {
			if r.Slot == slot && r.Life == life {
				n.log.Warn("a slot starts over: no complete copy of all it held is left", "instance", src.Instance, "rank", r.Rank, "slot", slot, "life", life)
				_, err := n.propose(ctx, state.Command{Assign: &state.Assign{Source: src.ID, Node: n.cfg.Name, Over: a.Tenure,
					Lost: catalog.Retired{Group: group, Slot: slot, Life: life}}})
				return err
			}
		}
	}
	return nil // a new life has begun already
}
