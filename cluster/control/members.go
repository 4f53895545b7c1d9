package control

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cluster/plan"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// Standing is what a node is at the moment.
type Standing string

// The standings.
const (
	StandingAlive   Standing = "alive"
	StandingDead    Standing = "dead"    // may come back; its copies wait
	StandingGone    Standing = "gone"    // dead for longer than the grace period
	StandingLeaving Standing = "leaving" // gives away what it holds
	StandingJoining Standing = "joining" // seen in gossip, no member yet
	StandingRefused Standing = "refused" // not taken in; Reason says why
)

// Role is a server's part in the log.
type Role string

// The roles.
const (
	RoleLeader   Role = "leader"
	RoleVoter    Role = "voter"
	RoleFollower Role = "follower" // has no vote
	RoleNone     Role = "none"     // not in the log
)

// MemberInfo is one line of `kvcluster members`: log, gossip and raft together.
type MemberInfo struct {
	state.Member
	Standing Standing
	Reason   string    // why it is refused, as far as this node knows
	Since    time.Time // when gossip last saw it come or go; zero = not known
	Address  string    // of its gossip
	Role     Role
	Self     bool
	Owned    int // partitions that it owns
	Ready    int // of them, those that may be read there
	Filling  int // copies that are being made at it
	Sources  int // that it reads
}

// Members returns the nodes of the cluster and those that want to join, by name. It is
// this node's picture: only the leader knows why somebody is refused.
func (c *Control) Members() []MemberInfo {
	v := c.View()
	peers := c.peers()
	roles := c.roles()
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []MemberInfo
	for _, m := range v.Members {
		i := MemberInfo{Member: m, Standing: standing(m, c.mu.health[m.Name]), Role: cmp.Or(roles[m.ServerID], RoleNone), Self: m.Name == c.cfg.Self.Name}
		if p, ok := peers[m.ServerID]; ok {
			i.Address, i.Since = p.Address, p.Since
		}
		i.count(v)
		out = append(out, i)
	}
	for _, p := range peers {
		if m, ok := v.Member(p.Name); ok && m.ServerID == p.ServerID || !p.Alive {
			continue
		}
		i := MemberInfo{Member: memberOf(p), Standing: StandingJoining, Since: p.Since, Address: p.Address, Role: cmp.Or(roles[p.ServerID], RoleNone)}
		if i.Reason = c.mu.refused[p.ServerID]; i.Reason != "" {
			i.Standing = StandingRefused
		}
		out = append(out, i)
	}
	slices.SortFunc(out, func(a, b MemberInfo) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ServerID, b.ServerID))
	})
	return out
}

func standing(m state.Member, h plan.Health) Standing {
	switch {
	case h == plan.Dead:
		return StandingDead
	case h == plan.Gone:
		return StandingGone
	case m.Phase == state.Leaving:
		return StandingLeaving
	}
	return StandingAlive
}

// roles by server id; empty when raft does not answer.
func (c *Control) roles() map[string]Role {
	out := map[string]Role{}
	servers, err := c.deps.Log.Servers()
	if err != nil {
		return out
	}
	leader, _ := c.deps.Log.Leader()
	for _, s := range servers {
		switch {
		case s.ID == leader:
			out[string(s.ID)] = RoleLeader
		case s.Voter:
			out[string(s.ID)] = RoleVoter
		default:
			out[string(s.ID)] = RoleFollower
		}
	}
	return out
}

func (i *MemberInfo) count(v *state.View) {
	p := progressOf(v, i.Name)
	i.Owned, i.Sources = p.Partitions, p.Sources
	for part := range v.Owners {
		if v.Ready(uint32(part), i.Name) {
			i.Ready++
		}
	}
	for _, j := range v.Jobs {
		for _, m := range j.Moves {
			if m.To == i.Name {
				i.Filling++
			}
		}
	}
}
