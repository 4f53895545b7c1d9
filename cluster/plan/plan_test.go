package plan

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// reporter is what a test and a rapid check have in common.
type reporter interface {
	Fatalf(format string, args ...any)
	Fatal(args ...any)
}

// world applies what is planned, as the log would, with every ingest node reporting.
type world struct {
	t      reporter
	s      *state.State
	index  uint64
	health map[string]Health
	boots  map[string]uint64
}

func newWorld(t reporter, partitions uint32, replicas int) *world {
	w := &world{t: t, s: state.New(), health: map[string]Health{}, boots: map[string]uint64{}}
	w.must(state.Command{Found: &state.Founding{ClusterID: "c", Partitions: partitions, Replicas: replicas}})
	return w
}

func (w *world) do(c state.Command) state.Result {
	w.index++
	c.ID = [16]byte{byte(w.index), byte(w.index >> 8), byte(w.index >> 16), 1}
	return w.s.Apply(w.index, c)
}

func (w *world) must(c state.Command) {
	if err := w.do(c).Err(); err != nil {
		w.t.Fatalf("%+v: %v", c, err)
	}
}

func (w *world) join(name string) {
	w.boots[name]++
	w.health[name] = Alive
	w.must(state.Command{Introduce: &state.Member{Name: name, ServerID: "id-" + name, Boot: w.boots[name]}})
}

func (w *world) register(n int) {
	w.do(state.Command{Register: &state.Registration{Registration: catalog.Registration{
		Instance: fmt.Sprint(n), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: fmt.Sprintf("tcp://127.0.0.1:%d", n),
		ReplayEndpoint: fmt.Sprintf("tcp://127.0.0.1:%d", n+1)}}})
}

// bind registers a worker that connects to a member.
func (w *world) bind(n int, node string) {
	w.do(state.Command{Register: &state.Registration{Node: node, Registration: catalog.Registration{
		Instance: fmt.Sprint(n), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: fmt.Sprintf("tcp://*:%d", n)}}})
}

// served are the partitions that somebody alive can answer for.
func (w *world) served() map[uint32]bool {
	v, out := w.s.View(), map[uint32]bool{}
	for part, owners := range v.Owners {
		for _, o := range owners {
			if w.health[o.Name] == Alive && v.Ready(uint32(part), o.Name) {
				out[uint32(part)] = true
			}
		}
	}
	return out
}

// keepsServing runs one step of the cluster itself and checks that it takes no
// partition away from those who ask, and that no more copies than allowed are under way.
func (w *world) keepsServing(step func()) {
	before := w.served()
	step()
	after := w.served()
	for part := range before {
		if !after[part] {
			w.t.Fatalf("partition %d is not served any more: %v", part, w.s.View().Owners[part])
		}
	}
	inFlight := 0
	for _, j := range w.s.View().Jobs {
		inFlight += len(j.Moves)
	}
	if inFlight > maxMoves {
		w.t.Fatalf("%d copies under way", inFlight)
	}
}

const maxMoves = 6

// settle plans, applies and reports until nothing more is planned.
func (w *world) settle() {
	for range 2000 {
		cmds := Next(Input{View: w.s.View(), Health: w.health, MaxMoves: maxMoves, MaxRebalanced: 2})
		for _, c := range cmds {
			w.keepsServing(func() { w.must(c) }) // the state machine never refuses what is planned from its own state
		}
		reported := false
		for _, j := range w.s.View().Jobs {
			for node := range j.Waiting {
				if w.health[node] != Alive {
					continue
				}
				w.keepsServing(func() {
					r := w.do(state.Command{Report: &state.Report{Job: j.ID, Node: node, Version: w.s.View().Versions[node], Boots: j.Boots}})
					reported = reported || r.Err() == nil
				})
			}
		}
		if len(cmds) == 0 && !reported {
			return
		}
	}
	w.t.Fatal("planning does not come to an end")
}

func (w *world) check() {
	v := w.s.View()
	staying, alive, dead := 0, 0, 0 // dead ones may come back: nothing is done for them yet
	for _, m := range v.Members {
		switch w.health[m.Name] {
		case Alive:
			alive++
		case Dead:
			dead++
		}
		if m.Phase == state.Active && w.health[m.Name] != Gone {
			staying++
		}
	}
	for _, m := range v.Members {
		if m.Phase == state.Leaving && w.health[m.Name] == Alive && dead == 0 {
			w.t.Fatalf("%s is still leaving", m.Name)
		}
	}
	for part := range v.Owners {
		ready := 0
		for _, o := range v.Owners[part] {
			if m, _ := v.Member(o.Name); m.Phase == state.Active && w.health[o.Name] == Alive && !v.Ready(uint32(part), o.Name) {
				w.t.Fatalf("partition %d: %s is alive and not ready", part, o.Name)
			}
			if v.Ready(uint32(part), o.Name) && w.health[o.Name] == Alive {
				ready++
			}
			if w.health[o.Name] == Gone && dead == 0 && staying >= v.Cluster.Replicas {
				w.t.Fatalf("partition %d is still at %s, which is gone", part, o.Name)
			}
		}
		if want := min(v.Cluster.Replicas, alive); ready < want && dead == 0 {
			w.t.Fatalf("partition %d has %d ready owners of %d members alive: %v", part, ready, alive, v.Owners[part])
		}
	}
	for _, src := range v.Catalog.Sources() {
		a, ok := v.Assignments[src.ID]
		if _, member := v.Member(a.Node); !ok || !member || w.health[a.Node] != Alive && !catalog.Binds(src.Endpoint) {
			w.t.Fatalf("source %d is read by %q", src.ID, a.Node)
		}
	}
}

// Whatever happens to members and workers: what is planned is accepted, comes to an
// end, and then every source is read by somebody alive and every partition has its
// ready owners.
func TestPlansConverge(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 8, rapid.IntRange(1, 3).Draw(t, "replicas"))
		w.join("n0")
		w.settle()
		next := 1
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			members := w.s.View().Members
			some := members[rapid.IntRange(0, len(members)-1).Draw(t, "member")].Name
			switch rapid.IntRange(0, 8).Draw(t, "event") {
			case 0, 1:
				w.join(fmt.Sprint("n", next))
				next++
			case 2:
				for i := range rapid.IntRange(1, 5).Draw(t, "workers") {
					w.register(100*next + i)
				}
				next++
			case 3:
				if aliveBut(w, some) {
					w.health[some] = Dead
				}
			case 4:
				if w.health[some] == Dead {
					w.health[some] = Gone
				}
			case 5:
				if w.health[some] != Alive || aliveBut(w, some) {
					w.join(some) // a new process
				}
			case 7:
				w.bind(100*next, some)
				next++
			case 8:
				if aliveBut(w, some) && w.health[some] != Alive {
					w.must(state.Command{Remove: &some})
					delete(w.health, some)
				}
			case 6:
				if aliveBut(w, some) && w.health[some] == Alive {
					w.must(state.Command{Leave: &some})
				}
			}
			if rapid.Bool().Draw(t, "settle") {
				w.settle()
			}
		}
		w.settle()
		w.check()
	})
}

// aliveBut reports whether a member that stays is alive besides name.
func aliveBut(w *world, name string) bool {
	for _, m := range w.s.View().Members {
		if m.Name != name && m.Phase == state.Active && w.health[m.Name] == Alive {
			return true
		}
	}
	return false
}

// A join moves about its share and nothing between the others, a few copies at a time.
func TestJoinIsThrottled(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 64, 1)
		w.join("a")
		w.join("b")
		w.settle()
		w.register(1)
		w.settle()
		w.join("c")
		cmds := Next(Input{View: w.s.View(), Health: w.health, MaxMoves: 5})
		if len(cmds) != 1 || cmds[0].Begin == nil || len(cmds[0].Begin.Moves) != 5 {
			t.Fatalf("planned %+v", cmds)
		}
		for _, m := range cmds[0].Begin.Moves {
			if m.To != "c" || m.Drop == "" {
				t.Fatalf("move %+v", m)
			}
		}
		w.must(cmds[0])
		if more := Next(Input{View: w.s.View(), Health: w.health, MaxMoves: 5}); len(more) != 0 {
			t.Fatalf("while five copies are being made: %+v", more)
		}
	})
}

// Many sources spread by weight, and a dead reader's go to the others.
func TestSourcesSpread(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, 16, 1)
		for i := range 4 {
			w.join(fmt.Sprint("n", i))
		}
		w.settle()
		for i := range 200 {
			w.register(i + 1)
		}
		w.settle()
		count := func() map[string]int {
			n := map[string]int{}
			for _, a := range w.s.View().Assignments {
				n[a.Node]++
			}
			return n
		}
		for name, n := range count() {
			if n > 63 { // 50 x 1.25
				t.Fatalf("%s reads %d of 200 sources", name, n)
			}
		}
		before := w.s.View().Assignments
		w.health["n2"] = Dead
		w.settle()
		for id, a := range w.s.View().Assignments {
			if a.Node == "n2" || before[id].Node != "n2" && before[id] != a {
				t.Fatalf("source %d went from %+v to %+v", id, before[id], a)
			}
		}
	})
}
