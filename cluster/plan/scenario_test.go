package plan

import (
	"fmt"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// scenario runs a fixed sequence in a world with two replicas, three workers and the
// given number of members, settled.
func scenario(t *testing.T, members int, run func(w *world)) {
	t.Helper()
	w := newWorld(t, 8, 2)
	for n := range members {
		w.join(fmt.Sprint("n", n))
		w.settle()
	}
	for n := range 3 {
		w.register(10 * (n + 1))
	}
	w.settle()
	w.check()
	run(w)
}

// copiesAt counts the partitions that a member owns, and those that it is ready for.
func (w *world) copiesAt(name string) (owned, ready int) {
	v := w.s.View()
	for part, owners := range v.Owners {
		for _, o := range owners {
			if o.Name == name {
				owned++
			}
		}
		if v.Ready(uint32(part), name) {
			ready++
		}
	}
	return owned, ready
}

// Two replicas are as many as there are members, up to two.
func TestTwoReplicas(t *testing.T) {
	for _, members := range []int{1, 2, 3, 5} {
		scenario(t, members, func(w *world) {
			copies := 0
			for n := range members {
				owned, ready := w.copiesAt(fmt.Sprint("n", n))
				if owned != ready || owned == 0 {
					w.t.Fatalf("%d members: n%d owns %d partitions and is ready for %d", members, n, owned, ready)
				}
				copies += owned
			}
			if want := 8 * min(2, members); copies != want {
				w.t.Fatalf("%d members: %d copies, want %d", members, copies, want)
			}
		})
	}
}

// A dead owner's copies wait for it; when it is gone for good, others get them.
func TestKilledForGood(t *testing.T) {
	scenario(t, 3, func(w *world) {
		w.health["n1"] = Dead
		w.settle()
		if owned, _ := w.copiesAt("n1"); owned == 0 || len(w.s.View().Jobs) != 0 {
			w.t.Fatalf("within the grace period: n1 owns %d, jobs %+v", owned, w.s.View().Jobs)
		}
		w.health["n1"] = Gone
		w.settle()
		w.check()
		if owned, _ := w.copiesAt("n1"); owned != 0 {
			w.t.Fatalf("n1 still owns %d partitions", owned)
		}
	})
}

// A restarted owner is filled again where it is.
func TestRefilledInPlace(t *testing.T) {
	scenario(t, 3, func(w *world) {
		before, _ := w.copiesAt("n1")
		w.health["n1"] = Dead
		w.settle()
		w.join("n1")
		if _, ready := w.copiesAt("n1"); ready != 0 {
			w.t.Fatalf("ready for %d partitions with an empty index", ready)
		}
		for _, c := range Next(Input{View: w.s.View(), Health: w.health}) {
			if c.Begin != nil && (c.Begin.Moves[0].To != "n1" || c.Begin.Moves[0].Drop != "") {
				w.t.Fatalf("planned %+v", c.Begin.Moves)
			}
		}
		w.settle()
		w.check()
		if owned, ready := w.copiesAt("n1"); owned != before || ready != before {
			w.t.Fatalf("owned %d before, now owns %d and is ready for %d", before, owned, ready)
		}
	})
}

func TestLeaveDrains(t *testing.T) {
	for _, members := range []int{2, 3, 5} {
		scenario(t, members, func(w *world) {
			w.must(state.Command{Leave: new("n0")})
			w.settle()
			if _, still := w.s.View().Member("n0"); still {
				w.t.Fatalf("n0 is still a member of %d", members)
			}
			w.check()
		})
	}
}

// A target that dies in mid-job loses its job at once, and the others keep theirs.
func TestDeadTargetCostsOthersNothing(t *testing.T) {
	scenario(t, 3, func(w *world) {
		w.join("n3")
		w.join("n4")
		for _, c := range Next(Input{View: w.s.View(), Health: w.health}) {
			w.must(c)
		}
		jobs := w.s.View().Jobs
		if len(jobs) != 2 {
			w.t.Fatalf("jobs %+v", jobs)
		}
		w.health["n3"] = Dead
		for _, c := range Next(Input{View: w.s.View(), Health: w.health}) {
			w.must(c)
		}
		for _, j := range w.s.View().Jobs {
			if j.Moves[0].To == "n3" {
				w.t.Fatalf("still being filled although dead: %+v", j)
			}
		}
		if left := w.s.View().Jobs; len(left) == 0 || left[0].ID != jobs[1].ID && left[0].ID != jobs[0].ID {
			w.t.Fatalf("the job of n4 did not survive: %+v", left)
		}
	})
}

// An owner is not dropped while one of those that are wanted cannot be read.
func TestNoDropForTheDead(t *testing.T) {
	scenario(t, 2, func(w *world) {
		for part := range uint32(8) { // n2 is a further owner of everything
			if part == 0 {
				w.join("n2")
			}
			w.must(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: part, To: "n2"}}}})
		}
		for _, j := range w.s.View().Jobs {
			for node := range j.Waiting {
				w.do(state.Command{Report: &state.Report{Job: j.ID, Node: node, Version: w.s.View().Versions[node], Boots: j.Boots}})
			}
		}
		w.health["n0"], w.health["n1"] = Dead, Dead
		w.settle() // checks that what is served stays served
		if owned, ready := w.copiesAt("n2"); owned != 8 || ready != 8 {
			w.t.Fatalf("n2 owns %d partitions and is ready for %d, alone alive", owned, ready)
		}
	})
}

// While a node may come back whose engines connect to it, missing copies are made and
// nothing is dropped: only from what is there can it continue. When it is gone, nobody
// waits for it.
func TestGoneNodeWithBoundSources(t *testing.T) {
	scenario(t, 3, func(w *world) {
		w.bind(900, "n1")
		w.settle()
		before := w.s.View().Owners
		w.join("n3")
		for _, c := range Next(Input{View: w.s.View(), Health: w.health}) {
			w.must(c) // copies for n3 that replace others are under way
		}
		w.health["n1"] = Dead
		w.join("n0")
		w.settle()
		if _, ready := w.copiesAt("n0"); ready == 0 {
			w.t.Fatal("n0 restarted and is not filled")
		}
		after := w.s.View().Owners
		for part, owners := range before {
			for _, o := range owners {
				if !slices.ContainsFunc(after[part], func(a state.Owner) bool { return a.Name == o.Name }) {
					w.t.Fatalf("partition %d was taken from %s", part, o.Name)
				}
			}
		}
		for part := range after {
			alive := 0
			for _, o := range after[part] {
				if w.health[o.Name] == Alive {
					alive++
				}
			}
			if alive > 2 {
				w.t.Fatalf("partition %d got a copy too many: %v", part, after[part])
			}
		}
		w.health["n1"] = Gone
		w.settle()
		w.check()
	})
}

// While members come in, only what is missing is copied.
func TestHold(t *testing.T) {
	scenario(t, 3, func(w *world) {
		w.join("n3")
		if cmds := Next(Input{View: w.s.View(), Health: w.health, Hold: true}); len(cmds) != 0 {
			w.t.Fatalf("planned %+v", cmds)
		}
		w.health["n1"] = Gone
		cmds := Next(Input{View: w.s.View(), Health: w.health, Hold: true})
		begins := 0
		for _, c := range cmds {
			if c.Begin != nil {
				begins++
			}
		}
		if begins == 0 {
			w.t.Fatalf("missing copies are held back: %+v", cmds)
		}
	})
}

// Sources go slowly to members that joined after them, as far as the engine can replay.
func TestSourcesAreRebalanced(t *testing.T) {
	w := newWorld(t, 8, 1)
	w.join("n0")
	w.settle()
	w.bind(5000, "n0")
	w.do(state.Command{Register: &state.Registration{Registration: catalog.Registration{ // it cannot replay
		Instance: "6000", Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: "tcp://127.0.0.1:1"}}})
	for n := range 79 {
		w.register(10 * (n + 1))
	}
	for _, c := range Next(Input{View: w.s.View(), Health: w.health}) {
		w.must(c)
	}
	for n := range 3 {
		w.join(fmt.Sprint("n", n+1))
	}
	if n := len(Next(Input{View: w.s.View(), Health: w.health, MaxRebalanced: 4, Hold: true})); n != 0 {
		t.Fatalf("%d commands on hold", n)
	}
	w.settle()
	count := map[string]int{}
	for _, a := range w.s.View().Assignments {
		count[a.Node]++
	}
	for n := range 4 {
		if c := count[fmt.Sprint("n", n)]; c > 26 || c == 0 { // ceil(81 / 4 x 1.25)
			t.Fatalf("sources by reader: %v", count)
		}
	}
	for _, s := range w.s.View().Catalog.Sources() {
		if node := w.s.View().Assignments[s.ID].Node; s.ReplayEndpoint == "" && node != "n0" {
			t.Fatalf("source %d of %s went to %s without a replay", s.ID, s.Endpoint, node)
		}
	}
	w.check()
}
