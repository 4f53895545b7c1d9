package shard

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/zeebo/xxh3"
)

// ErrPlacement is wrapped by every error of Place.
var ErrPlacement = errors.New("cannot place partitions")

// Member is a node that may own partitions.
type Member struct {
	Name   string
	Zone   string  // "" = no zone known
	Weight float64 // share relative to others; 0 = 1
}

func (m Member) weight() float64 {
	if m.Weight <= 0 {
		return 1
	}
	return m.Weight
}

// Placement says who owns every partition: Owners[p] are the names of its equal
// owners in order of name.
type Placement struct {
	Owners [][]string
}

// PlaceConfig says what to place.
type PlaceConfig struct {
	Partitions uint32
	// Replicas is the number of owners of a partition; members fewer than that own
	// all partitions.
	Replicas int
	// Weights is the measured weight of each partition (blocks, writes, reads in one
	// number); nil means that all weigh the same.
	Weights []float64
	// Tolerance is how far the heaviest member may be above its share before copies
	// move; 0 = 0.10.
	Tolerance float64
}

// Place computes owners. It is a pure function: equal arguments give an equal
// result on every node. With a previous placement it moves as little as it can:
// copies of members that are gone are placed again, then copies move from the
// heaviest members to the lightest until everyone is within the tolerance.
//
// Owners of one partition lie in different zones as far as there are zones.
func Place(cfg PlaceConfig, members []Member, previous *Placement) (Placement, error) {
	if cfg.Partitions == 0 || cfg.Replicas < 1 || len(members) == 0 {
		return Placement{}, fmt.Errorf("%w: %d partitions, %d replicas, %d members", ErrPlacement, cfg.Partitions, cfg.Replicas, len(members))
	}
	if cfg.Weights != nil && len(cfg.Weights) != int(cfg.Partitions) {
		return Placement{}, fmt.Errorf("%w: %d weights for %d partitions", ErrPlacement, len(cfg.Weights), cfg.Partitions)
	}
	members = slices.Clone(members)
	slices.SortFunc(members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
	for i := 1; i < len(members); i++ {
		if members[i].Name == members[i-1].Name {
			return Placement{}, fmt.Errorf("%w: two members named %s", ErrPlacement, members[i].Name)
		}
	}
	p := placer{cfg: cfg, members: members, replicas: min(cfg.Replicas, len(members))}
	if err := p.start(previous); err != nil {
		return Placement{}, fmt.Errorf("%w: %w", ErrPlacement, err)
	}
	p.balance()
	return p.result(), nil
}

type placer struct {
	cfg      PlaceConfig
	members  []Member
	replicas int
	owners   [][]int   // partition -> indices of members
	load     []float64 // member -> weight of its copies
}

func (p *placer) weight(part int) float64 {
	if p.cfg.Weights == nil {
		return 1
	}
	return p.cfg.Weights[part]
}

// start keeps the previous owners that still exist and fills up: the first copy
// where the ring says, further ones by rendezvous.
func (p *placer) start(previous *Placement) error {
	index := map[string]int{}
	for i, m := range p.members {
		index[m.Name] = i
	}
	var ring []int
	p.owners = make([][]int, p.cfg.Partitions)
	p.load = make([]float64, len(p.members))
	for part := range p.owners {
		if previous != nil && part < len(previous.Owners) {
			for _, name := range previous.Owners[part] {
				if i, ok := index[name]; ok && len(p.owners[part]) < p.replicas {
					p.owners[part] = append(p.owners[part], i)
				}
			}
		}
		for len(p.owners[part]) < p.replicas {
			next := -1
			if len(p.members) <= int(p.cfg.Partitions) { // the ring has no room for more
				if ring == nil {
					var err error
					if ring, err = ringOwners(p.cfg.Partitions, p.members); err != nil {
						return err
					}
				}
				next = ring[part]
			}
			if next < 0 || slices.Contains(p.owners[part], next) || p.zoneClash(part, next, -1) {
				next = p.rendezvous(part)
			}
			p.owners[part] = append(p.owners[part], next)
		}
		for _, o := range p.owners[part] {
			p.load[o] += p.weight(part)
		}
	}
	return nil
}

// rendezvous picks the further owner of a partition: the highest weighted random
// score among members that do not own it, members of new zones first.
func (p *placer) rendezvous(part int) int {
	best, bestScore, bestClash := -1, math.Inf(-1), true
	for i, m := range p.members {
		if slices.Contains(p.owners[part], i) {
			continue
		}
		h := xxh3.HashStringSeed(m.Name, uint64(part)+1)
		u := (float64(h>>11) + 0.5) / (1 << 53)
		score := -m.weight() / math.Log(u)
		clash := p.zoneClash(part, i, -1)
		if bestClash && !clash || clash == bestClash && score > bestScore {
			best, bestScore, bestClash = i, score, clash
		}
	}
	return best
}

// zoneClash reports whether an owner of part other than except lies in member's zone.
func (p *placer) zoneClash(part, member, except int) bool {
	zone := p.members[member].Zone
	if zone == "" {
		return false
	}
	for _, o := range p.owners[part] {
		if o != except && o != member && p.members[o].Zone == zone {
			return true
		}
	}
	return false
}

// balance moves single copies from the member most above its share to the one most
// below until the tolerance holds or no move helps. Every move lowers the sum of
// squares, so it ends.
func (p *placer) balance() {
	var total, weights float64
	for i, m := range p.members {
		total += p.load[i]
		weights += m.weight()
	}
	tolerance := p.cfg.Tolerance
	if tolerance == 0 {
		tolerance = 0.10
	}
	ratio := func(i int) float64 { return p.load[i] / p.members[i].weight() }
	mean := total / weights
	for range int(p.cfg.Partitions) * p.replicas {
		order := make([]int, len(p.members))
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int { return cmpFloat(ratio(a), ratio(b)) })
		from := order[len(order)-1]
		if ratio(from) <= mean*(1+tolerance) && ratio(order[0]) >= mean*(1-tolerance) {
			return
		}
		if !p.moveOne(order) {
			return
		}
	}
}

// moveOne makes the best single move between an overloaded and an underloaded member.
func (p *placer) moveOne(order []int) bool {
	for hi := len(order) - 1; hi > 0; hi-- {
		for lo := 0; lo < hi; lo++ {
			from, to := order[hi], order[lo]
			wf, wt := p.members[from].weight(), p.members[to].weight()
			// The move of weight w changes sum(load^2/weight) by
			// 2w(load_to/wt - load_from/wf) + w^2(1/wf + 1/wt); the best w is at half
			// of where that becomes 0.
			gap := p.load[from]/wf - p.load[to]/wt
			limit := 2 * gap / (1/wf + 1/wt)
			best, bestGain := -1, 0.0
			for part, owners := range p.owners {
				w := p.weight(part)
				if w <= 0 || w >= limit || !slices.Contains(owners, from) || slices.Contains(owners, to) || p.zoneClash(part, to, from) && !p.zoneClash(part, from, -1) {
					continue
				}
				if gain := w * (limit - w); gain > bestGain {
					best, bestGain = part, gain
				}
			}
			if best >= 0 {
				w := p.weight(best)
				p.owners[best][slices.Index(p.owners[best], from)] = to
				p.load[from] -= w
				p.load[to] += w
				return true
			}
		}
	}
	return false
}

func (p *placer) result() Placement {
	out := Placement{Owners: make([][]string, len(p.owners))}
	for part, owners := range p.owners {
		for _, o := range owners {
			out.Owners[part] = append(out.Owners[part], p.members[o].Name)
		}
		slices.Sort(out.Owners[part])
	}
	return out
}

// Moves counts the copies that are in b but not in a.
func Moves(a, b Placement) int {
	n := 0
	for part, owners := range b.Owners {
		for _, o := range owners {
			if part >= len(a.Owners) || !slices.Contains(a.Owners[part], o) {
				n++
			}
		}
	}
	return n
}

func cmpFloat(a, b float64) int { return cmp.Compare(a, b) }
