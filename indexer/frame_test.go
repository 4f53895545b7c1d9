package indexer

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
)

// randomFrame returns a valid frame and the operations that it should decode to.
func randomFrame(rng *rand.Rand, b *FrameBuilder) (Frame, Header, []Op) {
	h := Header{
		Group: GroupID(rng.Uint32()), Partition: PartitionID(rng.Uint32()), Slot: Slot(rng.Uint32()),
		Life: rng.Uint64(), Tenure: rng.Uint64(), Sequence: rng.Uint64(),
	}
	b.Reset(h)
	var want []Op
	for range rng.IntN(12) {
		tier := Tier(rng.IntN(NumTiers))
		switch rng.IntN(4) {
		case 0:
			n := 1 + rng.IntN(9)
			o := Op{Kind: OpStore, Tier: tier, Run: Run(rng.Uint32())}
			switch rng.IntN(3) {
			case 0:
				o.Parent = Parent{Anchor: rng.Uint64()}
			case 1:
				o.Parent = Parent{Kind: ParentName, Run: Run(rng.Uint32()), Pos: uint32(rng.IntN(MaxRunLength))}
			case 2:
				o.Start = uint32(1 + rng.IntN(MaxRunLength-n))
			}
			locals, engines := b.Store(tier, o.Run, o.Start, o.Parent, n)
			for i := range n {
				locals[i], engines[i] = rng.Uint64(), rng.Uint64()
			}
			o.Locals, o.Engines = slices.Clone(locals), slices.Clone(engines)
			want = append(want, o)
		case 1:
			tier = []Tier{tier, AllTiers}[rng.IntN(2)]
			b.Clear(tier)
			want = append(want, Op{Kind: OpClear, Tier: tier})
		default:
			kind, add := OpClaim, b.Claim
			if rng.IntN(2) == 0 {
				kind, add = OpDrop, b.Drop
			}
			for range 1 + rng.IntN(3) {
				from := rng.IntN(MaxRunLength)
				r := MakeRange(Run(rng.Uint32()), from, 1+rng.IntN(MaxRunLength-from))
				add(tier, r)
				// Neighbours of one kind and tier are one operation.
				if last := len(want) - 1; last >= 0 && want[last].Kind == kind && want[last].Tier == tier {
					want[last].ranges = append(want[last].ranges, uint64(r))
				} else {
					want = append(want, Op{Kind: kind, Tier: tier, ranges: []uint64{uint64(r)}})
				}
			}
		}
	}
	if b.NumOps() != len(want) {
		panic("the builder counts operations wrongly")
	}
	return b.Frame(), h, want
}

func sameOp(a, b Op) bool {
	return a.Kind == b.Kind && a.Tier == b.Tier && a.Run == b.Run && a.Start == b.Start && a.Parent == b.Parent &&
		slices.Equal(a.Locals, b.Locals) && slices.Equal(a.Engines, b.Engines) && slices.Equal(a.ranges, b.ranges)
}

func TestFrameRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var b FrameBuilder
	for round := range 3000 {
		f, h, want := randomFrame(rng, &b)
		if err := f.Validate(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if got := f.Header(); got != h {
			t.Fatalf("round %d: header %+v, want %+v", round, got, h)
		}
		if f.NumOps() != len(want) {
			t.Fatalf("round %d: %d operations, want %d", round, f.NumOps(), len(want))
		}
		i := 0
		var op Op
		for off := f.Next(0, &op); off != 0; off = f.Next(off, &op) {
			if i >= len(want) || !sameOp(op, want[i]) {
				t.Fatalf("round %d: operation %d is %+v, want %+v", round, i, op, want[min(i, len(want)-1)])
			}
			for j := range op.NumRanges() {
				if op.Range(j) != Range(want[i].ranges[j]) {
					t.Fatalf("round %d: range %d of operation %d", round, j, i)
				}
			}
			i++
		}
		if i != len(want) {
			t.Fatalf("round %d: %d operations decoded, want %d", round, i, len(want))
		}
	}
}

func TestRange(t *testing.T) {
	for _, c := range []struct {
		run     Run
		from, n int
	}{{0, 0, 1}, {1, 0, MaxRunLength}, {1<<32 - 1, MaxRunLength - 1, 1}, {7, 1234, 4321}, {9, 1, MaxRunLength - 1}} {
		r := MakeRange(c.run, c.from, c.n)
		if r.Run() != c.run || r.From() != c.from || r.Len() != c.n {
			t.Errorf("%+v became run %d, from %d, %d positions", c, r.Run(), r.From(), r.Len())
		}
	}
}

func TestTierNames(t *testing.T) {
	for tier, want := range map[Tier]string{Device: "device", Host: "host", Disk: "disk", External: "external", AllTiers: "all", 9: "tier(9)"} {
		if tier.String() != want {
			t.Errorf("tier %d is called %q, want %q", uint8(tier), tier, want)
		}
	}
	if AllTiers.Mask() != 1<<NumTiers-1 || !Disk.Mask().Has(Disk) || Disk.Mask().Has(Host) {
		t.Error("masks")
	}
}

// use reads everything that a valid frame has; it must not go out of bounds.
func use(t *testing.T, f Frame) {
	t.Helper()
	words, ops := frameHeaderWords, 0
	var op Op
	for off := f.Next(0, &op); off != 0; off = f.Next(off, &op) {
		ops++
		words = off
		if len(op.Locals) != len(op.Engines) || (op.Kind == OpStore) != (len(op.Locals) > 0) {
			t.Fatalf("operation %+v", op)
		}
		if int(op.Start)+len(op.Locals) > MaxRunLength {
			t.Fatalf("store up to %d", int(op.Start)+len(op.Locals))
		}
		for i := range op.NumRanges() {
			if r := op.Range(i); r.From()+r.Len() > MaxRunLength {
				t.Fatalf("range up to %d", r.From()+r.Len())
			}
		}
	}
	if ops != f.NumOps() || words != len(f) {
		t.Fatalf("%d operations in %d words decoded; the frame says %d in %d", ops, words, f.NumOps(), len(f))
	}
}

// TestFrameCorrupted changes valid frames at random: Validate must either refuse the
// result or let through only what can be read.
func TestFrameCorrupted(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 2))
	var b FrameBuilder
	refused, passed := 0, 0
	for range 60_000 {
		f, _, _ := randomFrame(rng, &b)
		f = slices.Clone(f)
		switch rng.IntN(5) {
		case 0:
			f = f[:rng.IntN(len(f)+1)]
		case 1:
			f = append(f, rng.Uint64())
		case 2:
			f[rng.IntN(len(f))] ^= 1 << rng.IntN(64)
		case 3:
			f[rng.IntN(len(f))] = rng.Uint64()
		case 4:
			i := rng.IntN(len(f))
			f = slices.Insert(f, i, f[i])
		}
		if rng.IntN(2) == 0 && len(f) > 0 { // as if the length had been repaired
			f[0] = f[0]&^0xffffffff | uint64(len(f))
		}
		err := f.Validate()
		if err == nil {
			passed++
			use(t, f)
			continue
		}
		refused++
		if !errors.Is(err, ErrFrame) {
			t.Fatalf("%v does not wrap %v", err, ErrFrame)
		}
	}
	if refused < 1000 || passed < 1000 {
		t.Errorf("%d refused, %d passed: the test sees one side only", refused, passed)
	}
}

// TestFrameRefusals has one frame for each reason to refuse one.
func TestFrameRefusals(t *testing.T) {
	build := func(ops func(b *FrameBuilder)) Frame {
		var b FrameBuilder
		b.Reset(Header{})
		ops(&b)
		return slices.Clone(b.Frame())
	}
	store := func(n int) Frame {
		return build(func(b *FrameBuilder) { b.Store(Device, 1, 0, Parent{}, n) })
	}
	edit := func(f Frame, word int, to func(w uint64) uint64) Frame {
		f[word] = to(f[word])
		return f
	}
	set := func(v uint64) func(uint64) uint64 { return func(uint64) uint64 { return v } }
	or := func(v uint64) func(uint64) uint64 { return func(w uint64) uint64 { return w | v } }
	marked := func() Frame {
		return build(func(b *FrameBuilder) {
			b.Store(Device, 1, 0, Parent{}, 2)
			b.Mark(Mark{Set: true, Tag: 7, Note: [2]uint64{8, 9}})
		})
	}
	drop := build(func(b *FrameBuilder) { b.Drop(Host, MakeRange(1, 5, 3)) })
	for name, f := range map[string]Frame{
		"nothing":                  nil,
		"no header":                {1, 2, 3},
		"too long":                 make(Frame, MaxFrameWords+1),
		"wrong length":             edit(store(2), 0, func(w uint64) uint64 { return w + 1 }),
		"wrong number of ops":      edit(store(2), 0, func(w uint64) uint64 { return w + 1<<32 }),
		"another version":          edit(store(2), 2, or(2<<32)),
		"no kind":                  edit(store(2), 6, func(w uint64) uint64 { return w &^ 0xff }),
		"unknown kind":             edit(store(2), 6, func(w uint64) uint64 { return w&^0xff | 5 }),
		"unknown tier":             edit(store(2), 6, or(4<<8)),
		"all tiers in a store":     edit(store(2), 6, or(0xff<<8)),
		"unknown parent kind":      edit(store(2), 6, or(2<<16)),
		"reserved bits":            edit(store(2), 6, or(5<<24)),
		"note without a mark":      edit(store(2), 6, or(2<<24)),
		"note beyond the end":      edit(store(2), 6, or(3<<24)),
		"tag without a mark":       edit(store(2), 7, or(1<<48)),
		"empty note":               edit(edit(marked(), 13, set(0)), 14, set(0)),
		"marked extension":         edit(edit(marked(), 7, set(1|5<<32)), 8, set(0)),
		"marked drop":              edit(slices.Clone(drop), 6, or(1<<24)),
		"store of nothing":         edit(store(2), 6, func(w uint64) uint64 { return uint64(uint32(w)) }),
		"store of too much":        edit(store(2), 6, func(w uint64) uint64 { return w + 1<<32 }),
		"store of very much":       edit(store(2), 6, or(0xffffffff<<32)),
		"store beyond a run":       edit(store(2), 7, set(1|uint64(MaxRunLength-1)<<32)),
		"extension with an anchor": edit(edit(store(2), 7, set(1|5<<32)), 8, set(1)),
		"extension with a name":    edit(edit(store(2), 7, set(1|5<<32)), 6, or(1<<16)),
		"no ranges":                edit(slices.Clone(drop), 6, func(w uint64) uint64 { return uint64(uint32(w)) }),
		"too many ranges":          edit(slices.Clone(drop), 6, func(w uint64) uint64 { return w + 1<<32 }),
		"drop with a parent":       edit(slices.Clone(drop), 6, or(1<<16)),
		"drop in all tiers":        edit(slices.Clone(drop), 6, or(0xff<<8)),
		"range beyond a run":       edit(slices.Clone(drop), 7, set(uint64(1)<<32|0xffff<<16|1)),
		"clear with a body":        edit(build(func(b *FrameBuilder) { b.Clear(AllTiers) }), 6, or(1<<32)),
		"clear of a strange tier":  edit(build(func(b *FrameBuilder) { b.Clear(Host) }), 6, or(0xf0<<8)),
	} {
		if err := f.Validate(); !errors.Is(err, ErrFrame) {
			t.Errorf("%s: %v, want %v", name, err, ErrFrame)
		}
	}
	for name, f := range map[string]Frame{
		"mark":          marked(),
		"store":         store(2),
		"longest store": store(MaxRunLength),
		"extension to the end of a run": build(func(b *FrameBuilder) {
			b.Store(Device, 1, MaxRunLength-2, Parent{Anchor: 9}, 2) // the anchor is left out
		}),
		"drop":  drop,
		"clear": build(func(b *FrameBuilder) { b.Clear(AllTiers) }),
		"empty": build(func(*FrameBuilder) {}),
	} {
		if err := f.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		use(t, f)
	}
}

// TestFrameBuilderReuse: a frame does not depend on what was built before it.
func TestFrameBuilderReuse(t *testing.T) {
	var used FrameBuilder
	rng := rand.New(rand.NewPCG(3, 3))
	for seed := range uint64(200) {
		randomFrame(rng, &used)
		var fresh FrameBuilder
		a, _, _ := randomFrame(rand.New(rand.NewPCG(seed, 4)), &used)
		b, _, _ := randomFrame(rand.New(rand.NewPCG(seed, 4)), &fresh)
		if !slices.Equal(a, b) {
			t.Fatalf("seed %d: a used builder makes another frame", seed)
		}
	}
}

func FuzzFrameValidate(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 5))
	var b FrameBuilder
	for range 30 {
		fr, _, _ := randomFrame(rng, &b)
		var raw []byte
		for _, w := range fr {
			raw = binary.LittleEndian.AppendUint64(raw, w)
		}
		f.Add(raw, true)
		f.Add(raw[:len(raw)/2], false)
	}
	f.Fuzz(func(t *testing.T, raw []byte, repair bool) {
		fr := make(Frame, len(raw)/8)
		for i := range fr {
			fr[i] = binary.LittleEndian.Uint64(raw[8*i:])
		}
		if repair && len(fr) >= frameHeaderWords { // else most inputs fail at once
			fr[0] = fr[0]&^0xffffffff | uint64(len(fr))
			fr[2] = fr[2]&0xffffffff | FrameVersion<<32
		}
		if err := fr.Validate(); err == nil {
			use(t, fr)
		} else if !errors.Is(err, ErrFrame) {
			t.Fatalf("%v does not wrap %v", err, ErrFrame)
		}
	})
}
