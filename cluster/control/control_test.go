package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/state"
)

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, run func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		run(w)
	})
}

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

func TestKillLeaderAndFollowers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(5)
		for i := range 10 {
			w.register("n0", 1000+i)
		}
		w.settle()
		w.kill(w.leader().name)
		dead := time.Now()
		w.await("sources of the dead leader are read by others", detect+5*time.Second, func() bool {
			l := w.leader()
			if l == nil {
				return false
			}
			v := l.p().log.View()
			for _, a := range v.Assignments {
				if !w.reach(l.name, a.Node) {
					return false
				}
			}
			return true
		})
		t.Logf("sources moved after %v", time.Since(dead))
		if jobs := w.leader().p().log.View().Jobs; len(jobs) != 0 {
			t.Errorf("copies are made within the grace period: %+v", jobs)
		}
		w.settle() // longer than grace: copies elsewhere
		for _, n := range w.running() {
			if n != w.leader() {
				w.kill(n.name)
				break
			}
		}
		w.settle()
		for _, n := range w.all() {
			if !n.p().running {
				n.start()
			}
		}
		w.settle()
	})
}

// A member that restarts within the grace period keeps its partitions, refilled.
func TestRestartInPlace(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(3)
		w.register("n0", 1)
		w.settle()
		owned := func(name string) (n int) {
			for part := range w.leader().p().log.View().Owners {
				if w.leader().p().log.View().Ready(uint32(part), name) {
					n++
				}
			}
			return n
		}
		before := owned("n1")
		w.kill("n1")
		time.Sleep(5 * time.Second)
		w.node("n1").start()
		w.settle()
		if after := owned("n1"); after != before || before == 0 {
			t.Errorf("ready for %d partitions before, %d after", before, after)
		}
	})
}

func TestLeaveDrainsAndGoes(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(4)
		for i := range 8 {
			w.register("n0", 1000+i)
		}
		w.settle()
		leader := w.leader() // it leads, so it has to give the lead away too
		var seen []Progress
		ctx, cancel := context.WithTimeout(w.ctx, 2*time.Minute)
		defer cancel()
		if err := leader.p().ctl.Leave(ctx, leader.name, func(p Progress) { seen = append(seen, p) }); err != nil {
			t.Fatal(err)
		}
		servers, err := w.leader().p().log.Servers()
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range servers {
			if string(s.ID) == leader.serverID && s.Voter {
				t.Error("it is no member any more and still votes")
			}
		}
		if len(seen) < 3 || seen[0].Partitions == 0 {
			t.Errorf("progress %v", seen)
		}
		w.await("the process that left ends", 10*time.Second, func() bool { return errors.Is(leader.p().err, ErrRemoved) })
		w.settle()
		if w.leader() == leader {
			t.Error("it still leads")
		}
		if err := w.leader().p().ctl.Leave(ctx, "n9", nil); !errors.Is(err, ErrNotMember) {
			t.Errorf("leave of nobody: %v", err)
		}
	})
}

// Down to one member; the last one cannot leave.
func TestLeaveToOne(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(3)
		w.register("n0", 1)
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Minute)
		defer cancel()
		for _, name := range []string{"n0", "n1"} {
			if err := w.ctl(name).Leave(ctx, name, nil); err != nil {
				t.Fatal(err)
			}
			w.await("it ends", 10*time.Second, func() bool { return w.node(name).p().err != nil })
			w.settle()
		}
		if err := w.ctl("n2").Leave(ctx, "n2", nil); !errors.Is(err, state.ErrRefused) {
			t.Errorf("the last member leaves: %v", err)
		}
	})
}

func TestRemove(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(4)
		w.register("n0", 1)
		w.settle()
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Minute)
		defer cancel()
		if err := w.ctl("n0").Remove(ctx, "n3", false); !errors.Is(err, ErrAlive) {
			t.Errorf("removal of a member that is alive: %v", err)
		}
		w.kill("n3")
		time.Sleep(detect + time.Second)
		if err := w.ctl("n1").Remove(ctx, "n3", false); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if err := w.ctl("n0").Remove(ctx, "n2", true); err != nil {
			t.Fatal(err)
		}
		w.await("the removed process ends", 10*time.Second, func() bool { return errors.Is(w.node("n2").p().err, ErrRemoved) })
		w.settle()
		w.kill("n2")
		w.node("n2").start() // another process of it joins, empty
		w.settle()
		if _, ok := w.leader().p().log.View().Member("n2"); !ok {
			t.Error("n2 did not come back")
		}
	})
}

// A member that is removed while nothing reaches it hears of it afterwards.
func TestRemovedWhileCutOff(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(4)
		victim := "n1"
		if w.leader().name == victim {
			victim = "n2"
		}
		w.cut(victim)
		time.Sleep(detect + time.Second)
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Minute)
		defer cancel()
		if err := w.leader().p().ctl.Remove(ctx, victim, false); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		if w.node(victim).p().err != nil {
			t.Fatal("it knows already")
		}
		w.heal(victim)
		w.await("it hears of its removal", 20*time.Second, func() bool { return errors.Is(w.node(victim).p().err, ErrRemoved) })
		w.settle()
	})
}

// A leader in a minority decides nothing; the others go on, and it follows afterwards.
func TestMinorityLeader(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(5)
		for i := range 6 {
			w.register("n0", 1000+i)
		}
		w.settle()
		old := w.leader()
		w.cut(old.name)
		w.await("another leads", 10*time.Second, func() bool { l := w.leader(); return l != nil && l != old })
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
		defer cancel()
		_, err := old.p().ctl.Propose(ctx, state.Command{Leave: new("n4")})
		if !errors.Is(err, raftlog.ErrNoLeader) && !errors.Is(err, raftlog.ErrUnknownOutcome) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a command in the minority: %v", err)
		}
		if _, err := old.p().ctl.ReadIndex(ctx); err == nil {
			t.Error("a leader that is cut off answers ReadIndex")
		}
		w.settle() // it is gone for the others
		for id, a := range w.leader().p().log.View().Assignments {
			if a.Node == old.name {
				t.Errorf("source %d is still read by %s", id, a.Node)
			}
		}
		w.heal(old.name)
		w.settle()
		w.await("its log catches up", 20*time.Second, func() bool { return old.p().log.View().Index >= w.leader().p().log.View().Index })
	})
}

func TestLowSpaceGivesTheLeadUp(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(3)
		old := w.leader()
		old.set(func(p *process) { p.low = true })
		w.await("another leads", 10*time.Second, func() bool { l := w.leader(); return l != nil && l != old })
		time.Sleep(30 * time.Second)
		if w.leader() == old {
			t.Error("it leads again")
		}
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

// A source whose engines connect to its reader waits for it, and holds nobody up.
func TestBoundSource(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(4)
		w.registerAt("n0", 1, "n2", "tcp://*:5557")
		w.register("n0", 2)
		w.settle()
		w.kill("n2")
		w.settle() // beyond grace: its copies are made elsewhere although it reads a source
		for _, s := range w.leader().p().log.View().Catalog.Sources() {
			if a := w.leader().p().log.View().Assignments[s.ID]; s.Instance == "1" && a.Node != "n2" {
				t.Errorf("read by %q", a.Node)
			}
		}
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		if err := w.ctl("n0").Remove(ctx, "n2", false); err != nil {
			t.Fatal(err)
		}
		w.settle()
		for _, a := range w.leader().p().log.View().Assignments {
			if a.Node == "n2" {
				t.Error("still read by a node that was removed")
			}
		}
	})
}

// A member whose log does not follow gets no vote: it would count for the majority.
func TestNoVoteBeforeCaughtUp(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(2)
		for i := range 2 * catchUp {
			w.register("n0", 1000+i)
		}
		late := w.add("n2")
		late.set(func(p *process) { p.clusterID, p.deaf = "c", true })
		w.connect()
		time.Sleep(30 * time.Second)
		voters := func() (n int) {
			servers, err := w.leader().p().log.Servers()
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range servers {
				if s.Voter {
					n++
				}
			}
			return n
		}
		if n := voters(); n != 1 {
			t.Errorf("%d voters while one of three members does not follow", n)
		}
		late.set(func(p *process) { p.deaf = false })
		w.connect()
		w.settle()
		if n := voters(); n != 3 {
			t.Errorf("%d voters of three members", n)
		}
	})
}

// Force does not go as far as to stop the log.
func TestRemoveKeepsTheMajority(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(3)
		leader := w.leader()
		var others []string
		for name := range w.all() {
			if name != leader.name {
				others = append(others, name)
			}
		}
		w.kill(others[0])
		time.Sleep(detect + time.Second)
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		if err := leader.p().ctl.Remove(ctx, others[1], true); !errors.Is(err, ErrMajority) {
			t.Errorf("removal of the second of three voters: %v", err)
		}
		for _, name := range others { // the dead one first, then one is enough
			if err := leader.p().ctl.Remove(ctx, name, name == others[1]); err != nil {
				t.Fatal(err)
			}
			w.settle()
		}
	})
}

// Measured weight moves copies.
func TestWeights(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(4)
		w.register("n0", 1)
		w.settle()
		load := func(weights []float64) (max float64) {
			by := map[string]float64{}
			for part, owners := range w.leader().p().log.View().Owners {
				for _, o := range owners {
					by[o.Name] += weights[part]
				}
			}
			for _, l := range by {
				if l > max {
					max = l
				}
			}
			return max
		}
		weights := make([]float64, parts)
		for part, owners := range w.leader().p().log.View().Owners {
			weights[part] = 1
			for _, o := range owners {
				if o.Name == "n1" {
					weights[part] = 4
				}
			}
		}
		before := load(weights)
		for _, n := range w.all() {
			n.set(func(p *process) { p.weights = weights })
		}
		time.Sleep(weighEvery + time.Second)
		w.settle()
		if after := load(weights); after >= before {
			t.Errorf("the heaviest member carried %v and carries %v", before, after)
		}
	})
}
