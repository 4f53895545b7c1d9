package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/plan"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
)

const (
	// handOver is the least time between two attempts to give the lead away.
	handOver = 5 * time.Second
	// lastWords is how long a server that was removed is kept in the log, so that it
	// hears of its removal; halfJoined how long one that never became a member is.
	lastWords, halfJoined = 3 * time.Second, 30 * time.Second
	// backOff is how long the leader waits after the state machine refused its plan.
	backOff = time.Second
)

// leading is what a leader remembers between steps. It is empty in the beginning of
// every time in office.
type leading struct {
	handedOver  time.Time
	arrival     time.Time // of the last new member
	orphans     map[raft.ServerID]time.Time
	planned     *planInput // nothing was to do with it
	rebalanced  time.Time
	weights     []float64
	weighed     time.Time
	planAgain   time.Time // not before
	introducing map[string]introduction
}

// lead does the duties of the leader, the urgent ones first. Each returns early when
// this node turns out to lead no more.
func (c *Control) lead(ctx context.Context, peers map[string]gossip.Peer, health map[string]plan.Health) error {
	if c.View().Cluster.ClusterID == "" {
		return nil // the founding is under way
	}
	// What one duty cannot do must not keep the others from being done.
	var errs []error
	for _, duty := range []func() error{
		func() error { return c.introduce(ctx, peers) },
		func() error { return c.giveLead(peers, health) },
		func() error { return c.plan(ctx, health) },
		func() error { return c.servers(ctx, peers, health) },
	} {
		err := duty()
		if errors.Is(err, raftlog.ErrNoLeader) || errors.Is(err, raftlog.ErrUnknownOutcome) || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// seats returns raft's servers with what is known of them. Those that are alive and fit
// count as caught up.
func (c *Control) seats(peers map[string]gossip.Peer, health map[string]plan.Health) (seats []seat, servers map[string]raftlog.Server, staying int, err error) {
	list, err := c.deps.Log.Servers()
	if err != nil {
		return nil, nil, 0, err
	}
	byID, servers := map[string]state.Member{}, map[string]raftlog.Server{}
	for _, m := range c.View().Members {
		byID[m.ServerID] = m
		if m.Phase == state.Active {
			staying++
		}
	}
	for _, s := range list {
		id := string(s.ID)
		servers[id] = s
		m, member := byID[id]
		one := seat{id: id, name: cmp.Or(m.Name, peers[id].Name, id), zone: m.Zone, voter: s.Voter, self: id == c.cfg.Self.ServerID}
		one.alive = one.self || peers[id].Alive
		one.stays = member && m.Phase == state.Active
		one.fit = one.stays && health[m.Name] != plan.Gone
		one.ready = one.alive && one.fit
		seats = append(seats, one)
	}
	return seats, servers, staying, nil
}

// servers keeps raft's configuration in order: one change at a time.
func (c *Control) servers(ctx context.Context, peers map[string]gossip.Peer, health map[string]plan.Health) error {
	seats, _, staying, err := c.seats(peers, health)
	if err != nil {
		return err
	}
	if err := c.removeOrphans(ctx, seats, peers); err != nil {
		return err
	}
	if promote, demote := nextVoter(seats, staying); promote == nil && demote == nil {
		return nil
	}
	c.askFollowing(ctx, seats)
	promote, demote := nextVoter(seats, staying)
	switch {
	case promote != nil:
		c.log.Info("a member gets a vote", "member", promote.name)
		_, err := c.deps.Log.Promote(raft.ServerID(promote.id))
		c.poke()
		return err
	case demote != nil:
		c.log.Info("a member loses its vote", "member", demote.name, "alive", demote.alive)
		c.poke()
		return c.deps.Log.Demote(raft.ServerID(demote.id))
	}
	return nil
}

// giveLead transfers the leadership when this node leaves, is no member any more or has
// a disk that is nearly full.
func (c *Control) giveLead(peers map[string]gossip.Peer, health map[string]plan.Health) error {
	m, member := c.View().Member(c.cfg.Self.Name)
	leaving, low := !member || m.Phase == state.Leaving, c.deps.LowSpace()
	if !leaving && !low || time.Since(c.leader.handedOver) < handOver {
		return nil
	}
	seats, servers, _, err := c.seats(peers, health)
	if err != nil {
		return err
	}
	to := successor(seats)
	if to == nil {
		if low {
			c.leader.handedOver = time.Now()
			c.log.Warn("the disk is nearly full and no other voter is alive that could lead")
		}
		return nil
	}
	c.leader.handedOver = time.Now()
	c.log.Info("giving the lead away", "to", to.name, "leaving", leaving, "low_space", low)
	if err := c.deps.Log.TransferLeadership(servers[to.id]); err != nil {
		return err
	}
	return fmt.Errorf("%w: given to %s", raftlog.ErrNoLeader, to.name)
}

const (
	// followWithin is how long the servers have to show that they have all that the leader
	// has; followPoll is how often they are asked.
	followWithin, followPoll = 500 * time.Millisecond, 20 * time.Millisecond
)

// askFollowing finds out who has the whole log of this leader as it is now, before the
// voters are changed: a server that gets a vote must have, and a voter that has not does
// not count as alive. Whoever lags may know of an older configuration: it would not vote
// for a server that has got its vote since, and nobody would lead when this leader is gone.
// That a server hears of the log from this leader is seen in what it knows to be
// committed: what it has stored may be the rest of an older term.
func (c *Control) askFollowing(ctx context.Context, seats []seat) {
	all := c.deps.Log.LastIndex()
	ctx, cancel := context.WithTimeout(ctx, followWithin)
	defer cancel()
	var asking sync.WaitGroup
	for i := range seats {
		s := &seats[i]
		if s.self || !s.alive || !s.voter && !s.ready {
			continue
		}
		asking.Go(func() {
			follows := c.follows(ctx, s, all)
			s.ready = s.ready && follows
			s.alive = s.alive && (follows || !s.voter)
		})
	}
	asking.Wait()
}

// follows asks a server until it knows that everything up to an index is committed.
func (c *Control) follows(ctx context.Context, s *seat, index uint64) bool {
	for {
		if st, err := c.askStatus(ctx, s.name); err == nil && st.ServerID == s.id && st.Committed >= index {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(followPoll):
		}
	}
}

// removeOrphans takes servers out of the log whose member was removed, as soon as they
// know it or are dead, and those that never became members. Those that are alive and
// vote have to lose their vote first.
func (c *Control) removeOrphans(ctx context.Context, seats []seat, peers map[string]gossip.Peer) error {
	view := c.View()
	orphans := map[raft.ServerID]time.Time{}
	defer func() { c.leader.orphans = orphans }()
	for _, s := range seats {
		id := raft.ServerID(s.id)
		if s.self || s.voter && s.alive || slices.ContainsFunc(view.Members, func(m state.Member) bool { return m.ServerID == s.id }) {
			continue
		}
		since, known := c.leader.orphans[id]
		if !known {
			since = time.Now()
		}
		orphans[id] = since
		wait := halfJoined
		if slices.ContainsFunc(view.Removed, func(r state.Removal) bool { return r.ServerID == s.id }) {
			wait = lastWords
			if p := peers[s.id]; !p.Alive || c.knowsOfRemoval(ctx, p.Name, s.id) {
				wait = 0
			}
		} else if peers[s.id].Alive {
			continue // about to be introduced, or refused
		}
		if time.Since(since) < wait {
			continue
		}
		c.log.Info("taking a server out of the log", "server", s.id)
		if err := c.deps.Log.RemoveServer(id); err != nil {
			return err
		}
		delete(orphans, id)
	}
	return nil
}

func (c *Control) knowsOfRemoval(ctx context.Context, name, serverID string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	st, err := c.askStatus(ctx, name)
	return err == nil && st.ServerID == serverID && st.Removed
}

// planInput is what a plan depends on.
type planInput struct {
	index     uint64
	health    map[string]plan.Health
	hold      bool
	rebalance bool
	weights   []float64
}

func (p *planInput) equal(o *planInput) bool {
	return p != nil && p.index == o.index && p.hold == o.hold && p.rebalance == o.rebalance &&
		maps.Equal(p.health, o.health) && slices.Equal(p.weights, o.weights)
}

const (
	// weighEvery is how often measured weights may change the plan.
	weighEvery = 10 * time.Second
	// rebalanceEvery and rebalanceBatch pace the sources that change their reader for
	// balance: 2,000 sources of one node go to seven others in four minutes.
	rebalanceEvery, rebalanceBatch = 2 * time.Second, 16
)

// plan proposes what the planner wants. When the planner wants nothing it is not asked
// again before something changes.
func (c *Control) plan(ctx context.Context, health map[string]plan.Health) error {
	now := time.Now()
	if now.Sub(c.leader.weighed) >= weighEvery {
		c.leader.weighed, c.leader.weights = now, c.deps.Weights()
	}
	in := &planInput{
		index: c.View().Index, health: health, hold: now.Sub(c.leader.arrival) < c.cfg.Settle,
		rebalance: now.Sub(c.leader.rebalanced) >= rebalanceEvery, weights: c.leader.weights,
	}
	if now.Before(c.leader.planAgain) || c.leader.planned.equal(in) {
		return nil
	}
	input := plan.Input{View: c.View(), Health: health, Weights: in.weights, MaxMoves: c.cfg.MaxMoves, Hold: in.hold}
	if in.rebalance {
		c.leader.rebalanced, input.MaxRebalanced = now, rebalanceBatch
		in.rebalance = false
	}
	cmds, later := plan.Next(input), false
	cmds = slices.DeleteFunc(cmds, func(cmd state.Command) bool {
		wait := cmd.Remove != nil && c.votes(*cmd.Remove)
		later = later || wait
		return wait
	})
	if len(cmds) == 0 {
		if !later {
			c.leader.planned = in
		}
		return nil
	}
	if err := c.carryOut(ctx, input.View.Index, cmds); err != nil {
		c.leader.planAgain = now.Add(backOff)
		return fmt.Errorf("plan: %w", err)
	}
	c.poke()
	return nil
}

// votes reports whether a member still votes. When it is removed its process ends: a
// voter, and the leader first of all, must have given that away before.
func (c *Control) votes(name string) bool {
	m, ok := c.View().Member(name)
	votes, err := c.hasVote(m.ServerID)
	return err != nil || ok && votes
}

// hasVote reports whether a server votes, as far as this one knows.
func (c *Control) hasVote(serverID string) (bool, error) {
	servers, err := c.deps.Log.Servers()
	return slices.ContainsFunc(servers, func(s raftlog.Server) bool { return s.Voter && string(s.ID) == serverID }), err
}
