package plan

import (
	"cmp"
	"maps"
	"slices"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard"
)

// aborts ends jobs whose target is dead or leaves. What a dead target got is closed
// anyway by the time it is back, and the job would keep others from being filled.
func (p *planner) aborts() (out []state.Command) {
	for _, j := range p.View.Jobs {
		if p.hopeless(j) {
			out = append(out, state.Command{Abort: &j.ID})
		}
	}
	return out
}

func (p *planner) hopeless(j state.Job) bool {
	return slices.ContainsFunc(j.Moves, func(m state.Move) bool {
		to, ok := p.View.Member(m.To)
		return m.To != "" && (!ok || to.Phase != state.Active || p.health(m.To) != Alive)
	})
}

// excuses keeps jobs from waiting for a gone node that has only sources that nobody
// else can read.
func (p *planner) excuses() (out []state.Command) {
	for _, j := range p.View.Jobs {
		for _, node := range slices.Sorted(maps.Keys(j.Waiting)) {
			if p.health(node) == Gone && !p.reads(node) && !p.hopeless(j) {
				out = append(out, state.Command{Excuse: &state.Excuse{Job: j.ID, Node: node}})
			}
		}
	}
	return out
}

// moves plans copies, the most urgent first: owners that restarted are filled again
// where they are, then partitions with too few complete owners alive get new copies,
// then the rest of the wanted placement is approached. There is one job for each
// target, so that the death of one costs the others nothing.
func (p *planner) moves() (out []state.Command) {
	m := moveList{room: p.MaxMoves, busy: map[uint32]bool{}, byTarget: map[string][]state.Move{}}
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
	for _, to := range slices.Sorted(maps.Keys(m.byTarget)) {
		out = append(out, state.Command{Begin: &state.Begin{Moves: m.byTarget[to]}})
	}
	return out
}

type moveList struct {
	room     int
	busy     map[uint32]bool // partitions that are part of a change already
	byTarget map[string][]state.Move
}

func (l *moveList) add(m state.Move) {
	if l.room <= 0 || l.busy[m.Partition] {
		return
	}
	l.byTarget[m.To] = append(l.byTarget[m.To], m)
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
// first. On hold it stops where enough are.
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
		if p.Hold && ready[part] > 0 && ready[part] >= len(wanted.Owners[part]) {
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
		if len(surplus) > 0 {
			m.Drop = surplus[0]
		}
		l.add(m)
		return
	}
	if complete && len(surplus) > 0 {
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
