package control

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// watch checks all the time what must hold at every moment.
func (w *world) watch() {
	for w.ctx.Err() == nil {
		for _, n := range w.running() {
			if why := broken(n); why != "" {
				w.t.Errorf("%s: %s", n.name, why)
			}
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-w.ctx.Done():
		}
	}
}

func (w *world) running() (out []*node) {
	for _, n := range w.all() {
		if n.p().running {
			out = append(out, n)
		}
	}
	slices.SortFunc(out, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return out
}

// broken says which invariant a node's picture breaks.
func broken(n *node) string {
	voters := 0
	servers, err := n.p().log.Servers()
	if err != nil {
		return ""
	}
	for _, s := range servers {
		if s.Voter {
			voters++
		}
	}
	if voters > 5 {
		return fmt.Sprintf("%d voters", voters)
	}
	v := n.p().log.View()
	inFlight := 0
	for _, j := range v.Jobs {
		if len(v.Members) > 1 || len(v.Catalog.Sources()) > 0 {
			inFlight += len(j.Moves)
		}
	}
	if inFlight > moveBound {
		return fmt.Sprintf("%d copies are being made", inFlight)
	}
	for part, owners := range v.Owners {
		for _, o := range owners {
			if _, ok := v.Member(o.Name); !ok {
				return fmt.Sprintf("partition %d is owned by %s, no member", part, o.Name)
			}
		}
	}
	return ""
}

// unsettled says what is not yet as it should be in the end, or "".
func (w *world) unsettled() string {
	l := w.leader()
	if l == nil {
		return "nobody leads"
	}
	v := l.p().log.View()
	up := func(m state.Member) bool {
		n := w.node(m.Name)
		return n != nil && n.serverID == m.ServerID && w.reach(l.name, m.Name)
	}
	alive := 0
	for _, m := range v.Members {
		if !up(m) {
			continue
		}
		if m.Boot != w.node(m.Name).p().boot {
			return fmt.Sprintf("%s is known under boot %d, runs under %d", m.Name, m.Boot, w.node(m.Name).p().boot)
		}
		if m.Phase == state.Leaving {
			return m.Name + " is leaving"
		}
		alive++
	}
	for name, n := range w.all() {
		if _, ok := v.Member(name); !ok && n.p().running && n.p().err == nil && w.reach(l.name, name) && n.p().protocol == 1 {
			return name + " is no member"
		}
	}
	if len(v.Jobs) > 0 {
		return fmt.Sprintf("jobs %+v", v.Jobs)
	}
	for part := range v.Owners {
		ready := 0
		for _, o := range v.Owners[part] {
			if m, _ := v.Member(o.Name); up(m) && v.Ready(uint32(part), o.Name) {
				ready++
			}
		}
		if ready < min(v.Cluster.Replicas, alive) || ready > v.Cluster.Replicas {
			return fmt.Sprintf("partition %d has %d ready owners, %d members are alive: %+v", part, ready, alive, v.Owners[part])
		}
	}
	for _, s := range v.Catalog.Sources() {
		a, ok := v.Assignments[s.ID]
		m, member := v.Member(a.Node)
		if !ok || !member || !up(m) && !catalog.Binds(s.Endpoint) {
			return fmt.Sprintf("source %d is read by %q", s.ID, a.Node)
		}
	}
	return w.votersUnsettled(l, v, up)
}

func (w *world) votersUnsettled(l *node, v *state.View, up func(state.Member) bool) string {
	servers, err := l.p().log.Servers()
	if err != nil {
		return err.Error()
	}
	voters, spare, deadVoters := 0, 0, 0
	for _, s := range servers {
		i := slices.IndexFunc(v.Members, func(m state.Member) bool { return m.ServerID == string(s.ID) })
		switch {
		case i < 0:
			return fmt.Sprintf("server %s is no member", s.ID)
		case s.Voter && !up(v.Members[i]):
			deadVoters++
			voters++
		case s.Voter:
			voters++
		case up(v.Members[i]):
			spare++
		}
	}
	want := wantedVoters(len(v.Members))
	if voters > want || voters < want && spare > 0 && voters+spare >= want || deadVoters > 0 && spare > 0 {
		return fmt.Sprintf("%d voters (%d of them dead), %d could vote, %d wanted", voters, deadVoters, spare, want)
	}
	return ""
}

// settle waits until all is in order and stays so for a while.
func (w *world) settle() {
	w.t.Helper()
	last := ""
	for range 1500 {
		if last = w.unsettled(); last == "" {
			time.Sleep(3 * time.Second)
			if last = w.unsettled(); last == "" {
				return
			}
		}
		time.Sleep(200 * time.Millisecond)
	}
	w.t.Fatalf("not in order after five minutes: %s", last)
}

// await waits for something that must come true.
func (w *world) await(what string, within time.Duration, cond func() bool) {
	w.t.Helper()
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if cond() {
			return
		}
	}
	w.t.Fatalf("not within %v: %s", within, what)
}

// describe logs what every node knows.
func (w *world) describe() {
	for name, n := range w.all() {
		p := n.p()
		leader, _ := p.log.Leader()
		servers, _ := p.log.Servers()
		w.t.Logf("%s: running %v, boot %d, error %v, sees leader %q, servers %v, members %+v", name, p.running, p.boot, p.err, leader, servers, p.log.View().Members)
	}
}
