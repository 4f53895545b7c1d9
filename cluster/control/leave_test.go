package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
)

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
