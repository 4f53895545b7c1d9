package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// introduction is an attempt to take a peer in that did not succeed.
type introduction struct {
	member state.Member
	index  uint64 // of the view then
	when   time.Time
}

// introduce takes in peers that are alive and not, or not as they are now, members.
// What one of them lacks keeps no other out.
func (c *Control) introduce(ctx context.Context, peers map[string]gossip.Peer) error {
	if err := c.take(ctx, c.self()); err != nil {
		return err
	}
	refused := map[string]string{}
	defer func() {
		c.mu.Lock()
		c.mu.refused = refused
		c.mu.Unlock()
	}()
	var errs []error
	for _, id := range slices.Sorted(maps.Keys(peers)) {
		p := peers[id]
		if !p.Alive {
			continue
		}
		if why := c.unfit(p); why != "" {
			refused[p.ServerID] = why
			continue
		}
		err := c.take(ctx, memberOf(p))
		var no *refusal
		switch {
		case errors.As(err, &no):
			refused[p.ServerID] = no.text
		case errors.Is(err, raftlog.ErrNoLeader), errors.Is(err, raftlog.ErrUnknownOutcome):
			return err
		case err != nil:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// self is this node as it introduces itself. Where it answers clients is known later than
// the rest, and told by gossip.
func (c *Control) self() state.Member {
	m := c.cfg.Self
	for _, p := range c.deps.Gossip.Peers() {
		if p.ServerID == m.ServerID && p.Boot == m.Boot && p.HTTP != "" {
			m.HTTP = p.HTTP
		}
	}
	return m
}

// unfit says why a peer cannot become a member, or "".
func (c *Control) unfit(p gossip.Peer) string {
	v := c.View()
	switch {
	case p.ClusterID != "" && p.ClusterID != v.Cluster.ClusterID:
		return fmt.Sprintf("its data folder belongs to cluster %s, this is cluster %s: start it on another folder, or move that folder away", p.ClusterID, v.Cluster.ClusterID)
	case p.Protocol != c.cfg.Protocol:
		return fmt.Sprintf("it speaks protocol %d, this cluster %d: use the same version", p.Protocol, c.cfg.Protocol)
	case p.ServerID == "" || p.Boot == 0 || p.Raft == "":
		return "it does not say its server id, boot id or raft address"
	case v.WasRemoved(p.ServerID, p.Boot):
		return "this process was removed from the cluster: start it again to join with an empty index"
	}
	if m, ok := v.Member(p.Name); ok && m.ServerID != p.ServerID {
		return fmt.Sprintf("the name %s belongs to another node: give this one another --name, or remove the other one first", p.Name)
	}
	if i := slices.IndexFunc(v.Members, func(m state.Member) bool { return m.ServerID == p.ServerID && m.Name != p.Name }); i >= 0 {
		return fmt.Sprintf("its data folder belongs to member %s", v.Members[i].Name)
	}
	return ""
}

func memberOf(p gossip.Peer) state.Member {
	return state.Member{
		Name: p.Name, ServerID: p.ServerID, Raft: p.Raft, Link: p.Link, HTTP: p.HTTP,
		Zone: p.Zone, Weight: p.Weight, Version: p.Version, Boot: p.Boot,
	}
}

type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

// take makes a node a server of the log and a member, or notes its new process or
// addresses. The server comes first: the node has to read in the log that it is a
// member.
func (c *Control) take(ctx context.Context, m state.Member) error {
	v := c.View()
	old, known := v.Member(m.Name)
	m.Phase = old.Phase
	if known && old == m {
		return nil
	}
	if last, tried := c.leader.introducing[m.ServerID]; tried && last.member == m && last.index == v.Index && time.Since(last.when) < backOff {
		return nil
	}
	if c.leader.introducing == nil {
		c.leader.introducing = map[string]introduction{}
	}
	c.leader.introducing[m.ServerID] = introduction{m, v.Index, time.Now()}
	if err := c.deps.Log.AddServer(raft.ServerID(m.ServerID), raft.ServerAddress(m.Raft)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	cmd := state.Command{Introduce: &m}
	if err := identify(v.Index, &cmd); err != nil {
		return err
	}
	r, err := c.deps.Log.Lead(ctx, cmd)
	if err != nil {
		return fmt.Errorf("introduce %s: %w", m.Name, err)
	}
	if r.Err() != nil {
		return &refusal{r.Text}
	}
	delete(c.leader.introducing, m.ServerID)
	if !known {
		c.leader.arrival = time.Now()
	}
	c.log.Info("member introduced", "member", m.Name, "boot", m.Boot, "new", !known)
	return nil
}
