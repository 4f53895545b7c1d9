package gossip

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"
)

// maxRetries bounds the lost nodes that are tried in one round, besides the seeds.
const maxRetries = 4

// rejoin looks again and again for seeds and lost nodes, and for rivals.
func (g *Gossip) rejoin(ctx context.Context) {
	next := time.Duration(0) // the seeds at once
	for {
		t := time.NewTimer(next)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		// Up to a quarter earlier or later: the two sides of a cut need not meet head on.
		next = g.cfg.Rejoin*3/4 + rand.N(g.cfg.Rejoin/2+1)
		g.mu.Lock()
		left := g.mu.left
		g.mu.Unlock()
		if left {
			continue
		}
		g.tryLost(ctx)
		g.checkRivals()
	}
}

// tryLost joins at seeds that nobody alive has, and at some nodes that died.
func (g *Gossip) tryLost(ctx context.Context) {
	alive := map[string]bool{}
	var lost []string
	for _, p := range g.Peers() {
		if p.Alive {
			alive[p.Address] = true
		} else {
			lost = append(lost, p.Address)
		}
	}
	rand.Shuffle(len(lost), func(i, j int) { lost[i], lost[j] = lost[j], lost[i] })
	lost = lost[:min(len(lost), maxRetries)]
	g.mu.Lock()
	seeds := slices.Clone(g.mu.seeds)
	g.mu.Unlock()
	targets, errs := g.targets(ctx, append(seeds, lost...))
	for _, err := range errs {
		g.log.tell(slog.LevelWarn, "seed "+err.Error(), "a seed cannot be used", "err", err)
	}
	var addrs []string
	for _, t := range targets {
		if !alive[t.address] {
			addrs = append(addrs, t.address)
		}
	}
	if len(addrs) == 0 {
		return
	}
	n, err := g.join(ctx, addrs, false)
	g.stats.rejoins.Add(uint64(n))
	if err == nil || ctx.Err() != nil {
		return
	}
	g.stats.rejoinFailed.Add(1)
	level := slog.LevelDebug // a node that is down is no news
	if !errors.Is(err, ErrNobody) {
		level = slog.LevelWarn
	}
	g.log.tell(level, "rejoin "+err.Error(), "seeds or lost nodes were not joined", "err", flat(err))
}

// checkRivals greets those who are alive under this node's name or server id. Two nodes
// that joined at different ends at the same moment are found here.
func (g *Gossip) checkRivals() {
	own, _ := g.table.own()
	var found []Peer
	for _, p := range g.table.rivals(own) {
		if err := g.confirm(own, rival{p.Address, p.Meta}); err != nil {
			found = append(found, p)
			g.log.tell(slog.LevelError, "rival "+p.Address, err.Error())
		}
	}
	g.mu.Lock()
	changed := len(found) != len(g.mu.rivals)
	g.mu.rivals = found
	g.mu.Unlock()
	if changed {
		g.table.poke()
	}
}

// Conflicts returns the nodes that run under this node's name or server id at the same
// time, as they were found at the last round of Run (every Config.Rejoin); each has
// answered then. Join finds them earlier where it can.
func (g *Gossip) Conflicts() []Peer {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.mu.rivals)
}
