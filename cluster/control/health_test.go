package control

import (
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/plan"
	"github.com/kvcluster/kvcluster/cluster/state"
)

func TestTracker(t *testing.T) {
	start := time.Unix(1000, 0)
	cfg := Config{Self: state.Member{Name: "me"}, Grace: time.Minute, StartGrace: 10 * time.Second}
	tr := newTracker(cfg, start)
	members := []state.Member{{Name: "me", ServerID: "0"}, {Name: "a", ServerID: "1"}, {Name: "b", ServerID: "2"}}
	peer := func(name, id string, alive bool) map[string]gossip.Peer {
		return map[string]gossip.Peer{id: {Meta: gossip.Meta{Name: name, ServerID: id}, Alive: alive}}
	}
	at := func(after time.Duration, peers map[string]gossip.Peer, a, b plan.Health) {
		t.Helper()
		got := tr.update(start.Add(after), members, peers)
		if got["me"] != plan.Alive || got["a"] != a || got["b"] != b {
			t.Errorf("after %v: %v, want a %v, b %v", after, got, a, b)
		}
	}
	at(0, nil, plan.Alive, plan.Alive) // not met yet
	at(time.Second, peer("a", "1", true), plan.Alive, plan.Alive)
	at(2*time.Second, peer("a", "1", false), plan.Dead, plan.Alive) // a was met: no grace of the start
	at(10*time.Second, peer("a", "1", false), plan.Dead, plan.Dead)
	at(30*time.Second, peer("b", "9", true), plan.Dead, plan.Dead) // another node under b's name
	at(60*time.Second, peer("b", "2", true), plan.Dead, plan.Alive)
	at(62*time.Second, nil, plan.Gone, plan.Dead)
	at(63*time.Second, peer("a", "1", true), plan.Alive, plan.Dead)
	at(121*time.Second, peer("a", "1", false), plan.Dead, plan.Dead)
	at(122*time.Second, nil, plan.Dead, plan.Gone)
	members = members[:1]
	tr.update(start.Add(130*time.Second), members, nil)
	if len(tr.dead)+len(tr.met) != 1 { // only itself
		t.Errorf("still knows %v, %v", tr.dead, tr.met)
	}
}
