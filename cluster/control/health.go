package control

import (
	"time"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/plan"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// tracker turns what gossip says at the moment into healths. Every node has one all the
// time, so that a new leader knows since when somebody is dead. It belongs to the
// goroutine of Run.
type tracker struct {
	self              string
	grace, startGrace time.Duration
	start             time.Time
	dead              map[string]time.Time // by name: since when
	met               map[string]bool      // seen alive by this process
}

func newTracker(cfg Config, now time.Time) *tracker {
	return &tracker{
		self: cfg.Self.Name, grace: cfg.Grace, startGrace: cfg.StartGrace,
		start: now, dead: map[string]time.Time{}, met: map[string]bool{},
	}
}

// update notes who is there, by server id, and returns the health of every member. A
// peer under the name of a member but from another data folder is somebody else.
func (t *tracker) update(now time.Time, members []state.Member, peers map[string]gossip.Peer) map[string]plan.Health {
	out := make(map[string]plan.Health, len(members))
	for _, m := range members {
		if p := peers[m.ServerID]; m.Name == t.self || p.Alive && p.Name == m.Name {
			t.met[m.Name] = true
			delete(t.dead, m.Name)
			out[m.Name] = plan.Alive
			continue
		}
		since, known := t.dead[m.Name]
		if !known {
			since = now
			t.dead[m.Name] = now
		}
		switch {
		case !t.met[m.Name] && now.Before(t.start.Add(t.startGrace)):
			out[m.Name] = plan.Alive // it may not have been met yet
		case now.Sub(since) >= t.grace:
			out[m.Name] = plan.Gone
		default:
			out[m.Name] = plan.Dead
		}
	}
	t.forget(out)
	return out
}

// forget drops what is known of those that are no members any more.
func (t *tracker) forget(members map[string]plan.Health) {
	for _, name := range mapKeys(t.dead, t.met) {
		if _, ok := members[name]; !ok {
			delete(t.dead, name)
			delete(t.met, name)
		}
	}
}

func mapKeys(a map[string]time.Time, b map[string]bool) (out []string) {
	for k := range a {
		out = append(out, k)
	}
	for k := range b {
		out = append(out, k)
	}
	return out
}
