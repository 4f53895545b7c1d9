package fanout

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
)

var (
	seedFlag  = flag.Int64("fanout.seed", -1, "run only this random world")
	seedsFlag = flag.Int64("fanout.seeds", 4, "how many random worlds")
)

// chaos is what happens in a random world while frames flow and answers are judged.
type chaos struct {
	*world
	rng    *rand.Rand
	names  []string
	faults bool
	done   struct{ cuts, pauses, restarts, begins, aborts, renewals, faults, assigned int }
}

// random runs one world and returns what was wrong with it.
func random(t *testing.T, seed int64, broken mutant) (w *world, wrong []string) {
	rng := rand.New(rand.NewPCG(uint64(seed), 5))
	partitions := uint32(2 + rng.IntN(5))
	w = newWorld(t, partitions, broken, func(c *Config) {
		if seed%3 == 0 {
			c.HoldBytes = 8 << 10 // some holds overflow
		}
		if seed%4 == 1 {
			c.Throttle = 200_000
		}
	})
	if seed%4 != 1 {
		w.open = newLateIndex
	}
	x := &chaos{world: w, rng: rng, faults: seed%2 == 0}
	for i := range 3 + rng.IntN(3) {
		x.names = append(x.names, string(rune('a'+i)))
	}
	for _, name := range x.names {
		w.start(name)
	}
	for p := range partitions {
		for _, i := range rng.Perm(len(x.names))[:2] {
			w.begin(state.Move{Partition: p, To: x.names[i]})
		}
	}
	lag := rand.New(rand.NewPCG(uint64(seed), 6))
	w.mu.Lock()
	w.mu.lag = func(string) time.Duration { // called with the lock
		if lag.IntN(8) == 0 {
			return time.Duration(lag.IntN(400)) * time.Millisecond
		}
		return time.Duration(lag.IntN(5)) * time.Millisecond
	}
	w.mu.Unlock()
	for i := range 4 {
		w.register(fmt.Sprint("i", i), x.names[i%2])
	}
	for i, name := range x.names[:2] {
		w.node(name).startFeed(uint64(seed)*10+uint64(i), 4*time.Millisecond)
	}
	for _, from := range x.names {
		for _, to := range x.names {
			x.delay(from, to)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for i := range 2 * len(x.names) {
		readers.Go(func() { x.reader(ctx, x.names[i%len(x.names)], uint64(seed)+uint64(i)) })
	}
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end) && len(w.failed()) == 0; {
		x.step()
		time.Sleep(time.Duration(rng.IntN(600)) * time.Millisecond)
	}
	for _, from := range x.names {
		for _, to := range x.names {
			w.net.HealMesh(from, to)
			w.net.SetMeshFault(from, to, nil)
		}
		w.net.PauseMesh(from, false)
	}
	time.Sleep(3 * time.Second)
	for _, n := range w.all() {
		if n.feed() != nil {
			n.feed().setQuiet(true)
		}
	}
	var err error
	if len(w.failed()) == 0 {
		err = w.settled(40 * time.Second)
	}
	cancel()
	readers.Wait()
	wrong = w.failed()
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	if _, errs := w.compare(); len(wrong) == 0 {
		wrong = append(wrong, errs...)
	}
	if !x.faults { // else frames may be on their way to a copy that was closed
		wrong = append(wrong, w.odd()...)
	}
	w.stopAll()
	time.Sleep(time.Minute)
	t.Logf("seed %d: %+v, %d reports, %d renewals, reads %+v", seed, x.done, w.mu.reports, w.mu.renewals, w.mu.read)
	return w, wrong
}

// reader reads from whatever process has that name.
func (x *chaos) reader(ctx context.Context, name string, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	for sleep(ctx, time.Duration(1+rng.IntN(8_000))*time.Microsecond) == nil {
		if n := x.node(name); n != nil {
			n.read(uint32(rng.IntN(int(x.partitions))), allPrompts[rng.IntN(len(allPrompts))])
		}
	}
}

// delay makes one direction slow, some more than others.
func (x *chaos) delay(from, to string) {
	if x.rng.IntN(3) > 0 {
		return
	}
	rng := rand.New(rand.NewPCG(x.rng.Uint64(), 1))
	most := []int{2, 10, 60}[x.rng.IntN(3)]
	loss := []int{0, 0, 2}[x.rng.IntN(3)]
	x.net.SetMeshFault(from, to, func([]byte) []time.Duration {
		if rng.IntN(100) < loss {
			return nil
		}
		return []time.Duration{time.Duration(rng.IntN(most*1000)) * time.Microsecond}
	})
}

// step does one thing.
func (x *chaos) step() {
	pick := func() string { return x.names[x.rng.IntN(len(x.names))] }
	wait := func(ms int) time.Duration { return time.Duration(x.rng.IntN(ms)) * time.Millisecond }
	switch v := x.rng.IntN(100); {
	case v < 20: // no way from one to the other, for a while
		from, to := pick(), pick()
		x.done.cuts++
		x.net.CutMesh(from, to)
		if x.rng.IntN(2) == 0 {
			x.net.CutMesh(to, from)
		}
		time.AfterFunc(wait([]int{300, 3000, 6000}[x.rng.IntN(3)]), func() {
			x.net.HealMesh(from, to)
			x.net.HealMesh(to, from)
		})
	case v < 30: // a node stands still
		name := pick()
		x.done.pauses++
		x.net.PauseMesh(name, true)
		time.AfterFunc(wait([]int{500, 4000}[x.rng.IntN(2)]), func() { x.net.PauseMesh(name, false) })
	case v < 38: // a process ends, and another begins with nothing
		if name := x.names[2+x.rng.IntN(len(x.names)-2)]; x.node(name) != nil {
			x.done.restarts++
			x.node(name).stop()
			time.Sleep(wait(1000))
			x.start(name)
		}
	case v < 44 && len(x.view().Jobs) > 0:
		id := x.view().Jobs[0].ID
		x.done.aborts++
		_, _ = x.propose(state.Command{Abort: &id})
	case v < 47:
		if workers := x.view().Catalog.Workers(); len(workers) > 0 {
			wk := workers[x.rng.IntN(len(workers))]
			x.done.renewals++
			_, _ = x.propose(state.Command{NewLife: &state.NewLife{Instance: wk.Instance, Rank: wk.Ranks[0].Rank, Life: wk.Ranks[0].Life}})
		}
	case v < 55:
		x.fault(pick())
	case v < 58: // another node reads a source, which begins new lives
		v := x.view()
		src := v.Catalog.Sources()[x.rng.IntN(4)]
		to := x.names[0]
		if v.Assignments[src.ID].Node == to {
			to = x.names[1]
		}
		x.done.assigned++
		_, _ = x.propose(state.Command{Assign: &state.Assign{Source: src.ID, Node: to}})
	default:
		x.move(pick)
	}
}

// fault has a node refuse a frame of a copy that is open there.
func (x *chaos) fault(name string) {
	n, instance := x.node(name), fmt.Sprint("i", x.rng.IntN(4))
	if n == nil || !x.faults {
		return
	}
	if open := n.owner.Labels(x.life(instance)).Copies; len(open) > 0 {
		x.done.faults++
		n.spoil(instance, open[x.rng.IntN(len(open))].Partition)
	}
}

// move begins a layout change: a restarted owner is filled again, or a copy goes
// elsewhere.
func (x *chaos) move(pick func() string) {
	v := x.view()
	var moves []state.Move
	for p, owners := range v.Owners {
		if slices.ContainsFunc(v.Jobs, func(j state.Job) bool {
			return slices.ContainsFunc(j.Moves, func(m state.Move) bool { return m.Partition == uint32(p) })
		}) {
			continue
		}
		stale := slices.IndexFunc(owners, func(o state.Owner) bool { return !v.Ready(uint32(p), o.Name) })
		switch {
		case stale >= 0:
			moves = append(moves, state.Move{Partition: uint32(p), To: owners[stale].Name})
		case x.rng.IntN(3) == 0:
			m := state.Move{Partition: uint32(p), To: pick()}
			if len(owners) >= 2 {
				m.Drop = owners[x.rng.IntN(len(owners))].Name
			}
			if m.To != m.Drop {
				moves = append(moves, m)
			}
		}
	}
	if len(moves) > 0 {
		if _, err := x.propose(state.Command{Begin: &state.Begin{Moves: moves}}); err == nil {
			x.done.begins++
		}
	}
}

// Whatever happens to links, nodes and layout, no answer of a copy that claims to be
// readable is above what was justified or below what was acknowledged; and at the end
// all copies are equal to a single index that got the same frames.
func TestRandomWorlds(t *testing.T) {
	first, n := int64(1), *seedsFlag
	if testing.Short() {
		n = min(n, 2)
	}
	if *seedFlag >= 0 {
		first, n = *seedFlag, 1
	}
	for seed := first; seed < first+n; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, wrong := random(t, seed, mutant{})
				for _, e := range wrong {
					t.Error(e)
				}
				if r := w.mu.read; r.complete < 1000 {
					t.Errorf("only %d of %d scores were complete", r.complete, r.all)
				}
			})
		})
	}
}
