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

// retirees sorts the retired slots that the log wants purged here: those that this
// node's ingest wrote report themselves once their last frame is applied; the others
// are the owner's to purge.
type retirees struct {
	mu struct {
		sync.Mutex
		mine     map[catalog.Retired]bool // lives that ingest had in the latest view, or still has to report
		underway map[catalog.Retired]bool // given to the owner
	}
}

// foreign returns the slots among wanted that nobody has begun to purge and that ingest
// will not report.
func (t *retirees) foreign(wanted []catalog.Retired, mine *catalog.View) (out []catalog.Retired) {
	t.mu.Lock()
	defer t.mu.Unlock()
	lives := map[catalog.Retired]bool{}
	for _, s := range mine.Sources() {
		for _, r := range s.Ranks {
			lives[catalog.Retired{Group: s.Group.ID, Slot: r.Slot, Life: r.Life}] = true
		}
	}
	underway := map[catalog.Retired]bool{}
	for _, r := range wanted {
		switch {
		case t.mu.mine[r]:
			lives[r] = true
		case t.mu.underway[r]:
			underway[r] = true
		default:
			underway[r] = true
			out = append(out, r)
		}
	}
	t.mu.mine, t.mu.underway = lives, underway
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
			_, err = n.propose(pctx, state.Command{Purged: &state.Purged{Member: n.cfg.Name, Slot: r}})
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
		n.follow(n.View())
	})
}
