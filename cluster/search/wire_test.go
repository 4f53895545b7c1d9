package search

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kvcluster/kvcluster/indexer"
)

// randomQuestion and randomAnswer are what two nodes may say to each other.
func randomQuestion(rng *rand.Rand) *question {
	q := &question{kind: kind(1 + rng.IntN(numKinds-1)), index: rng.Uint64()}
	q.query = indexer.Query{Group: indexer.GroupID(rng.Uint32()), Partition: indexer.PartitionID(rng.Uint32()), Anchor: rng.Uint64()}
	for range rng.IntN(40) {
		q.query.Locals = append(q.query.Locals, rng.Uint64())
	}
	switch q.kind {
	case kindPath:
		q.before = rng.Uint64()
	case kindExplain:
		q.slot = indexer.Slot(rng.IntN(1 << 16))
	case kindPrefix:
		for range rng.IntN(30) {
			q.rows = append(q.rows, indexer.Row{Slot: indexer.Slot(rng.IntN(1 << 16)), Depth: rng.Uint32()})
		}
	}
	return q
}

func randomAnswer(rng *rand.Rand, q *question) *answer {
	a := &answer{status: status(1 + rng.IntN(numStatus-1)), current: rng.IntN(2) == 0, index: rng.Uint64(), age: time.Duration(rng.Uint32()) * time.Millisecond}
	if a.status != statusOK {
		return a
	}
	deepest := uint32(len(q.query.Locals))
	slots := func(share int) (out []indexer.Slot) {
		top := 1 << rng.IntN(17)
		for range rng.IntN(300) {
			if s := indexer.Slot(rng.IntN(top)); rng.IntN(share) == 0 && !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
		return out
	}
	if rng.IntN(2) == 0 {
		a.unreadable = slots(4)
	}
	depth := func() uint32 { return 1 + rng.Uint32N(deepest) }
	switch q.kind {
	case kindMatch:
		if deepest == 0 {
			break
		}
		common := depth()
		for _, s := range slots(1 + rng.IntN(3)) {
			d := common
			if rng.IntN(4) == 0 {
				d = depth()
			}
			a.scores.Rows = append(a.scores.Rows, indexer.Row{Slot: s, Depth: d})
		}
		for _, s := range slots(8) {
			t := indexer.TierRow{Slot: s}
			for i := range t.Depth {
				t.Depth[i] = depth()
			}
			slices.Sort(t.Depth[:])
			a.scores.Tiers = append(a.scores.Tiers, t)
		}
	case kindExplain:
		for range q.query.Locals {
			a.states = append(a.states, indexer.BlockState{Tiers: indexer.TierMask(rng.IntN(16)), Known: rng.IntN(2) == 0, Evicted: rng.IntN(2) == 0})
		}
	case kindPath:
		for range rng.IntN(int(deepest) + 1) {
			a.path = append(a.path, rng.Uint64())
		}
	case kindPrefix:
		for range q.rows {
			p := indexer.Prefix{Length: rng.Uint32N(deepest + 1)}
			p.Device, p.Host, p.Lower = rng.Uint32N(p.Length+1), rng.Uint32N(p.Length+1), rng.Uint32N(p.Length+1)
			a.prefixes = append(a.prefixes, p)
		}
	}
	return a
}

var wireOptions = cmp.Options{
	cmp.AllowUnexported(question{}, answer{}), cmpopts.IgnoreFields(answer{}, "slots"), cmpopts.EquateEmpty(),
	cmpopts.SortSlices(func(a, b indexer.Row) bool { return a.Slot < b.Slot }),
	cmpopts.SortSlices(func(a, b indexer.Slot) bool { return a < b }),
}

func TestWireRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var q question
	var a answer
	var seen bitSet
	for range 600 {
		wantQ := randomQuestion(rng)
		raw := appendQuestion(nil, wantQ)
		if err := decodeQuestion(raw, &q); err != nil {
			t.Fatalf("%+v: %v", wantQ, err)
		}
		// Rows of a request keep their order: the answer's prefixes are in it.
		if !slices.Equal(q.rows, wantQ.rows) {
			t.Fatalf("rows %v, want %v", q.rows, wantQ.rows)
		}
		if d := cmp.Diff(wantQ, &q, wireOptions); d != "" {
			t.Fatal(d)
		}
		wantA := randomAnswer(rng, wantQ)
		raw = appendAnswer(nil, q.kind, wantA)
		if len(raw)%8 != 0 {
			t.Fatalf("answer of %d bytes", len(raw))
		}
		if err := decodeAnswer(raw, &q, &a, &seen); err != nil {
			t.Fatalf("%+v: %v", wantA, err)
		}
		if d := cmp.Diff(wantA, &a, wireOptions); d != "" {
			t.Fatal(d)
		}
		// Nothing is missed when a message is cut short or goes on.
		cut := raw[:8*rng.IntN(len(raw)/8)]
		if wantA.status == statusOK && decodeAnswer(cut, &q, &a, &seen) == nil {
			t.Fatalf("an answer cut from %d to %d bytes passes", len(raw), len(cut))
		}
		if decodeAnswer(append(raw, 0, 0, 0, 0, 0, 0, 0, 0), &q, &a, &seen) == nil {
			t.Fatal("an answer with something behind it passes")
		}
	}
}

// Two thousand holders of the same depth are a bit each.
func TestWireSize(t *testing.T) {
	a := &answer{status: statusOK}
	for s := range 2000 {
		a.scores.Rows = append(a.scores.Rows, indexer.Row{Slot: indexer.Slot(s), Depth: 40})
	}
	if n := len(appendAnswer(nil, kindMatch, a)); n > 320 {
		t.Errorf("%d bytes", n)
	}
	a.scores.Rows[7].Depth = 3
	if n := len(appendAnswer(nil, kindMatch, a)); n > 330 {
		t.Errorf("with one other depth: %d bytes", n)
	}
}

// Values that no node sends.
func TestWireRefuses(t *testing.T) {
	q := &question{kind: kindMatch, query: indexer.Query{Locals: []uint64{1, 2, 3}}}
	row := func(slot, depth uint32) answer {
		return answer{status: statusOK, scores: indexer.Scores{Rows: []indexer.Row{{Slot: indexer.Slot(slot), Depth: depth}}}}
	}
	tier := func(d ...uint32) answer {
		return answer{status: statusOK, scores: indexer.Scores{Tiers: []indexer.TierRow{{Depth: [4]uint32(d)}}}}
	}
	for name, a := range map[string]answer{
		"depth 0": row(1, 0), "too deep": row(1, 4), "slot": row(1<<16, 1),
		"slot twice":          {status: statusOK, scores: indexer.Scores{Rows: []indexer.Row{{Slot: 1, Depth: 2}, {Slot: 1, Depth: 3}}}},
		"same slot and depth": {status: statusOK, scores: indexer.Scores{Rows: []indexer.Row{{Slot: 900, Depth: 2}, {Slot: 900, Depth: 2}}}},
		"tiers fall":          tier(1, 3, 2, 3), "tiers too deep": tier(1, 1, 1, 4),
		"unreadable twice": {status: statusOK, unreadable: []indexer.Slot{900, 900}},
		"status":           {status: numStatus},
		"no status":        {},
	} {
		var got answer
		if err := decodeAnswer(appendAnswer(nil, kindMatch, &a), q, &got, &bitSet{}); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if err := decodeAnswer(appendAnswer(nil, kindPath, &answer{status: statusOK, path: []uint64{1, 2, 3, 4}}), &question{kind: kindPath, query: q.query}, &answer{}, &bitSet{}); err == nil {
		t.Error("a path longer than the sequence")
	}
	prefix := &question{kind: kindPrefix, query: q.query, rows: []indexer.Row{{Slot: 1}}}
	for _, p := range [][]indexer.Prefix{nil, {{Length: 4}}, {{Length: 1, Host: 2}}, {{}, {}}} {
		if err := decodeAnswer(appendAnswer(nil, kindPrefix, &answer{status: statusOK, prefixes: p}), prefix, &answer{}, &bitSet{}); err == nil {
			t.Errorf("prefixes %v", p)
		}
	}
}

func FuzzQuestion(f *testing.F) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		f.Add(appendQuestion(nil, randomQuestion(rng)))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var q question
		if err := decodeQuestion(raw, &q); err != nil {
			return
		}
		var again question
		if err := decodeQuestion(appendQuestion(nil, &q), &again); err != nil {
			t.Fatalf("%+v: %v", q, err)
		}
		if !reflect.DeepEqual(q, again) {
			t.Fatalf("%+v became %+v", q, again)
		}
	})
}

func FuzzAnswer(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 40 {
		q := randomQuestion(rng)
		f.Add(appendAnswer(nil, q.kind, randomAnswer(rng, q)), byte(q.kind), uint16(len(q.query.Locals)), uint16(len(q.rows)))
	}
	f.Fuzz(func(t *testing.T, raw []byte, k byte, blocks, rows uint16) {
		q := &question{kind: kind(k), query: indexer.Query{Locals: make([]uint64, blocks)}, rows: make([]indexer.Row, rows)}
		var a, again answer
		if err := decodeAnswer(raw, q, &a, &bitSet{}); err != nil {
			return
		}
		for _, r := range a.scores.Rows {
			if r.Depth == 0 || r.Depth > uint32(blocks) {
				t.Fatalf("row %+v of %d blocks", r, blocks)
			}
		}
		if err := decodeAnswer(appendAnswer(nil, q.kind, &a), q, &again, &bitSet{}); err != nil {
			t.Fatalf("%+v: %v", a, err)
		}
		if d := cmp.Diff(&a, &again, wireOptions); d != "" {
			t.Fatal(d)
		}
	})
}

func TestSlotSet(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	var s slotSet
	for range 200 {
		s.reset()
		want := map[indexer.Slot]bool{}
		for range rng.IntN(100) {
			x := indexer.Slot(rng.IntN(2000))
			if s.add(x) == want[x] {
				t.Fatalf("add %d", x)
			}
			want[x] = true
		}
		if len(s.list) != len(want) {
			t.Fatalf("%d of %d", len(s.list), len(want))
		}
		for x := range indexer.Slot(2100) {
			if s.has(x) != want[x] {
				t.Fatalf("has %d", x)
			}
		}
	}
}
