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
	"slices"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
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
	// Hold keeps copies that only improve the balance back: members are coming in at the
	// moment, and each of them would change where such copies should go. Copies that are
	// missing are made all the same.
	Hold bool
	// MaxRebalanced bounds the sources that change their reader for balance in one plan;
	// 0 = none. The caller paces them: a takeover is not over when its entry is applied.
	MaxRebalanced int
}

// DefaultMaxMoves is how many copies are made at the same time: enough for all ingest
// nodes to be busy, few enough that a job is done in seconds and an abort loses little.
const DefaultMaxMoves = 32

// Next returns the commands to propose now, in order; none when all is well or a step
// is under way. Their ids are empty.
func Next(in Input) []state.Command {
	if in.View == nil || in.View.Cluster.ClusterID == "" {
		return nil
	}
	if in.MaxMoves == 0 {
		in.MaxMoves = DefaultMaxMoves
	}
	p := planner{Input: in}
	out := append(p.aborts(), p.excuses()...)
	out = append(out, p.assignments()...)
	out = append(out, p.moves()...)
	return append(out, p.removals()...)
}

type planner struct {
	Input
	keep bool // nothing may be dropped now, see awaited
}

func (p *planner) health(name string) Health {
	h, known := p.Health[name]
	if !known {
		return Dead
	}
	return h
}

// removals lets members go that leave and have nothing left but sources whose engines
// connect to them: those go to others when their node is no member any more.
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
	return slices.ContainsFunc(p.View.Catalog.Sources(), func(s catalog.Source) bool {
		return p.View.Assignments[s.ID].Node == name && !catalog.Binds(s.Endpoint)
	})
}
