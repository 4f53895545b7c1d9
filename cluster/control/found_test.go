package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
)

func TestFoundAndJoinUpToEight(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(1)
		for _, name := range []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"} {
			w.join(name)
			w.settle()
			if err := w.ctl(name).WaitMember(w.ctx); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 20 {
			w.register([]string{"n0", "n3", "n7"}[i%3], 1000+i) // leader, followers, a server without a vote
		}
		w.settle()
		infos := w.ctl("n5").Members()
		roles := map[Role]int{}
		for _, m := range infos {
			roles[m.Role]++
			if m.Standing != StandingAlive || m.Ready != m.Owned || m.Owned == 0 || m.Self != (m.Name == "n5") {
				t.Errorf("%+v", m)
			}
		}
		if len(infos) != 8 || roles[RoleLeader] != 1 || roles[RoleVoter] != 4 || roles[RoleFollower] != 3 {
			t.Errorf("%d members, roles %v", len(infos), roles)
		}
	})
}

// Eight nodes that come at once are one change, not seven.
func TestBurstOfJoins(t *testing.T) {
	inWorld(t, func(w *world) {
		w.found("n0")
		w.register("n0", 1)
		w.join("n1", "n2", "n3", "n4", "n5", "n6", "n7")
		w.settle()
	})
}

func TestRefusals(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(2)
		for _, c := range []struct {
			name  string
			setup func(n *node)
			why   string
		}{
			{"n0'", func(n *node) {}, "the name n0 belongs to another node"},
			{"x1", func(n *node) { n.set(func(p *process) { p.clusterID = "d" }) }, "belongs to cluster d"},
			{"x2", func(n *node) { n.set(func(p *process) { p.protocol = 7 }) }, "protocol 7"},
		} {
			n := w.add(c.name)
			c.setup(n)
			ctx, cancel := context.WithTimeout(w.ctx, 20*time.Second)
			err := n.p().ctl.WaitMember(ctx)
			cancel()
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), c.why) {
				t.Errorf("%s: %v", c.name, err)
			}
			w.kill(c.name)
			w.forget(c.name)
		}
	})
}

func TestWhoMayFound(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(1)
		first := w.node("n0")
		f := Founding{First: first.member(), Partitions: parts, Replicas: 2}
		if _, err := Found(w.ctx, first.p().log, &testGossip{first}, f); !errors.Is(err, raftlog.ErrFounded) {
			t.Errorf("a founded node founds again: %v", err)
		}
		n := w.add("n1")
		f.First = n.member()
		if _, err := Found(w.ctx, n.p().log, &testGossip{n}, f); !errors.Is(err, ErrMayNotFound) || !strings.Contains(err.Error(), "n0") {
			t.Errorf("beside a node with data: %v", err)
		}
		f.Join = true
		w.settle() // n1 has joined
		if _, err := Found(w.ctx, n.p().log, &testGossip{n}, f); !errors.Is(err, ErrMayNotFound) {
			t.Errorf("a member that was told to join founds: %v", err)
		}
		f.Join = false // as it was started when it founded, beside others with data
		if _, err := Found(w.ctx, n.p().log, &testGossip{n}, f); !errors.Is(err, raftlog.ErrFounded) {
			t.Errorf("a member founds: %v", err)
		}
	})
	inWorld(t, func(w *world) {
		n := w.add("n0")
		f := Founding{First: n.member(), Partitions: parts, Replicas: 2, Join: true}
		if _, err := Found(w.ctx, n.p().log, &testGossip{n}, f); !errors.Is(err, ErrMayNotFound) {
			t.Errorf("told to join: %v", err)
		}
		f.Join = false
		id, err := Found(w.ctx, n.p().log, &testGossip{n}, f)
		if err != nil || id == "" || n.p().log.View().Cluster.ClusterID != id {
			t.Errorf("founded %q: %v", id, err)
		}
		w.settle()
	})
}

// A process that dies between raft's bootstrap and the first entry leaves a folder with
// data and no cluster: the founding is completed by the next one.
func TestFoundingCutShort(t *testing.T) {
	inWorld(t, func(w *world) {
		n := w.add("n0")
		if err := n.p().log.Found(w.ctx, "n0"); err != nil { // no entries
			t.Fatal(err)
		}
		w.kill("n0")
		n.start()
		f := Founding{First: n.member(), Partitions: parts, Replicas: 2}
		if _, err := Found(w.ctx, n.p().log, &testGossip{n}, f); err != nil {
			t.Fatal(err)
		}
		w.settle()
		w.kill("n0")
		n.start()
		f.First = n.member()
		if _, err := Found(w.ctx, n.p().log, &testGossip{n}, f); !errors.Is(err, raftlog.ErrFounded) {
			t.Errorf("founded twice: %v", err)
		}
		w.settle()
	})
}

// All processes end and come back: nobody loses partitions or sources for not having
// been met yet.
func TestWholeClusterRestarts(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(5)
		for i := range 10 {
			w.register("n0", 1000+i)
		}
		w.settle()
		before := w.leader().p().log.View()
		for name := range w.all() {
			w.kill(name)
		}
		time.Sleep(time.Hour)
		for _, n := range w.all() {
			n.start()
			time.Sleep(700 * time.Millisecond)
		}
		w.settle()
		after := w.leader().p().log.View()
		for id, a := range after.Assignments {
			if was := before.Assignments[id]; was.Node != a.Node || was.Tenure >= a.Tenure {
				t.Errorf("source %d was read as %+v and is as %+v", id, was, a)
			}
		}
		for part, owners := range after.Owners {
			for i, o := range owners {
				if before.Owners[part][i].Name != o.Name {
					t.Errorf("partition %d moved from %v to %v", part, before.Owners[part], owners)
				}
			}
		}
	})
}
