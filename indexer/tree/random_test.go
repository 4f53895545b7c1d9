package tree

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// driver sends random frames to a lane and to the model.
type driver struct {
	t       *testing.T
	rng     *rand.Rand
	l       *Lane
	m       *model
	slots   int
	symbols uint64
	longest int
	tiers   bool
	paths   map[string]walked // every path that was ever stored
	b       indexer.FrameBuilder
}

type walked struct {
	partition uint32
	anchor    uint64
	locals    []uint64
}

func newDriver(t *testing.T, seed uint64, slots, longest int, symbols uint64, tiers bool) *driver {
	l, err := OpenLane(LaneConfig{OnFault: func(h indexer.Header, err error) { t.Errorf("fault: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &driver{t: t, rng: rand.New(rand.NewPCG(seed, 1)), l: l, m: newModel(), slots: slots, symbols: symbols,
		longest: longest, tiers: tiers, paths: map[string]walked{}}
}

func (d *driver) tier() indexer.Tier {
	if !d.tiers || d.rng.IntN(3) > 0 {
		return indexer.Device
	}
	return indexer.Tier(d.rng.IntN(indexer.NumTiers))
}

// step applies one frame of one to three operations.
func (d *driver) step() {
	k := modelCopy{uint32(d.rng.IntN(2)), uint32(d.rng.IntN(d.slots))}
	if d.m.copies[k] == nil {
		d.m.copies[k] = map[uint32][]modelName{}
	}
	d.b.Reset(indexer.Header{Partition: indexer.PartitionID(k.partition), Slot: indexer.Slot(k.slot)})
	for n := 1 + d.rng.IntN(3); n > 0; n-- {
		switch v := d.rng.IntN(100); {
		case v < 45:
			d.store(k)
		case v < 85:
			d.ranges(k, true)
		case v < 97:
			d.ranges(k, false)
		case v < 99:
			d.clear(k, indexer.Tier(d.rng.IntN(indexer.NumTiers)))
		default:
			d.clear(k, indexer.AllTiers)
		}
	}
	if d.b.NumOps() > 0 {
		f := d.b.Frame()
		if err := f.Validate(); err != nil {
			d.t.Fatal(err)
		}
		d.l.Apply(f)
	}
}

func (d *driver) pick(k modelCopy) (uint32, []modelName) {
	runs := slices.Sorted(maps.Keys(d.m.copies[k]))
	if len(runs) == 0 {
		return 0, nil
	}
	r := runs[d.rng.IntN(len(runs))]
	return r, d.m.copies[k][r]
}

func (d *driver) store(k modelCopy) {
	run, names := d.pick(k)
	anchor := uint64(d.rng.IntN(2) * 77)
	parent := indexer.Parent{Anchor: anchor}
	var above []uint64
	start := uint32(0)
	if names != nil && d.rng.IntN(3) > 0 {
		last := len(names) - 1
		for last > 0 && names[last].tiers == 0 {
			last--
		}
		pos := d.rng.IntN(last + 1)
		if d.rng.IntN(2) == 0 {
			pos = last
		}
		w := d.paths[names[pos].path+fmt.Sprint("/", k.partition)]
		above, anchor = w.locals, w.anchor
		parent = indexer.Parent{Kind: indexer.ParentName, Run: indexer.Run(run), Pos: uint32(pos)}
		if pos == len(names)-1 && names[pos].tiers != 0 && d.rng.IntN(2) == 0 && len(names) < 3000 {
			start = uint32(len(names))
		}
	}
	if start == 0 {
		for run = 0; d.m.copies[k][run] != nil; run++ {
		}
	}
	n := 1 + d.rng.IntN(d.longest)
	tier := d.tier()
	locals, engines := d.b.Store(tier, indexer.Run(run), start, parent, n)
	path := slices.Clone(above)
	list := d.m.copies[k][run]
	fresh := d.rng.IntN(4) == 0
	for i := range locals {
		// Along the path of symbol 0, or at random: chains get long and forks happen.
		locals[i] = uint64(len(path)) << 8
		if fresh && d.rng.IntN(8) == 0 {
			locals[i] |= 1 + d.rng.Uint64N(d.symbols)
		}
		engines[i] = mix(locals[i])
		if k.slot%5 == 4 && d.rng.IntN(3) == 0 {
			engines[i]++
		}
		path = append(path, locals[i])
		p := pathOf(anchor, path...)
		d.paths[p+fmt.Sprint("/", k.partition)] = walked{k.partition, anchor, slices.Clone(path)}
		list = append(list, modelName{p, tier.Mask(), engines[i]})
	}
	d.m.copies[k][run] = list
}

// ranges drops or claims some stretch.
func (d *driver) ranges(k modelCopy, drop bool) {
	run, names := d.pick(k)
	if names == nil {
		return
	}
	tier := d.tier()
	from := d.rng.IntN(len(names))
	to := from + 1 + d.rng.IntN(len(names)-from)
	switch d.rng.IntN(4) {
	case 0:
		to = len(names)
	case 1:
		from = 0
	case 2:
		to = from + 1
	}
	for i := from; i < to; {
		j := i
		for j < to && names[j].tiers != 0 && names[j].tiers.Has(tier) == drop {
			j++
		}
		if j > i {
			r := indexer.MakeRange(indexer.Run(run), i, j-i)
			if drop {
				d.b.Drop(tier, r)
			} else {
				d.b.Claim(tier, r)
			}
			for x := i; x < j; x++ {
				names[x].tiers ^= tier.Mask()
			}
		}
		i = j + 1
	}
	d.m.settle(k, run)
}

func (d *driver) clear(k modelCopy, tier indexer.Tier) {
	d.b.Clear(tier)
	for run, names := range d.m.copies[k] {
		for i := range names {
			names[i].tiers &^= tier.Mask()
		}
		d.m.settle(k, run)
	}
}

// check compares every answer and audits the structure.
func (d *driver) check(step int, r *Reader) {
	d.t.Helper()
	if err := d.l.audit(); err != nil {
		d.t.Fatalf("step %d: %v", step, err)
	}
	held, distinct, copies := d.m.totals()
	if s := d.l.Stats(); s.Held != held || s.Distinct != distinct || s.Slots != copies {
		d.t.Fatalf("step %d: held %v, distinct %d, copies %d; want %v, %d, %d", step, s.Held, s.Distinct, s.Slots, held, distinct, copies)
	}
	index := [2]map[string]map[uint32]indexer.TierMask{d.m.index(0), d.m.index(1)}
	var out indexer.Scores
	n := 0
	for _, w := range d.paths {
		if n++; n > 60 {
			break
		}
		q := indexer.Query{Partition: indexer.PartitionID(w.partition), Anchor: w.anchor, Locals: append(slices.Clone(w.locals), 5)}
		r.Match(q, &out)
		sortScores(out.Rows, out.Tiers)
		rows, tiers := scores(index[w.partition], w.anchor, q.Locals)
		if !slices.Equal(rows, out.Rows) || !slices.Equal(tiers, out.Tiers) {
			d.t.Fatalf("step %d: query of %d blocks: %v %v, want %v %v", step, len(q.Locals), out.Rows, out.Tiers, rows, tiers)
		}
	}
	d.checkDumps(step)
}

// checkDumps compares the live names of every copy, engine hashes included.
func (d *driver) checkDumps(step int) {
	d.t.Helper()
	for k, runs := range d.m.copies {
		got := map[string]bool{}
		for _, st := range d.l.Dump(0, indexer.PartitionID(k.partition), indexer.Slot(k.slot)) {
			path := slices.Clone(st.Path)
			for i, local := range st.Locals {
				path = append(path, local)
				got[fmt.Sprint(st.Run, int(st.Start)+i, pathOf(st.Anchor, path...), st.Tiers, st.Engines[i])] = true
			}
		}
		want := 0
		for run, names := range runs {
			for pos, n := range names {
				if n.tiers == 0 {
					continue
				}
				want++
				if !got[fmt.Sprint(run, pos, n.path, n.tiers, n.engine)] {
					d.t.Fatalf("step %d: slot %d: run %d position %d is not in the dump as it should", step, k.slot, run, pos)
				}
			}
		}
		if want != len(got) {
			d.t.Fatalf("step %d: slot %d: %d names dumped, want %d", step, k.slot, len(got), want)
		}
	}
}

// empty takes everything away and wants all memory back.
func (d *driver) empty() {
	d.t.Helper()
	for s := range indexer.Slot(d.slots) {
		d.l.Purge(0, s)
	}
	d.l.forgetDead()
	for range 10000 {
		if d.l.limbo.pieces == 0 {
			break
		}
		d.l.reclaim(reclaimBudget)
	}
	for p, n := range d.l.arena.live {
		if n != 0 && !(purpose(p) == forChildren && n <= 64*leastBuckets) {
			d.t.Errorf("%d bytes of %s are left", n, purposeNames[p])
		}
	}
	if err := d.l.audit(); err != nil {
		d.t.Error(err)
	}
}

func TestAgainstModel(t *testing.T) {
	for _, c := range []struct {
		name           string
		slots, longest int
		symbols        uint64
		tiers          bool
		steps, every   int
	}{
		{"few slots, small symbols", 3, 6, 2, true, 1500, 100},
		{"device only", 12, 30, 3, false, 1200, 200},
		{"many slots on one path", 150, 12, 2, false, 2000, 500},
		{"many slots, all tiers", 150, 8, 2, true, 2000, 500},
		{"long runs", 6, 900, 2, true, 60, 20},
	} {
		for seed := range uint64(2) {
			t.Run(fmt.Sprintf("%s/%d", c.name, seed), func(t *testing.T) {
				d := newDriver(t, seed, c.slots, c.longest, c.symbols, c.tiers)
				r := d.l.NewReader()
				defer r.Close()
				for i := range c.steps {
					d.step()
					if i%c.every == c.every-1 {
						d.check(i, r)
					}
				}
				d.empty()
			})
		}
	}
}
