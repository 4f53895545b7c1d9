package contract

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

// mutant is a reference index with one fault built in. Its hooks are nil where it
// behaves.
type mutant struct {
	indexer.Index
	op    func(h *indexer.Header, o *op, n int) bool // changes an operation, or leaves it out
	match func(m *mutant, r indexer.Reader, q indexer.Query, out *indexer.Scores)
	purge func(g indexer.GroupID, s indexer.Slot) bool // false: forget to
	visit func() func(s indexer.Stretch) bool          // false: leave the stretch out
	state func(b *indexer.BlockState)                  // changes an explanation
	late  bool                                         // each frame is applied with the next one
}

func (m *mutant) NewWriter() indexer.Writer { return &mutantWriter{Writer: m.Index.NewWriter(), m: m} }

func (m *mutant) NewReader() indexer.Reader { return &mutantReader{m.Index.NewReader(), m} }

func (m *mutant) Purge(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
	if m.purge != nil && !m.purge(g, s) {
		return nil
	}
	return m.Index.Purge(ctx, g, s)
}

func (m *mutant) Dump(ctx context.Context, g indexer.GroupID, p indexer.PartitionID, s indexer.Slot, visit func(indexer.Stretch) error) error {
	keep := func(indexer.Stretch) bool { return true }
	if m.visit != nil {
		keep = m.visit()
	}
	return m.Index.Dump(ctx, g, p, s, func(st indexer.Stretch) error {
		if !keep(st) {
			return nil
		}
		return visit(st)
	})
}

type mutantReader struct {
	indexer.Reader
	m *mutant
}

func (r *mutantReader) Match(q indexer.Query, out *indexer.Scores) {
	if r.m.match != nil {
		r.m.match(r.m, r.Reader, q, out)
		return
	}
	r.Reader.Match(q, out)
}

func (r *mutantReader) Explain(q indexer.Query, s indexer.Slot, dst []indexer.BlockState) []indexer.BlockState {
	at := len(dst)
	dst = r.Reader.Explain(q, s, dst)
	for i := range dst[at:] {
		if r.m.state != nil {
			r.m.state(&dst[at+i])
		}
	}
	return dst
}

type mutantWriter struct {
	indexer.Writer
	m       *mutant
	builder indexer.FrameBuilder
	ops     int
	held    indexer.Frame
}

func (w *mutantWriter) Write(f indexer.Frame) error {
	h := f.Header()
	b := &w.builder
	var all []op
	var o indexer.Op
	for off := f.Next(0, &o); off != 0; off = f.Next(off, &o) {
		c := op{kind: o.Kind, tier: o.Tier, run: o.Run, start: o.Start, parent: o.Parent, locals: o.Locals, engines: o.Engines}
		for i := range o.NumRanges() {
			c.ranges = append(c.ranges, o.Range(i))
		}
		w.ops++
		if w.m.op == nil || w.m.op(&h, &c, w.ops) {
			all = append(all, c)
		}
	}
	b.Reset(h)
	(&frame{ops: all}).pack(b)
	next := append(indexer.Frame{}, b.Frame()...)
	if w.m.late {
		w.held, next = next, w.held
		if next == nil {
			return nil
		}
	}
	return w.Writer.Write(next)
}

var mutants = map[string]func() *mutant{
	"one removal in fifty is lost": func() *mutant {
		return &mutant{op: func(_ *indexer.Header, o *op, n int) bool {
			if o.kind == indexer.OpDrop && n%50 == 0 {
				o.ranges = o.ranges[:len(o.ranges)-1]
			}
			return o.kind != indexer.OpDrop || len(o.ranges) > 0
		}}
	},
	"removals end one block early": func() *mutant {
		return &mutant{op: func(_ *indexer.Header, o *op, n int) bool {
			for i, r := range o.ranges {
				if o.kind == indexer.OpDrop && r.Len() > 5 {
					o.ranges[i] = indexer.MakeRange(r.Run(), r.From(), r.Len()-1)
				}
			}
			return true
		}}
	},
	"a clear of all tiers clears the device": func() *mutant {
		return &mutant{op: func(_ *indexer.Header, o *op, _ int) bool {
			if o.tier == indexer.AllTiers {
				o.tier = indexer.Device
			}
			return true
		}}
	},
	"a clear of one tier clears all": func() *mutant {
		return &mutant{op: func(_ *indexer.Header, o *op, _ int) bool {
			if o.kind == indexer.OpClear {
				o.tier = indexer.AllTiers
			}
			return true
		}}
	},
	"claims are lost": func() *mutant {
		return &mutant{op: func(_ *indexer.Header, o *op, _ int) bool { return o.kind != indexer.OpClaim }}
	},
	"unknown names are ignored": func() *mutant {
		return &mutant{op: func(_ *indexer.Header, o *op, _ int) bool {
			return o.kind != indexer.OpDrop || o.ranges[0].Run() < 1<<20
		}}
	},
	"anchors are one tree": func() *mutant {
		return &mutant{op: func(_ *indexer.Header, o *op, _ int) bool { o.parent.Anchor = 0; return true },
			match: func(m *mutant, r indexer.Reader, q indexer.Query, out *indexer.Scores) {
				q.Anchor = 0
				r.Match(q, out)
			}}
	},
	"partitions are one tree": func() *mutant {
		return &mutant{op: func(h *indexer.Header, o *op, _ int) bool {
			if h.Partition == 1 { // other runs of one copy now
				h.Partition = 0
				o.run += 1 << 16
				if o.parent.Kind == indexer.ParentName {
					o.parent.Run += 1 << 16
				}
				for i, r := range o.ranges {
					o.ranges[i] = indexer.MakeRange(r.Run()+1<<16, r.From(), r.Len())
				}
			}
			return true
		}, match: func(m *mutant, r indexer.Reader, q indexer.Query, out *indexer.Scores) {
			q.Partition = 0
			r.Match(q, out)
		}}
	},
	"purges outside of the first group are forgotten": func() *mutant {
		return &mutant{purge: func(g indexer.GroupID, _ indexer.Slot) bool { return g == 0 }}
	},
	"equal sizes stand for equal sets": func() *mutant { return &mutant{match: equalSizes} },
	"holes cut off what is below": func() *mutant {
		return &mutant{op: func(_ *indexer.Header, o *op, _ int) bool {
			// A block of the middle takes the rest of its run along.
			for i, r := range o.ranges {
				if o.kind == indexer.OpDrop && r.From() > 0 {
					o.ranges[i] = indexer.MakeRange(r.Run(), r.From(), r.Len()+1)
				}
			}
			return true
		}}
	},
	"the tier walk begins at the root in every tier": func() *mutant { return &mutant{match: walkFromRoot} },
	"rows of depth 0": func() *mutant {
		return &mutant{match: func(m *mutant, r indexer.Reader, q indexer.Query, out *indexer.Scores) {
			r.Match(q, out)
			out.Rows = append(out.Rows, indexer.Row{Slot: 900})
		}}
	},
	"a row twice": func() *mutant {
		return &mutant{match: func(m *mutant, r indexer.Reader, q indexer.Query, out *indexer.Scores) {
			r.Match(q, out)
			if n := len(out.Rows); n > 2 {
				out.Rows = append(out.Rows, out.Rows[0])
			}
		}}
	},
	"the last frame is late": func() *mutant { return &mutant{late: true} },
	"an eviction is forgotten when nobody holds the block": func() *mutant {
		return &mutant{state: func(b *indexer.BlockState) { b.Evicted = b.Evicted && b.Known }}
	},
	"an eviction is forgotten while somebody holds the block": func() *mutant {
		return &mutant{state: func(b *indexer.BlockState) { b.Evicted = b.Evicted && !b.Known }}
	},
	"what others hold is evicted": func() *mutant {
		return &mutant{state: func(b *indexer.BlockState) { b.Evicted = b.Evicted || b.Known && b.Tiers == 0 }}
	},
	"what nobody holds is evicted": func() *mutant {
		return &mutant{state: func(b *indexer.BlockState) { b.Evicted = b.Evicted || !b.Known }}
	},
	"dump by position": func() *mutant {
		return &mutant{visit: func() func(indexer.Stretch) bool {
			seen := map[string]bool{}
			return func(s indexer.Stretch) bool {
				key := pathString(append(append([]uint64{s.Anchor}, s.Path...), s.Locals[0]))
				defer func() { seen[key] = true }()
				return !seen[key]
			}
		}}
	},
	"dump without what is below a hole": func() *mutant {
		return &mutant{visit: func() func(indexer.Stretch) bool {
			end := map[indexer.Run]int{}
			return func(s indexer.Stretch) bool {
				whole := end[s.Run] == int(s.Start)
				end[s.Run] = int(s.Start) + len(s.Locals)
				return whole
			}
		}}
	},
}

// equalSizes walks with sets of slots but takes two sets of one size for equal.
func equalSizes(m *mutant, r indexer.Reader, q indexer.Query, out *indexer.Scores) {
	r.Match(q, out)
	out.Rows = out.Rows[:0]
	holders := make([]map[indexer.Slot]bool, len(q.Locals))
	for i := range holders {
		holders[i] = map[indexer.Slot]bool{}
	}
	for s := range indexer.Slot(8) {
		for i, b := range r.Explain(q, s, nil) {
			if b.Tiers.Has(indexer.Device) {
				holders[i][s] = true
			}
		}
	}
	if len(holders) == 0 {
		return
	}
	active := holders[0]
	for i := 1; i <= len(holders); i++ {
		if i < len(holders) && len(active) == len(holders[i]) {
			continue
		}
		next := map[indexer.Slot]bool{}
		for s := range active {
			if i < len(holders) && holders[i][s] {
				next[s] = true
			} else {
				out.Rows = append(out.Rows, indexer.Row{Slot: s, Depth: uint32(i)})
			}
		}
		active = next
	}
}

// walkFromRoot adds up what each tier holds from the root on, as if tiers were
// separate indexes.
func walkFromRoot(m *mutant, r indexer.Reader, q indexer.Query, out *indexer.Scores) {
	r.Match(q, out)
	out.Tiers = out.Tiers[:0]
	for s := range indexer.Slot(8) {
		var d [indexer.NumTiers]uint32
		for t := range d {
			for _, b := range r.Explain(q, s, nil) {
				if !b.Tiers.Has(indexer.Tier(t)) {
					break
				}
				d[t]++
			}
			if t > 0 {
				d[t] = max(d[t], d[t-1])
			}
		}
		if d[indexer.External] > d[indexer.Device] {
			out.Tiers = append(out.Tiers, indexer.TierRow{Slot: s, Depth: d})
		}
	}
}

// TestMutantsAreFound: the random streams must fail on every mutant, and the stream
// that they are shrunk to must be short, valid and printable.
func TestMutantsAreFound(t *testing.T) {
	for name, build := range mutants {
		t.Run(name, func(t *testing.T) {
			open := func(*testing.T) indexer.Index {
				m := build()
				m.Index = reference.New(reference.Config{})
				return m
			}
			for seed := range int64(8) {
				for _, m := range []mix{mixFork, mixFew, mixBad} {
					s := newStream(seed, m)
					all := make([]*frame, 200)
					for i := range all {
						all[i] = s.next()
					}
					if replay(t, open, all, s.paths(), 40) == nil {
						continue
					}
					small := shrink(t, open, all, s.paths())
					t.Logf("%s, seed %d: shrunk to\n%s", m.name, seed, text(small))
					if replay(t, func(*testing.T) indexer.Index { return reference.New(reference.Config{}) }, small, queriesOf(small), 1) != nil {
						t.Errorf("the shrunk stream is not valid:\n%s", text(small))
					}
					// A fault that only every fiftieth operation shows cannot be short.
					if limit := 8; len(small) > limit && !strings.Contains(name, "fifty") {
						t.Errorf("shrunk to %d frames only:\n%s", len(small), text(small))
					}
					return
				}
			}
			t.Error("not found")
		})
	}
}

// TestRaceFindsMutants: what only shows while frames are under way must be seen.
func TestRaceFindsMutants(t *testing.T) {
	for _, name := range []string{"one removal in fifty is lost", "equal sizes stand for equal sets", "a row twice", "the last frame is late"} {
		t.Run(name, func(t *testing.T) {
			open := func(*testing.T) indexer.Index {
				m := mutants[name]()
				m.Index = reference.New(reference.Config{})
				return m
			}
			err := race(t, open, 20*time.Second) // ends with the first finding
			if err == nil {
				t.Error("not found")
			}
			t.Log(err)
		})
	}
}

// TestModelTable holds the model itself to the worked table, so that it does not
// share an error with the reference.
func TestModelTable(t *testing.T) {
	m := newModel()
	q := indexer.Query{Locals: seq(1, 5)}
	store := func(run indexer.Run, start uint32, p indexer.Parent, locals ...uint64) op {
		return op{kind: indexer.OpStore, run: run, start: start, parent: p, locals: locals, engines: locals}
	}
	for i, step := range []struct {
		op   op
		want uint32
	}{
		{store(0, 0, root(), 1, 2, 3, 4), 4},
		{op{kind: indexer.OpDrop, ranges: []indexer.Range{indexer.MakeRange(0, 1, 1)}}, 1},
		{store(1, 0, under(0, 0), 2), 4},
		{store(0, 4, indexer.Parent{}, 5), 5},
		{op{kind: indexer.OpClaim, tier: host, ranges: []indexer.Range{indexer.MakeRange(0, 2, 3)}}, 5},
		{op{kind: indexer.OpDrop, ranges: []indexer.Range{indexer.MakeRange(0, 3, 2)}}, 3},
	} {
		m.apply(&frame{ops: []op{step.op}})
		got, lower := m.match(q)
		if got[0] != step.want || len(got) != 1 {
			t.Errorf("step %d: %v, want %d", i, got, step.want)
		}
		if want := (tiers{0: {3, 5, 5, 5}}); i == 5 && lower[0] != want[0] {
			t.Errorf("tier walk %v, want %v", lower, want)
		}
	}
}
