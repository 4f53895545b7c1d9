package control

import (
	"context"
	"errors"
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

// A member whose log does not follow gets no vote, also when the log is short: it would
// count for the majority.
func TestNoVoteBeforeCaughtUp(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(2)
		w.register("n0", 1000)
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
