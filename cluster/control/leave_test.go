package control

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
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
		others := w.others(leader)
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

// A member that is removed while it has the only vote, or one that is needed, stays until
// somebody else can do without it.
func TestRemovedVoterStaysUntilItsVoteIsTaken(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(2)
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		name := "n0"
		if r, err := w.ctl("n1").Propose(ctx, state.Command{Remove: &name}); err != nil || r.Err() != nil {
			t.Fatal(err, r.Err())
		}
		w.await("it ends", 20*time.Second, func() bool { return errors.Is(w.node(name).p().err, ErrRemoved) })
		w.settle()
		if l := w.leader(); l.name != "n1" {
			t.Errorf("%s leads", l.name)
		}
	})
	inWorld(t, func(w *world) {
		w.cluster(3)
		leader := w.leader()
		others := w.others(leader)
		slices.Sort(others)
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		w.kill(others[0])
		if r, err := leader.p().ctl.Propose(ctx, state.Command{Remove: &others[1]}); err != nil || r.Err() != nil {
			t.Fatal(err, r.Err())
		}
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if w.leader() == nil {
				t.Fatal("nobody leads")
			}
		}
		w.node(others[0]).start()
		w.await("it ends", 20*time.Second, func() bool { return errors.Is(w.node(others[1]).p().err, ErrRemoved) })
		w.settle()
	})
}

// The removal of a dead voter that waits for a quorum does not take the voter away that
// has come back and is the quorum.
func TestRemovalMeetsReturn(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 100 * time.Millisecond, 2 * time.Second} {
		inWorld(t, func(w *world) {
			w.cluster(2)
			w.kill("n0") // the only voter
			time.Sleep(detect + time.Second)
			removal := make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
				defer cancel()
				removal <- w.ctl("n1").Remove(ctx, "n0", false)
			}()
			time.Sleep(after)
			synctest.Wait()
			w.node("n0").start()
			if err := <-removal; err != nil && !errors.Is(err, state.ErrRefused) {
				t.Errorf("removal: %v", err)
			}
			w.settle()
			if err := w.node("n0").p().err; err != nil {
				t.Errorf("it ended: %v", err)
			}
			if v := w.leader().p().log.View(); len(v.Members) != 2 {
				t.Errorf("members %+v", v.Members)
			}
		})
	}
}

// A process that gossip still shows, and that was not introduced before its node was
// removed, is not taken in after that.
func TestRemovedProcessIsNotTakenIn(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(4)
		leader := w.leader()
		victim := "n1"
		if leader.name == victim {
			victim = "n2"
		}
		w.kill(victim)
		w.node(victim).start()
		w.kill(victim) // before the leader has looked
		if m, _ := leader.p().log.View().Member(victim); m.Boot != 1 {
			t.Fatalf("introduced already: %+v", m)
		}
		ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
		defer cancel()
		if err := leader.p().ctl.Remove(ctx, victim, true); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(2 * detect); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if _, ok := leader.p().log.View().Member(victim); ok {
				t.Fatal("it is a member again")
			}
		}
		w.settle()
	})
}

// A voter that gossip shows and that does not follow the log is not counted on: no change
// of the voters makes it the one that is needed.
func TestVotersThatFollowAreKept(t *testing.T) {
	inWorld(t, func(w *world) {
		w.cluster(3)
		leader := w.leader()
		others := w.others(leader)
		w.node(others[0]).set(func(p *process) { p.deaf = true })
		w.connect()
		var leaving sync.WaitGroup
		leaving.Go(func() {
			ctx, cancel := context.WithTimeout(w.ctx, 30*time.Second)
			defer cancel()
			_ = leader.p().ctl.Leave(ctx, others[1], nil) // how far it comes does not matter
		})
		for range 300 {
			time.Sleep(100 * time.Millisecond)
			if w.leader() != leader {
				t.Fatal("the leader has lost its majority")
			}
		}
		leaving.Wait()
		w.node(others[0]).set(func(p *process) { p.deaf = false })
		w.connect()
		w.settle()
	})
}

// others are the names of all nodes but one.
func (w *world) others(but *node) (out []string) {
	for name := range w.all() {
		if name != but.name {
			out = append(out, name)
		}
	}
	return out
}
