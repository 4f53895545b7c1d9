package translate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

// Takeovers: an old translator's frames reach each partition up to a cursor of its own,
// then another one inherits what the index has and is given the batches again.

// step is one event of an engine whose hashes name prefixes.
type step struct {
	kind   byte   // 's'tore, 'r'emove, 'c'lear, 'p'laceholder
	space  string // LoRA adapter of the path
	named  bool   // the event says it
	alias  byte   // which of several engine hashes of one path
	parent string
	blocks string   // stored below parent, one letter each
	gone   []string // removed paths
	tier   indexer.Tier
}

func (s step) hash(path string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s/%d/%s", s.space, s.alias, path)
	return h.Sum64() | 1
}

func (s step) store() Store {
	st := Store{Tier: s.tier, HasParent: s.parent != "", Placeholder: s.kind == 'p'}
	if st.HasParent {
		st.Parent = s.hash(s.parent)
	}
	if s.named {
		st.Lora = s.space
	}
	var tokens []uint32
	for i := range s.blocks {
		st.Engines = append(st.Engines, s.hash(s.parent+s.blocks[:i+1]))
		tokens = append(tokens, uint32(s.blocks[i]))
	}
	if !st.Placeholder {
		st.Content = blockhash.Content{Tokens: tokens, BlockSize: 1, Window: 1}
	}
	return st
}

func (s step) hashes() (out []uint64) {
	for _, p := range s.gone {
		out = append(out, s.hash(p))
	}
	return out
}

func (s step) translate(t Interface) Outcome {
	switch s.kind {
	case 'r':
		return t.Remove(s.tier, s.hashes())
	case 'c':
		return t.Clear(s.tier)
	}
	return t.Store(s.store())
}

func (s step) model(m *model) {
	switch s.kind {
	case 'r':
		m.remove(s.tier, s.hashes())
	case 'c':
		m.clear(s.tier)
	case 'p':
		m.placeholder(s.store())
	default:
		m.store(s.store())
	}
}

// variant is what a takeover does; all false is the rule.
type variant struct {
	naive     bool // everything is translated again and applied again
	ownerSkip bool // everything is translated again, owners leave out what they have
	keepPool  bool // the orphans of the old one as of the lowest cursor are there
	early     bool // batches are given again from the very first one on
	noMarks   bool // the dump lost the marks of its runs
}

// verdict is what went wrong.
type verdict struct {
	over, under bool // at the end: more or less credited than what is held
	changed     bool // what a partition had acknowledged changed before it was caught up with
	fault       bool // the index refused a frame
	loose       int
	dropped     int // loose blocks whose name was given up for good
	orphans     int // waiting at the lowest cursor
	why         string
}

const takeoverParts = 3

func takeoverPart(first uint64) indexer.PartitionID {
	return indexer.PartitionID(first % takeoverParts)
}

type takeoverWorld struct {
	x      *reference.Index
	w      indexer.Writer
	faults []string
}

func newTakeoverWorld() *takeoverWorld {
	w := &takeoverWorld{}
	w.x = reference.New(reference.Config{OnFault: func(h indexer.Header, err error) { w.faults = append(w.faults, err.Error()) }})
	w.w = w.x.NewWriter()
	return w
}

func (w *takeoverWorld) dump(p indexer.PartitionID) (out []indexer.Stretch) {
	err := w.x.Dump(context.Background(), 1, p, 7, func(s indexer.Stretch) error {
		out = append(out, s)
		return nil
	})
	if err != nil {
		panic(err)
	}
	return out
}

// covered returns the covered paths of some partitions with their tiers.
func (w *takeoverWorld) covered(parts ...indexer.PartitionID) map[string]indexer.TierMask {
	out := map[string]indexer.TierMask{}
	for _, p := range parts {
		for _, s := range w.dump(p) {
			path := ""
			for _, l := range s.Path {
				path = extend(path, l)
			}
			for _, l := range s.Locals {
				path = extend(path, l)
				out[path] |= s.Tiers
			}
		}
	}
	return out
}

func takeoverConfig(tenure uint64) Config {
	return Config{Group: 1, Slot: 7, Life: 1, Tenure: tenure, BlockSize: 1, Partition: takeoverPart}
}

// takeover plays n batches to the old translator, of which each partition gets those up
// to its cursor, and all of them from the lowest cursor on, and the rest, to the heir.
func takeover(batches [][]step, n int, cursors [takeoverParts]uint64, v variant, scratch *Scratch) (out verdict) {
	w := newTakeoverWorld()
	defer w.x.Close()
	cfg := takeoverConfig(1)
	cfg.Scratch = scratch
	old := New(cfg)
	truth := newModel()
	low := slices.Min(cursors[:])
	var pool *orphanPool
	keep := func() {
		p := old.pool
		p.blocks, p.children = maps.Clone(p.blocks), maps.Clone(p.children)
		p.groups, p.free, p.order = slices.Clone(p.groups), slices.Clone(p.free), slices.Clone(p.order)
		pool = &p
	}
	run := func(t Interface, seq uint64, emit func(indexer.Frame) error) {
		t.Begin(seq)
		for _, s := range batches[seq-1] {
			s.translate(t)
		}
		if err := t.End(emit); err != nil {
			out.fault, out.why = true, err.Error()
		}
	}
	if low == 0 {
		keep()
	}
	for seq := uint64(1); seq <= uint64(n); seq++ {
		run(old, seq, func(f indexer.Frame) error {
			if f.Header().Sequence <= cursors[f.Header().Partition] {
				return w.w.Write(f)
			}
			return nil
		})
		if seq == low {
			keep()
		}
	}
	out.orphans = pool.len()

	cfg = takeoverConfig(2)
	cfg.Scratch = scratch
	heir := New(cfg)
	var parts []Inherited
	for p := range indexer.PartitionID(takeoverParts) {
		in := Inherited{Partition: p, Cursor: cursors[p], Stretches: w.dump(p)}
		if v.naive || v.ownerSkip {
			in.Cursor = low
		}
		if v.noMarks {
			for i := range in.Stretches {
				in.Stretches[i].Mark = indexer.Mark{}
			}
		}
		parts = append(parts, in)
	}
	var err error
	if _, out.loose, err = heir.Inherit(parts); err != nil {
		out.fault, out.why = true, err.Error()
		return out
	}
	if why := sameTags(old, heir); why != "" {
		out.fault, out.why = true, why
		return out
	}
	if v.keepPool {
		for h := range pool.blocks { // one that has been attached since is named
			if heir.blocks.find(h) != 0 {
				pool.remove(h)
			}
		}
		heir.pool = *pool
	}
	emit := func(f indexer.Frame) error {
		h := f.Header()
		if h.Sequence < cursors[h.Partition] && !v.naive && !v.ownerSkip {
			return fmt.Errorf("a frame for partition %d takes its label from %d back to %d", h.Partition, cursors[h.Partition], h.Sequence)
		}
		if v.ownerSkip && h.Sequence <= cursors[h.Partition] {
			return nil
		}
		return w.w.Write(f)
	}
	heir.Begin(low)
	if err := heir.End(emit); err != nil {
		out.fault, out.why = true, err.Error()
	}
	var at [takeoverParts]map[string]indexer.TierMask
	for p := range at {
		at[p] = w.covered(indexer.PartitionID(p))
	}
	first := low + 1
	if v.early {
		first = 1
	}
	for seq := first; seq <= uint64(len(batches)); seq++ {
		run(heir, seq, emit)
		for p := range at {
			if seq <= cursors[p] && !out.changed {
				if now := w.covered(indexer.PartitionID(p)); !maps.Equal(now, at[p]) {
					out.changed = true
					out.why = fmt.Sprintf("partition %d at batch %d: %v, was %v", p, seq, now, at[p])
				}
			}
		}
	}
	for _, b := range batches {
		for _, s := range b {
			s.model(truth)
		}
	}
	want, got := truth.covered(), w.covered(0, 1, 2)
	for path, m := range got {
		out.over = out.over || m&^want[path] != 0
	}
	for path, m := range want {
		out.under = out.under || m&^got[path] != 0
	}
	if len(w.faults) > 0 {
		out.fault, out.why = true, w.faults[0]
	}
	out.dropped = int(heir.stats.LooseDropped)
	if !out.fault && !v.naive && !v.ownerSkip {
		if err := heir.audit(); err != nil {
			out.fault, out.why = true, err.Error()
		}
		if heir.Inheriting() && uint64(len(batches)) > slices.Max(cursors[:]) {
			out.fault, out.why = true, "it goes on inheriting"
		}
		names := 0
		for _, p := range parts {
			for _, s := range w.dump(p.Partition) {
				names += len(s.Engines)
			}
		}
		if names != heir.blocks.len() {
			out.fault, out.why = true, fmt.Sprintf("%d names and %d blocks mapped", names, heir.blocks.len())
		}
	}
	return out
}

// sameTags compares path tag and namespace of the blocks that both map.
func sameTags(a, b *Translator) (why string) {
	b.blocks.eachUnit(func(u uint32) {
		for live := b.blocks.liveBits(u); live != 0; live &= live - 1 {
			id := u<<2 | uint32(bits.TrailingZeros32(live))
			h := b.blocks.key(id)
			other := a.blocks.find(h)
			if other == 0 {
				continue
			}
			if b.isLoose(h) {
				continue
			}
			if x, y := a.blocks.tag(other), b.blocks.tag(id); x != y {
				why = fmt.Sprintf("block %x has tag %d, was %d", h, y, x)
			}
			if x, y := a.spaces.seed(a.runs.at(a.blocks.run(other)).ns), b.spaces.seed(b.runs.at(b.blocks.run(id)).ns); x != y {
				why = fmt.Sprintf("block %x has another namespace", h)
			}
		}
	})
	return why
}

// takeoverSteps are the events of the exhaustive test: a block a, one below it, one of
// another partition, the two together.
func takeoverSteps() []step {
	return []step{
		{kind: 's', blocks: "a"}, {kind: 's', parent: "a", blocks: "b"}, {kind: 's', blocks: "ab"}, {kind: 's', blocks: "z"},
		{kind: 'r', gone: []string{"a"}}, {kind: 'r', gone: []string{"b", "ab"}}, {kind: 'r', gone: []string{"z"}},
		{kind: 'r', gone: []string{"a", "ab", "z"}}, {kind: 'c', tier: indexer.AllTiers},
	}
}

// Rule T4 over every short stream and every pair of cursors, and what happens without
// it. A takeover with the orphans of the old one is exact; without them it can only miss
// blocks that waited at the lowest cursor.
func TestTakeoverExhaustive(t *testing.T) {
	steps := takeoverSteps()
	length, n := 4, 3
	if testing.Short() {
		length, n = 3, 2
	}
	pa, pz := takeoverPart(stepLocal('a')), takeoverPart(stepLocal('z'))
	if pa == pz {
		t.Fatal("both paths lie in one partition")
	}
	scratch := NewScratch()
	found := map[string]bool{}
	cases := 0
	batches := make([][]step, length)
	var fill func(i int)
	fill = func(i int) {
		if i < length {
			for _, s := range steps {
				batches[i] = []step{s}
				fill(i + 1)
			}
			return
		}
		for ca := range uint64(n + 1) {
			for cz := range uint64(n + 1) {
				cursors := [takeoverParts]uint64{}
				for p := range cursors {
					cursors[p] = max(ca, cz) // a partition without content
				}
				cursors[pa], cursors[pz] = ca, cz
				cases++
				for _, v := range []variant{{keepPool: true}, {}} {
					out := takeover(batches, n, cursors, v, scratch)
					if out.fault || out.over || out.changed || out.under && (v.keepPool || out.orphans == 0) && out.dropped == 0 {
						t.Fatalf("%v, cursors %v, %+v: %+v", batches, cursors, v, out)
					}
					if out.under && out.dropped == 0 {
						found["orphans lost: under"] = true
					}
				}
				if cases%7 != 0 { // each mutant shows soon enough
					continue
				}
				out := takeover(batches, n, cursors, variant{naive: true, keepPool: true}, scratch)
				found["naive: acknowledged content changes"] = found["naive: acknowledged content changes"] || out.changed
				out = takeover(batches, n, cursors, variant{ownerSkip: true, keepPool: true}, scratch)
				found["owner skip: ghost or unknown name"] = found["owner skip: ghost or unknown name"] || out.over || out.fault
			}
		}
	}
	fill(0)
	t.Logf("%d cases", cases)
	for _, what := range []string{"orphans lost: under", "naive: acknowledged content changes", "owner skip: ghost or unknown name"} {
		if !found[what] {
			t.Errorf("not seen: %s", what)
		}
	}
}

// Names over every short stream with two engine hashes for each path, with an inheritance
// in the middle: a position is covered while any live name is on it, before and after.
func TestTakeoverNamesExhaustive(t *testing.T) {
	var steps []step
	for alias := range byte(2) {
		for _, s := range []step{
			{kind: 's', blocks: "a"}, {kind: 's', blocks: "b"}, {kind: 's', parent: "a", blocks: "b"}, {kind: 's', parent: "b", blocks: "b"},
			{kind: 's', blocks: "ab"}, {kind: 'r', gone: []string{"a"}}, {kind: 'r', gone: []string{"b"}},
			{kind: 'r', gone: []string{"ab"}}, {kind: 'r', gone: []string{"bb"}},
		} {
			s.alias = alias
			steps = append(steps, s)
		}
	}
	length := 4
	if testing.Short() {
		length = 3
	}
	scratch := NewScratch()
	batches := make([][]step, length)
	cases, loose := 0, 0
	var fill func(i int)
	fill = func(i int) {
		if i < length {
			for _, s := range steps {
				batches[i] = []step{s}
				fill(i + 1)
			}
			return
		}
		cases++
		n := 1 + cases%(length-1)
		at := uint64(n)
		out := takeover(batches, n, [takeoverParts]uint64{at, at, at}, variant{keepPool: true}, scratch)
		if out.fault || out.over || out.changed || out.under && out.dropped == 0 {
			t.Fatalf("%v, inherited after %d: %+v", batches, n, out)
		}
		loose += min(out.loose, 1)
	}
	fill(0)
	t.Logf("%d cases, %d with loose blocks", cases, loose)
}

// A block waits for its parent while one below it, or its parent's parent, is mapped, and
// has been for long.
func TestTakeoverOrphanBesideMapped(t *testing.T) {
	for _, steps := range [][]step{
		{{kind: 's', blocks: "a"}, {kind: 's', parent: "a", blocks: "bc"}, {kind: 'r', gone: []string{"a", "ab"}},
			{kind: 's', parent: "a", blocks: "bc"}, {kind: 's', blocks: "z"}, {kind: 's', blocks: "a"}},
		{{kind: 's', parent: "a", blocks: "bcd"}, {kind: 'r', gone: []string{"abc"}}, {kind: 's', blocks: "a"},
			{kind: 's', blocks: "z"}, {kind: 's', blocks: "z"}, {kind: 's', blocks: "abc"}},
	} {
		var batches [][]step
		for _, s := range steps {
			batches = append(batches, []step{s})
		}
		takeoverEverywhere(t, batches)
	}
}

func takeoverEverywhere(t *testing.T, batches [][]step) {
	for low := range uint64(6) {
		for high := low; high < 6; high++ {
			out := takeover(batches, 5, [takeoverParts]uint64{high, high, high}, variant{keepPool: true}, nil)
			if out.fault || out.over || out.changed || out.under {
				t.Errorf("cursor %d: %+v", high, out)
			}
			var cursors [takeoverParts]uint64
			for p := range cursors {
				cursors[p] = low
			}
			cursors[takeoverPart(stepLocal('a'))] = high
			for _, v := range []variant{{keepPool: true}, {early: true}} {
				if out := takeover(batches, 5, cursors, v, nil); out.fault || out.over || out.changed || out.under {
					t.Errorf("cursors %v, %+v: %+v", cursors, v, out)
				}
			}
		}
	}
}

func stepLocal(c byte) uint64 {
	content := blockhash.Content{Tokens: []uint32{uint32(c)}, BlockSize: 1, Window: 1}
	return content.AppendLocals(nil, blockhash.NamespaceSeed("", ""))[0]
}

// randomStream is what an engine may say: several adapters, two hashes for one path,
// tiers, holes, unknown parents, clears.
func randomStream(r *rand.Rand, n int) (batches [][]step) {
	const letters = "abcd"
	path := func(n int) string {
		b := make([]byte, 1+r.IntN(n))
		for i := range b {
			b[i] = letters[r.IntN(len(letters))]
		}
		return string(b)
	}
	tier := func() indexer.Tier {
		if r.IntN(4) == 0 {
			return indexer.Tier(r.IntN(indexer.NumTiers))
		}
		return indexer.Device
	}
	for range n {
		var b []step
		for range 1 + r.IntN(3) {
			s := step{tier: tier(), space: []string{"", "x", "y"}[r.IntN(3)], alias: byte(r.IntN(8) / 7)}
			switch k := r.IntN(40); {
			case k == 0:
				s = step{kind: 'c', tier: indexer.AllTiers}
				if r.IntN(2) == 0 {
					s.tier = indexer.Tier(r.IntN(indexer.NumTiers))
				}
			case k < 16:
				s.kind = 'r'
				for range 1 + r.IntN(4) {
					s.gone = append(s.gone, path(7))
				}
			case k < 19:
				s.kind, s.blocks = 'p', path(4)
			default:
				s.kind, s.blocks = 's', path(6)
				if r.IntN(2) == 0 {
					s.parent = path(5)
				}
				s.named = s.parent == "" || r.IntN(3) == 0
			}
			b = append(b, s)
		}
		batches = append(batches, b)
	}
	return batches
}

// A takeover at a random moment with random cursors, of random streams, against the
// meaning of the events.
func TestTakeoverRandom(t *testing.T) {
	runs := 3000
	if testing.Short() {
		runs = 300
	}
	scratch := NewScratch()
	exact, loose, dropped, lost := 0, 0, 0, 0
	for seed := range uint64(runs) {
		r := rand.New(rand.NewPCG(seed, 77))
		total := 10 + r.IntN(60)
		n := 1 + r.IntN(total)
		batches := randomStream(r, total)
		var cursors [takeoverParts]uint64
		spread := 1 + r.IntN(n)
		for p := range cursors {
			cursors[p] = uint64(n - r.IntN(spread))
		}
		for _, v := range []variant{{keepPool: true}, {}, {early: true}, {noMarks: true}} {
			out := takeover(batches, n, cursors, v, scratch)
			if out.fault || out.over || out.changed {
				t.Fatalf("seed %d, %+v, %d of %d batches, cursors %v: %+v", seed, v, n, total, cursors, out)
			}
			switch {
			case out.dropped > 0:
				dropped++
			case out.under && (v.keepPool || v.early || out.orphans == 0):
				t.Fatalf("seed %d, %+v, %d of %d batches, cursors %v: less than what is held", seed, v, n, total, cursors)
			case out.under:
				lost++
			case out.loose > 0:
				loose++
			default:
				exact++
			}
		}
	}
	result := fmt.Sprintf("%d exact, %d of them with loose blocks, %d with names given up, %d with lost orphans", exact+loose, loose, dropped, lost)
	if exact < runs/4 || loose < runs/10 || dropped == 0 || lost == 0 {
		t.Errorf("%s: the streams are too tame", result)
	}
	t.Log(result)
}

// Dumps that no stream of frames leads to are refused, whatever is wrong with them.
func TestInheritRefuses(t *testing.T) {
	mark := indexer.Mark{Set: true, Tag: 3}
	good := func() []Inherited {
		return []Inherited{{Partition: 1, Cursor: 5, Stretches: []indexer.Stretch{
			{Run: 2, Tiers: 1, Locals: []uint64{1, 5, 9}, Engines: []uint64{11, 12, 13}, Mark: mark},
			{Run: 4, Tiers: 3, Path: []uint64{1, 5}, Locals: []uint64{6}, Engines: []uint64{14}, Mark: mark},
			{Run: 4, Start: 2, Tiers: 1, Path: []uint64{1, 5, 6, 7}, Locals: []uint64{8}, Engines: []uint64{15}, Mark: mark},
		}}}
	}
	tr := New(takeoverConfig(2))
	blocks, loose, err := tr.Inherit(good())
	if err != nil || blocks != 5 || loose != 1 {
		t.Fatalf("%d blocks, %d loose, %v", blocks, loose, err)
	}
	if s := tr.Stats(); s.Inherited != 5 || s.Loose != 1 || s.Mapped != 5 || s.Runs != 2 || s.Held[1] != 1 {
		t.Errorf("stats %+v", s)
	}
	if err := tr.audit(); err != nil {
		t.Error(err)
	}
	for name, edit := range map[string]func(p []Inherited) []Inherited{
		"a partition twice":       func(p []Inherited) []Inherited { return append(p, p[0]) },
		"another partition":       func(p []Inherited) []Inherited { p[0].Partition = 2; return p },
		"a hash twice":            func(p []Inherited) []Inherited { p[0].Stretches[1].Engines[0] = 12; return p },
		"a hash twice in one run": func(p []Inherited) []Inherited { p[0].Stretches[0].Engines[2] = 11; return p },
		"no tier":                 func(p []Inherited) []Inherited { p[0].Stretches[0].Tiers = 0; return p },
		"unknown tier":            func(p []Inherited) []Inherited { p[0].Stretches[0].Tiers = 16; return p },
		"columns of two lengths":  func(p []Inherited) []Inherited { p[0].Stretches[0].Engines = nil; return p },
		"positions beyond a run":  func(p []Inherited) []Inherited { p[0].Stretches[2].Start = indexer.MaxRunLength; return p },
		"positions twice":         func(p []Inherited) []Inherited { p[0].Stretches[2].Start = 0; return p },
		"two marks":               func(p []Inherited) []Inherited { p[0].Stretches[2].Mark.Tag = 9; return p },
		"a run in two pieces": func(p []Inherited) []Inherited {
			s := p[0].Stretches
			s[0], s[1] = s[1], s[0]
			return p
		},
	} {
		tr := New(takeoverConfig(2))
		if _, _, err := tr.Inherit(edit(good())); !errors.Is(err, ErrInherit) {
			t.Errorf("%s: %v", name, err)
		}
		tr.Close()
	}
	used := New(takeoverConfig(2))
	used.Begin(1)
	step{kind: 's', blocks: "a"}.translate(used)
	if err := used.End(indexer.Frame.Validate); err != nil {
		t.Fatal(err)
	}
	if _, _, err := used.Inherit(good()); !errors.Is(err, ErrInherit) {
		t.Errorf("a translator in use inherits: %v", err)
	}
}
