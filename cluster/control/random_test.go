package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// schedule is one random life of a cluster.
type schedule struct {
	*world
	rng     *rand.Rand
	next    int
	sources int
	pending sync.WaitGroup // leavings
	events  []string
}

func (s *schedule) note(format string, args ...any) {
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

func (s *schedule) one(nodes []*node) *node {
	if len(nodes) == 0 {
		return nil
	}
	return nodes[s.rng.IntN(len(nodes))]
}

func (s *schedule) down() (out []*node) {
	for _, n := range s.all() {
		if !n.p().running {
			out = append(out, n)
		}
	}
	return out
}

// propose tries for a while; without a quorum it gives up.
func (s *schedule) propose(at *node, c state.Command) {
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	_, _ = at.p().ctl.Propose(ctx, c)
}

func (s *schedule) step() {
	n := s.one(s.running())
	switch s.rng.IntN(12) {
	case 0, 1:
		if len(s.all()) < 8 {
			name := fmt.Sprint("n", s.next)
			s.next++
			s.note("add %s", name)
			added := s.add(name)
			added.set(func(p *process) { p.clusterID = "c" })
		}
	case 2, 3:
		for range 1 + s.rng.IntN(4) {
			s.sources++
			home, endpoint := "", fmt.Sprintf("tcp://127.0.0.1:%d", s.sources)
			if s.rng.IntN(4) == 0 {
				home, endpoint = n.name, fmt.Sprintf("tcp://*:%d", s.sources)
			}
			s.propose(n, state.Command{Register: &state.Registration{Node: home, Registration: catalog.Registration{
				Instance: fmt.Sprint(s.sources), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: endpoint}}})
		}
		s.note("workers up to %d at %s", s.sources, n.name)
	case 4, 5:
		if len(s.running()) > 1 {
			if l := s.leader(); l != nil && s.rng.IntN(2) == 0 {
				n = l
			}
			s.note("kill %s", n.name)
			s.kill(n.name)
		}
	case 6:
		if n := s.one(s.down()); n != nil {
			s.note("start %s", n.name)
			n.start()
		}
	case 7:
		if l := s.leader(); l != nil && s.rng.IntN(2) == 0 {
			n = l
		}
		s.note("cut %s", n.name)
		s.cut(n.name)
	case 8:
		s.note("heal %s", n.name)
		s.heal(n.name)
	case 9:
		victim := s.one(append(s.running(), s.down()...))
		s.note("leave %s at %s", victim.name, n.name)
		s.pending.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
			defer cancel()
			_ = n.p().ctl.Leave(ctx, victim.name, func(Progress) {})
		})
	case 10:
		victim, force := s.one(append(s.running(), s.down()...)), s.rng.IntN(3) == 0
		s.note("remove %s at %s, force %v", victim.name, n.name, force)
		ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
		defer cancel()
		if err := n.p().ctl.Remove(ctx, victim.name, force); err == nil && !force && s.reach(n.name, victim.name) && time.Since(s.lastChange(victim.name)) > detect {
			s.t.Errorf("%s was removed alive and without force", victim.name)
		}
	case 11:
		pause := time.Duration(s.rng.IntN(40)) * time.Second
		s.note("pause %v", pause)
		time.Sleep(pause)
	}
	time.Sleep(time.Duration(s.rng.IntN(3000)) * time.Millisecond)
	// The process of a removed member ends; somebody may start another one later.
	for _, n := range s.running() {
		if errors.Is(n.p().err, ErrRemoved) {
			s.note("%s ends, removed", n.name)
			s.kill(n.name)
		}
	}
}

func (w *world) lastChange(name string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.changed[name]
}

// finish heals everything and starts so many of the dead that somebody leads.
func (s *schedule) finish() {
	for name := range s.all() {
		s.heal(name)
	}
	s.pending.Wait()
	for {
		for range 100 {
			if s.leader() != nil && s.leaving() == "" {
				return
			}
			time.Sleep(200 * time.Millisecond)
		}
		n := s.one(s.down())
		if n == nil {
			s.t.Fatalf("all live and nobody leads, or %q does not get to leave: %v", s.leaving(), s.events)
		}
		s.note("start %s", n.name)
		n.start()
	}
}

// leaving returns a member that cannot leave as long as others are down.
func (s *schedule) leaving() string {
	for _, m := range s.leader().p().log.View().Members {
		if m.Phase == state.Leaving {
			return m.Name
		}
	}
	return ""
}

// Whatever happens: the invariants hold all the time (see broken), and in the end
// everybody alive is a member, every partition is complete at as many owners as it is to
// have, every source is read, and raft's voters are as they should be.
func TestRandomSchedules(t *testing.T) {
	seeds := 15
	if testing.Short() {
		seeds = 5
	}
	first := rand.Uint64()
	if v, err := strconv.ParseUint(os.Getenv("KVCLUSTER_SEED"), 10, 64); err == nil {
		first = v
	}
	for i := range seeds {
		seed := first + uint64(i)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { runSchedule(t, seed) })
	}
}

func runSchedule(t *testing.T, seed uint64) {
	synctest.Test(t, func(t *testing.T) {
		s := &schedule{world: newWorld(t), rng: rand.New(rand.NewPCG(seed, 1))}
		defer s.close()
		defer func() {
			if t.Failed() {
				t.Logf("seed %d: %v", seed, s.events)
				s.describe()
			}
		}()
		s.found("n0")
		for s.next = 1; s.next <= 2+s.rng.IntN(3); s.next++ {
			s.join(fmt.Sprint("n", s.next))
		}
		s.settle()
		for range 20 {
			s.step()
		}
		s.finish()
		s.settle()
	})
}
