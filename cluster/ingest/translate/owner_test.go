package translate

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/kvcluster/kvcluster/indexer"
)

// owner is the other side of the frames, made of plain maps: names to positions,
// and for each position the number of live names. It refuses everything that a
// name rule forbids. It shares no code with the translator.
type owner struct {
	parts  map[indexer.PartitionID]*ownerPart
	frames int

	lengths map[indexer.Run]int // checkRuns only
}

type ownerPart struct {
	runs   map[indexer.Run]*ownerRun
	opened int // highest run number ever + 1
	cover  map[string]map[indexer.Tier]int
}

type ownerRun struct {
	paths   []string // position -> path
	engines []uint64
	tiers   []indexer.TierMask
	live    int
	emptied int // frame that took the last live name, 0 = live
}

func newOwner() *owner { return &owner{parts: map[indexer.PartitionID]*ownerPart{}} }

// pathIDs names every path that tests meet, so that long paths need not be spelled
// out.
var pathIDs struct {
	sync.Mutex
	byStep map[pathStep]string
}

type pathStep struct {
	above string
	local uint64
}

// extend returns the name of the path that goes on from path with a block.
func extend(path string, local uint64) string {
	pathIDs.Lock()
	defer pathIDs.Unlock()
	k := pathStep{path, local}
	id, ok := pathIDs.byStep[k]
	if !ok {
		if pathIDs.byStep == nil {
			pathIDs.byStep = map[pathStep]string{}
		}
		id = string(binary.AppendUvarint(nil, uint64(len(pathIDs.byStep)+1)))
		pathIDs.byStep[k] = id
	}
	return id
}

// apply applies one frame, or says which rule it breaks.
func (o *owner) apply(f indexer.Frame) error {
	if err := f.Validate(); err != nil {
		return err
	}
	o.frames++
	h := f.Header()
	p := o.parts[h.Partition]
	if p == nil {
		p = &ownerPart{runs: map[indexer.Run]*ownerRun{}, cover: map[string]map[indexer.Tier]int{}}
		o.parts[h.Partition] = p
	}
	var op indexer.Op
	for off := f.Next(0, &op); off != 0; off = f.Next(off, &op) {
		if err := o.applyOp(p, &op); err != nil {
			return fmt.Errorf("partition %d sequence %d: %w", h.Partition, h.Sequence, err)
		}
	}
	return nil
}

func (o *owner) applyOp(p *ownerPart, op *indexer.Op) error {
	switch op.Kind {
	case indexer.OpStore:
		return o.store(p, op)
	case indexer.OpClear:
		for _, r := range p.runs {
			for pos := range r.tiers {
				for t := range indexer.Tier(indexer.NumTiers) {
					if op.Tier.Mask()&t.Mask() != 0 && r.tiers[pos].Has(t) {
						o.drop(p, r, pos, t)
					}
				}
			}
		}
		return nil
	}
	for i := range op.NumRanges() {
		rg := op.Range(i)
		r := p.runs[rg.Run()]
		if r == nil {
			return fmt.Errorf("range of unknown run %d", rg.Run())
		}
		if rg.From()+rg.Len() > len(r.paths) {
			return fmt.Errorf("range %d+%d of run %d with %d positions", rg.From(), rg.Len(), rg.Run(), len(r.paths))
		}
		for pos := rg.From(); pos < rg.From()+rg.Len(); pos++ {
			switch has := r.tiers[pos].Has(op.Tier); {
			case op.Kind == indexer.OpDrop && !has:
				return fmt.Errorf("drop of dead name %d:%d tier %v", rg.Run(), pos, op.Tier)
			case op.Kind == indexer.OpClaim && (has || r.tiers[pos] == 0):
				return fmt.Errorf("claim of %d:%d tier %v which has %b", rg.Run(), pos, op.Tier, r.tiers[pos])
			case op.Kind == indexer.OpClaim:
				r.tiers[pos] |= op.Tier.Mask()
				p.cover[r.paths[pos]][op.Tier]++
			default:
				o.drop(p, r, pos, op.Tier)
			}
		}
	}
	return nil
}

func (o *owner) drop(p *ownerPart, r *ownerRun, pos int, t indexer.Tier) {
	r.tiers[pos] &^= t.Mask()
	c := p.cover[r.paths[pos]]
	if c[t]--; c[t] == 0 {
		if delete(c, t); len(c) == 0 {
			delete(p.cover, r.paths[pos])
		}
	}
	if r.tiers[pos] == 0 {
		if r.live--; r.live == 0 {
			r.emptied = o.frames
		}
	}
}

func (o *owner) store(p *ownerPart, op *indexer.Op) error {
	r := p.runs[op.Run]
	path := ""
	if op.Start > 0 {
		if r == nil || r.live == 0 || int(op.Start) != len(r.paths) {
			return fmt.Errorf("extension of run %d at %d", op.Run, op.Start)
		}
		path = r.paths[op.Start-1]
	} else {
		if r != nil && (r.live > 0 || r.emptied == o.frames) {
			return fmt.Errorf("run number %d used again too early", op.Run)
		}
		if int(op.Run) > p.opened {
			return fmt.Errorf("run number %d is not dense", op.Run)
		}
		p.opened = max(p.opened, int(op.Run)+1)
		if op.Parent.Kind == indexer.ParentName {
			pr := p.runs[op.Parent.Run]
			if pr == nil || int(op.Parent.Pos) >= len(pr.paths) {
				return fmt.Errorf("parent %d:%d is not known", op.Parent.Run, op.Parent.Pos)
			}
			path = pr.paths[op.Parent.Pos]
		} else if op.Parent.Anchor != 0 {
			return fmt.Errorf("anchor %d", op.Parent.Anchor)
		}
		r = &ownerRun{}
		p.runs[op.Run] = r
	}
	for i, l := range op.Locals {
		path = extend(path, l)
		r.paths = append(r.paths, path)
		r.engines = append(r.engines, op.Engines[i])
		r.tiers = append(r.tiers, op.Tier.Mask())
		r.live++
		if p.cover[path] == nil {
			p.cover[path] = map[indexer.Tier]int{}
		}
		p.cover[path][op.Tier]++
	}
	return nil
}

// covered returns the covered paths of all partitions, each with its tiers.
func (o *owner) covered() map[string]indexer.TierMask {
	out := map[string]indexer.TierMask{}
	for _, p := range o.parts {
		for path, c := range p.cover {
			for t := range c {
				out[path] |= t.Mask()
			}
		}
	}
	return out
}

// names returns the number of live names.
func (o *owner) names() (n int) {
	for _, p := range o.parts {
		for _, r := range p.runs {
			n += r.live
		}
	}
	return n
}
