// Package plan decides what the leader proposes next: where sources are read, which
// copies are made and which members go. It is a pure function of the replicated state
// and of what gossip says; it proposes nothing itself, and every proposal is checked
// again by the state machine.
//
// It plans a step at a time: as long as a step is under way (a job, an assignment that
// is not applied), the same inputs give nothing new. So it may be called again after
// every change and by a new leader without knowing what the old one wanted.
package plan

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard"
)

// Health is what gossip says of a member.
type Health uint8

// The healths.
const (
	Alive Health = iota
	Dead         // gossip calls it dead: its sources are read elsewhere at once
	Gone         // dead for longer than the grace period: its copies are made elsewhere
)

// Input is everything that a plan depends on.
type Input struct {
	View   *state.View
	Health map[string]Health // members that are missing count as Dead
	// Weights is the measured weight of each partition; nil = all the same.
	Weights []float64
	// MaxMoves bounds the copies that are being made at the same time; 0 = 32.
	MaxMoves int
}

// Next returns the commands to propose now, in order; none when all is well or a step
// is under way. Their ids are empty.
func Next(in Input) []state.Command {
	if in.View == nil || in.View.Cluster.ClusterID == "" {
		return nil
	}
	if in.MaxMoves == 0 {
		in.MaxMoves = 32
	}
	p := planner{Input: in}
	out := p.aborts()
	out = append(out, p.assignments()...)
	out = append(out, p.moves()...)
	return append(out, p.removals()...)
}

type planner struct{ Input }

func (p *planner) health(name string) Health {
	h, known := p.Health[name]
	if !known {
		return Dead
	}
	return h
}

// aborts ends jobs whose target is gone: they can never be filled.
func (p *planner) aborts() (out []state.Command) {
	for _, j := range p.View.Jobs {
		if slices.ContainsFunc(j.Moves, func(m state.Move) bool { return m.To != "" && p.health(m.To) == Gone }) {
			id := j.ID
			out = append(out, state.Command{Abort: &id})
		}
	}
	return out
}

// readers are the members that may read sources.
func (p *planner) readers() (out []shard.Member) {
	for _, m := range p.View.Members {
		if m.Phase == state.Active && p.health(m.Name) == Alive {
			out = append(out, shard.Member{Name: m.Name, Zone: m.Zone, Weight: m.Weight})
		}
	}
	return out
}

// sourceLoad is how far above its share a member's number of sources may be.
const sourceLoad = 1.25

// assignments gives every source that nobody alive reads to a member: the first in the
// source's rendezvous order that is not above its share. Sources that are read stay
// where they are; moving one costs its engine's clients a pause.
func (p *planner) assignments() (out []state.Command) {
	readers := p.readers()
	if len(readers) == 0 {
		return nil
	}
	sources := p.View.Catalog.Sources()
	load, weights := map[string]float64{}, 0.0
	for _, r := range readers {
		weights += weightOf(r)
	}
	var homeless []uint64
	for _, s := range sources {
		a, assigned := p.View.Assignments[s.ID]
		m, member := p.View.Member(a.Node)
		if assigned && member && m.Phase == state.Active && p.health(a.Node) == Alive {
			load[a.Node]++
			continue
		}
		homeless = append(homeless, s.ID)
	}
	for _, id := range homeless {
		order := slices.Clone(readers)
		slices.SortFunc(order, func(a, b shard.Member) int {
			return cmp.Or(-cmp.Compare(score(a, id), score(b, id)), cmp.Compare(a.Name, b.Name))
		})
		to := order[0].Name
		for _, r := range order {
			if share := float64(len(sources)) * weightOf(r) / weights; load[r.Name]+1 <= math.Ceil(share*sourceLoad) {
				to = r.Name
				break
			}
		}
		load[to]++
		out = append(out, state.Command{Assign: &state.Assign{Source: id, Node: to}})
	}
	return out
}

// score is the weighted rendezvous score of a member for a source.
func score(m shard.Member, source uint64) float64 {
	u := (float64(xxh3.HashStringSeed(m.Name, source)>>11) + 0.5) / (1 << 53)
	return -weightOf(m) / math.Log(u)
}

func weightOf(m shard.Member) float64 {
	if m.Weight <= 0 {
		return 1
	}
	return m.Weight
}

// moves plans copies: restarted owners are filled again where they are, then the
// placement over the members that stay is approached.
func (p *planner) moves() []state.Command {
	room := p.MaxMoves
	busy := map[uint32]bool{}
	for _, j := range p.View.Jobs {
		room -= len(j.Moves)
		for _, m := range j.Moves {
			busy[m.Partition] = true
		}
	}
	var moves []state.Move
	add := func(m state.Move) bool {
		if len(moves) < room && !busy[m.Partition] {
			moves = append(moves, m)
			busy[m.Partition] = true
		}
		return len(moves) < room
	}
	for part, owners := range p.View.Owners {
		for _, o := range owners {
			m, ok := p.View.Member(o.Name)
			if ok && o.Boot != m.Boot && m.Phase == state.Active && p.health(o.Name) == Alive {
				add(state.Move{Partition: uint32(part), To: o.Name})
			}
		}
	}
	wanted, err := p.placement()
	if err == nil {
		for part, owners := range wanted.Owners {
			p.approach(uint32(part), owners, add)
		}
	}
	if len(moves) == 0 {
		return nil
	}
	return []state.Command{{Begin: &state.Begin{Moves: moves}}}
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
// one that is not wanted, a gone one first. Once all wanted owners are complete, the
// others are dropped.
func (p *planner) approach(part uint32, wanted []string, add func(state.Move) bool) {
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
	slices.SortStableFunc(surplus, func(a, b string) int { return -cmp.Compare(p.health(a), p.health(b)) })
	complete := true
	for _, w := range wanted {
		if has(w) {
			complete = complete && p.View.Ready(part, w)
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
		add(m)
		return
	}
	if complete && len(surplus) > 0 {
		add(state.Move{Partition: part, Drop: surplus[0]})
	}
}

// removals lets members go that leave and have nothing left.
func (p *planner) removals() (out []state.Command) {
	for _, m := range p.View.Members {
		if m.Phase != state.Leaving || p.owns(m.Name) || p.reads(m.Name) {
			continue
		}
		name := m.Name
		out = append(out, state.Command{Remove: &name})
	}
	return out
}

func (p *planner) owns(name string) bool {
	for _, owners := range p.View.Owners {
		if slices.ContainsFunc(owners, func(o state.Owner) bool { return o.Name == name }) {
			return true
		}
	}
	return false
}

func (p *planner) reads(name string) bool {
	for a := range maps.Values(p.View.Assignments) {
		if a.Node == name {
			return true
		}
	}
	return false
}
