package plan

import (
	"cmp"
	"math"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// sourceLoad is how far above its share a member's number of sources may be.
const sourceLoad = 1.25

// readers are the members that may read sources: those that stay and are alive.
func (p *planner) readers() (out []shard.Member) {
	for _, m := range p.View.Members {
		if m.Phase == state.Active && p.health(m.Name) == Alive {
			out = append(out, shard.Member{Name: m.Name, Zone: m.Zone, Weight: m.Weight})
		}
	}
	return out
}

// assignments gives every source that nobody alive reads to a member: the first in the
// source's rendezvous order that is not above its share. A source that is read stays
// where it is, unless its reader has far more than its share, the engine can replay
// what was missed (without that a takeover may cost the slot's content) and nothing
// else is going on. A source whose engines connect to its reader stays with it, dead
// or not, as long as that is a member.
func (p *planner) assignments() (out []state.Command) {
	readers := p.readers()
	if len(readers) == 0 {
		return nil
	}
	b := p.newBalance(readers)
	var homeless, movable []catalog.Source
	for _, s := range b.sources {
		a, assigned := p.View.Assignments[s.ID]
		m, member := p.View.Member(a.Node)
		switch {
		case assigned && member && catalog.Binds(s.Endpoint):
			b.load[a.Node]++
		case assigned && member && m.Phase == state.Active && p.health(a.Node) == Alive:
			b.load[a.Node]++
			if s.ReplayEndpoint != "" {
				movable = append(movable, s)
			}
		default:
			homeless = append(homeless, s)
		}
	}
	give := func(s catalog.Source, to string) {
		b.load[to]++
		out = append(out, state.Command{Assign: &state.Assign{Source: s.ID, Node: to}})
	}
	for _, s := range homeless {
		give(s, b.place(s.ID))
	}
	if len(homeless) > 0 || len(p.View.Jobs) > 0 || p.Hold {
		return out
	}
	for _, s := range movable {
		from := p.View.Assignments[s.ID].Node
		if len(out) < p.MaxRebalanced && b.load[from] > b.limit(from) {
			if to := b.place(s.ID); b.load[to] < b.limit(to) {
				b.load[from]--
				give(s, to)
			}
		}
	}
	return out
}

// balance is the bounded load of sources over readers.
type balance struct {
	readers []shard.Member
	sources []catalog.Source
	weights float64
	load    map[string]float64
}

func (p *planner) newBalance(readers []shard.Member) balance {
	b := balance{readers: readers, sources: p.View.Catalog.Sources(), load: map[string]float64{}}
	for _, r := range readers {
		b.weights += weightOf(r)
	}
	return b
}

// limit is how many sources a reader may have.
func (b *balance) limit(name string) float64 {
	i := slices.IndexFunc(b.readers, func(r shard.Member) bool { return r.Name == name })
	return math.Ceil(float64(len(b.sources)) * weightOf(b.readers[i]) / b.weights * sourceLoad)
}

// place returns the first reader in a source's order that is below its limit.
func (b *balance) place(id uint64) string {
	order := slices.Clone(b.readers)
	slices.SortFunc(order, func(x, y shard.Member) int {
		return cmp.Or(-cmp.Compare(score(x, id), score(y, id)), cmp.Compare(x.Name, y.Name))
	})
	for _, r := range order {
		if b.load[r.Name]+1 <= b.limit(r.Name) {
			return r.Name
		}
	}
	return order[0].Name
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
