package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// aborts ends jobs whose target is dead or leaves, and those that would wait for the
// return of somebody (see awaited). What a dead target got is closed anyway by the time it
// is back, and the job would keep others from being filled.
func (p *planner) aborts() (out []state.Command) {
	for _, j := range p.View.Jobs {
		if p.hopeless(j) {
			out = append(out, state.Command{Abort: &j.ID})
		}
	}
	return out
}

func (p *planner) hopeless(j state.Job) bool {
	if drops(j) {
		for node := range j.Waiting {
			if p.awaited(node) {
				return true
			}
		}
	}
	return slices.ContainsFunc(j.Moves, func(m state.Move) bool {
		to, ok := p.View.Member(m.To)
		return m.To != "" && (!ok || to.Phase != state.Active || p.health(m.To) != Alive)
	})
}

func drops(j state.Job) bool {
	return slices.ContainsFunc(j.Moves, func(m state.Move) bool { return m.Drop != "" })
}

// awaited reports whether a node is dead, may come back, and has sources that nobody
// else can read. Nothing is dropped meanwhile: it may be the only copy from which that
// node could continue them.
func (p *planner) awaited(node string) bool {
	return p.health(node) == Dead && slices.ContainsFunc(p.View.Catalog.Sources(), func(s catalog.Source) bool {
		return p.View.Assignments[s.ID].Node == node && catalog.Binds(s.Endpoint)
	})
}

// excuses keeps jobs from waiting for a dead node that has only sources that nobody
// else can read.
func (p *planner) excuses() (out []state.Command) {
	for _, j := range p.View.Jobs {
		for _, node := range slices.Sorted(maps.Keys(j.Waiting)) {
			if p.health(node) != Alive && !p.reads(node) && !p.hopeless(j) {
				out = append(out, state.Command{Excuse: &state.Excuse{Job: j.ID, Node: node}})
			}
		}
	}
	return out
}

// moves plans copies, the most urgent first: owners that restarted are filled again
// where they are, then partitions with too few complete owners alive get new copies,
// then the rest of the wanted placement is approached. There is one job for each target,
// so that the death of one costs the others nothing, and one for its copies that replace
// others, so that an abort of those costs the rest nothing.
func (p *planner) moves() (out []state.Command) {
	p.keep = slices.ContainsFunc(p.View.Members, func(m state.Member) bool { return p.awaited(m.Name) })
	m := moveList{room: p.MaxMoves, busy: map[uint32]bool{}, jobs: map[jobKey][]state.Move{}}
	for _, j := range p.View.Jobs {
		if !p.hopeless(j) { // those have been aborted when the moves of this plan begin
			m.room -= len(j.Moves)
		}
		for _, move := range j.Moves {
			m.busy[move.Partition] = true
		}
	}
	p.refills(&m)
	if wanted, err := p.placement(); err == nil {
		p.approachAll(&m, wanted)
	}
	keys := slices.SortedFunc(maps.Keys(m.jobs), func(a, b jobKey) int {
		return cmp.Or(cmp.Compare(a.drops, b.drops), cmp.Compare(a.to, b.to))
	})
	for _, k := range keys {
		out = append(out, state.Command{Begin: &state.Begin{Moves: m.jobs[k]}})
	}
	return out
}

type moveList struct {
	room int
	busy map[uint32]bool // partitions that are part of a change already
	jobs map[jobKey][]state.Move
}

type jobKey struct {
	to    string
	drops int // 1 = copies that replace others
}

func (l *moveList) add(m state.Move) {
	if l.room <= 0 || l.busy[m.Partition] {
		return
	}
	k := jobKey{to: m.To}
	if m.Drop != "" {
		k.drops = 1
	}
	l.jobs[k] = append(l.jobs[k], m)
	l.busy[m.Partition] = true
	l.room--
}

func (p *planner) refills(l *moveList) {
	for part, owners := range p.View.Owners {
		for _, o := range owners {
			m, ok := p.View.Member(o.Name)
			if ok && o.Boot != m.Boot && m.Phase == state.Active && p.health(o.Name) == Alive {
				l.add(state.Move{Partition: uint32(part), To: o.Name})
			}
		}
	}
}

// approachAll goes through the partitions, those with the fewest complete owners alive
// first. On hold, and while nothing may be dropped, it leaves out those that have enough.
func (p *planner) approachAll(l *moveList, wanted shard.Placement) {
	order := make([]uint32, len(wanted.Owners))
	ready := make([]int, len(wanted.Owners))
	for part := range order {
		order[part] = uint32(part)
		for _, o := range p.View.Owners[part] {
			if p.serves(uint32(part), o.Name) {
				ready[part]++
			}
		}
	}
	slices.SortStableFunc(order, func(a, b uint32) int { return cmp.Compare(ready[a], ready[b]) })
	for _, part := range order {
		if (p.Hold || p.keep) && ready[part] > 0 && ready[part] >= len(wanted.Owners[part]) {
			continue
		}
		p.approach(part, wanted.Owners[part], l)
	}
}

// serves reports whether a member's copy of a partition can be read.
func (p *planner) serves(part uint32, name string) bool {
	return p.health(name) == Alive && p.View.Ready(part, name)
}

// placement is where copies should be: on members that stay and are not gone.
func (p *planner) placement() (shard.Placement, error) {
	var members []shard.Member
	for _, m := range p.View.Members {
		if m.Phase == state.Active && p.health(m.Name) != Gone {
			members = append(members, shard.Member{Name: m.Name, Zone: m.Zone, Weight: m.Weight})
		}
	}
	now := shard.Placement{Owners: make([][]string, len(p.View.Owners))}
	for part, owners := range p.View.Owners {
		for _, o := range owners {
			now.Owners[part] = append(now.Owners[part], o.Name)
		}
	}
	return shard.Place(shard.PlaceConfig{
		Partitions: p.View.Cluster.Partitions, Replicas: p.View.Cluster.Replicas, Weights: p.Weights,
	}, members, &now)
}

// approach plans the next copy of a partition: a wanted owner that is missing replaces
// one that is not wanted, one that cannot be read first. Once all wanted owners are
// alive and complete, the others are dropped.
func (p *planner) approach(part uint32, wanted []string, l *moveList) {
	owners := p.View.Owners[part]
	has := func(name string) bool {
		return slices.ContainsFunc(owners, func(o state.Owner) bool { return o.Name == name })
	}
	var surplus []string
	for _, o := range owners {
		if !slices.Contains(wanted, o.Name) {
			surplus = append(surplus, o.Name)
		}
	}
	slices.SortStableFunc(surplus, func(a, b string) int { return cmp.Compare(p.worth(part, a), p.worth(part, b)) })
	complete := true
	for _, w := range wanted {
		if has(w) {
			complete = complete && p.serves(part, w)
			continue
		}
		complete = false
		if p.health(w) != Alive {
			continue
		}
		m := state.Move{Partition: part, To: w}
		if len(surplus) > 0 && !p.keep {
			m.Drop = surplus[0]
		}
		l.add(m)
		return
	}
	if complete && len(surplus) > 0 && !p.keep {
		l.add(state.Move{Partition: part, Drop: surplus[0]})
	}
}

// worth orders owners that are not wanted: gone ones are dropped first, then those that
// cannot be read.
func (p *planner) worth(part uint32, name string) int {
	switch {
	case p.health(name) == Gone:
		return 0
	case !p.serves(part, name):
		return 1
	}
	return 2
}
