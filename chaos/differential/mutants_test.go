package differential

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

// badTranslator is the real translator with one fault in front of it or behind it.
type badTranslator struct {
	translate.Interface
	config translate.Config
	store  func(b *badTranslator, s translate.Store) translate.Outcome
	remove func(b *badTranslator, tier indexer.Tier, engines []uint64) translate.Outcome
	clear  func(b *badTranslator, tier indexer.Tier) translate.Outcome
	emit   func(b *badTranslator, f indexer.Frame) indexer.Frame
	calls  int
	paths  map[uint64][]uint64 // what each hash stood for
	ghosts [][]uint64
	batch  uint64
}

func (b *badTranslator) Begin(sequence uint64) {
	b.batch = sequence
	b.Interface.Begin(sequence)
}

func (b *badTranslator) Store(s translate.Store) translate.Outcome {
	b.calls++
	if b.store != nil {
		return b.store(b, s)
	}
	return b.Interface.Store(s)
}

func (b *badTranslator) Remove(tier indexer.Tier, engines []uint64) translate.Outcome {
	b.calls++
	if b.remove != nil {
		return b.remove(b, tier, engines)
	}
	return b.Interface.Remove(tier, engines)
}

func (b *badTranslator) Clear(tier indexer.Tier) translate.Outcome {
	if b.clear != nil {
		return b.clear(b, tier)
	}
	return b.Interface.Clear(tier)
}

func (b *badTranslator) End(emit func(indexer.Frame) error) error {
	err := b.Interface.End(func(f indexer.Frame) error {
		if b.emit != nil {
			f = b.emit(b, f)
		}
		return emit(f)
	})
	for _, path := range b.ghosts { // a second name that nothing will ever drop
		var fb indexer.FrameBuilder
		fb.Reset(indexer.Header{Group: b.config.Group, Partition: b.config.Partition(path[0]), Slot: b.config.Slot, Sequence: b.batch})
		b.calls++
		l, e := fb.Store(indexer.Device, indexer.Run(1<<24+b.calls), 0, indexer.Parent{}, len(path))
		copy(l, path)
		copy(e, path)
		if err == nil {
			err = emit(fb.Frame())
		}
	}
	b.ghosts = nil
	return err
}

var badTranslators = map[string]badTranslator{
	"one removal in thirty is lost": {remove: func(b *badTranslator, tier indexer.Tier, engines []uint64) translate.Outcome {
		if b.calls%30 == 0 {
			engines = engines[:len(engines)-1]
		}
		return b.Interface.Remove(tier, engines)
	}},
	"a removal takes all tiers": {remove: func(b *badTranslator, _ indexer.Tier, engines []uint64) (o translate.Outcome) {
		for t := range indexer.Tier(indexer.NumTiers) {
			o = b.Interface.Remove(t, engines)
		}
		return o
	}},
	"a removal takes what was stored below": {remove: func(b *badTranslator, tier indexer.Tier, engines []uint64) translate.Outcome {
		var all []uint64
		for h, p := range b.paths {
			for _, e := range engines {
				if above := b.paths[e]; len(p) >= len(above) && len(above) > 0 && key(p[:len(above)]) == key(above) {
					all = append(all, h)
				}
			}
		}
		return b.Interface.Remove(tier, all)
	}},
	"a clear forgets one tier": {clear: func(b *badTranslator, tier indexer.Tier) translate.Outcome {
		if tier == indexer.AllTiers {
			tier = indexer.Device
		}
		return b.Interface.Clear(tier)
	}},
	"unknown parents are roots": {store: func(b *badTranslator, s translate.Store) translate.Outcome {
		if s.HasParent && b.Lookup(s.Parent) != translate.HashHeld {
			s.HasParent = false
		}
		return b.Interface.Store(s)
	}},
	"every block has the event's parent": {store: func(b *badTranslator, s translate.Store) (o translate.Outcome) {
		for i := range s.Engines {
			one := s
			one.Engines = s.Engines[i : i+1]
			if !s.Placeholder {
				one.Content = blockhash.Content{Locals: s.Content.Locals[i : i+1]}
			}
			o = b.Interface.Store(one)
		}
		return o
	}},
	"the last block of a long store is lost": {store: func(b *badTranslator, s translate.Store) translate.Outcome {
		if n := len(s.Engines); n > 6 && !s.Placeholder {
			s.Engines, s.Content.Locals = s.Engines[:n-1], s.Content.Locals[:n-1]
		}
		return b.Interface.Store(s)
	}},
	"announcements are ignored": {store: func(b *badTranslator, s translate.Store) translate.Outcome {
		if s.Placeholder {
			return translate.Outcome{}
		}
		return b.Interface.Store(s)
	}},
	"duplicates are not trimmed": {store: func(b *badTranslator, s translate.Store) translate.Outcome {
		if !s.Placeholder && s.Tier == indexer.Device {
			path := append([]uint64(nil), b.paths[s.Parent]...)
			if len(path) > 0 || !s.HasParent {
				for i, h := range s.Engines {
					path = append(path, s.Content.Locals[i])
					if b.Lookup(h) == translate.HashHeld {
						b.ghosts = append(b.ghosts, append([]uint64(nil), path...))
					}
				}
			}
		}
		return b.Interface.Store(s)
	}},
	"removals of one block are applied to its neighbour": {emit: func(b *badTranslator, f indexer.Frame) indexer.Frame {
		return rewriteDrops(f, func(r indexer.Range) indexer.Range {
			if r.Len() == 1 && r.From() > 0 {
				return indexer.MakeRange(r.Run(), r.From()-1, 1)
			}
			return r
		})
	}},
}

// rewriteDrops changes the ranges of the drops of a frame.
func rewriteDrops(f indexer.Frame, change func(indexer.Range) indexer.Range) indexer.Frame {
	var b indexer.FrameBuilder
	b.Reset(f.Header())
	var o indexer.Op
	for off := f.Next(0, &o); off != 0; off = f.Next(off, &o) {
		switch o.Kind {
		case indexer.OpStore:
			l, e := b.Store(o.Tier, o.Run, o.Start, o.Parent, len(o.Locals))
			copy(l, o.Locals)
			copy(e, o.Engines)
		case indexer.OpClear:
			b.Clear(o.Tier)
		case indexer.OpClaim:
			for i := range o.NumRanges() {
				b.Claim(o.Tier, o.Range(i))
			}
		case indexer.OpDrop:
			for i := range o.NumRanges() {
				b.Drop(o.Tier, change(o.Range(i)))
			}
		}
	}
	return b.Frame()
}

// remember notes the path of every hash for the mutants that need it.
func (b *badTranslator) remember(s translate.Store) {
	if s.Placeholder || s.HasParent && b.paths[s.Parent] == nil {
		return
	}
	path := b.paths[s.Parent]
	for i, h := range s.Engines {
		path = append(append([]uint64(nil), path...), s.Content.Locals[i])
		b.paths[h] = path
	}
}

func mutated(proto badTranslator) func(translate.Config) translate.Interface {
	return func(c translate.Config) translate.Interface {
		b := proto
		b.config, b.Interface, b.paths = c, translate.New(c), map[uint64][]uint64{}
		inner := b.store
		b.store = func(b *badTranslator, s translate.Store) translate.Outcome {
			if inner == nil {
				b.remember(s)
				return b.Interface.Store(s)
			}
			defer b.remember(s)
			return inner(b, s)
		}
		return &b
	}
}

// badIndex is the reference with one fault in what it is asked or told.
type badIndex struct {
	indexer.Index
	match func(r indexer.Reader, q indexer.Query, out *indexer.Scores)
	purge func(x indexer.Index, g indexer.GroupID, s indexer.Slot) error
	late  bool // drops wait for the next frame, but count as applied
}

func (b *badIndex) NewReader() indexer.Reader { return &badReader{b.Index.NewReader(), b} }

func (b *badIndex) NewWriter() indexer.Writer {
	if b.late {
		return &lateWriter{Writer: b.Index.NewWriter()}
	}
	return b.Index.NewWriter()
}

func (b *badIndex) Purge(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
	if b.purge != nil {
		return b.purge(b.Index, g, s)
	}
	return b.Index.Purge(ctx, g, s)
}

type badReader struct {
	indexer.Reader
	b *badIndex
}

func (r *badReader) Match(q indexer.Query, out *indexer.Scores) {
	if r.b.match != nil {
		r.b.match(r.Reader, q, out)
		return
	}
	r.Reader.Match(q, out)
}

type lateWriter struct {
	indexer.Writer
	held indexer.Frame
}

func (w *lateWriter) Write(f indexer.Frame) error {
	if w.held != nil {
		if err := w.Writer.Write(w.held); err != nil {
			return err
		}
		w.held = nil
	}
	var o indexer.Op
	for off := f.Next(0, &o); off != 0; off = f.Next(off, &o) {
		if o.Kind == indexer.OpDrop {
			w.held = append(indexer.Frame{}, f...)
			return nil
		}
	}
	return w.Writer.Write(f)
}

var badIndexes = map[string]badIndex{
	"a purge does nothing":    {purge: func(indexer.Index, indexer.GroupID, indexer.Slot) error { return nil }},
	"drops come a frame late": {late: true},
	"equal sizes stand for equal sets": {match: func(r indexer.Reader, q indexer.Query, out *indexer.Scores) {
		r.Match(q, out)
		sets := make([]map[indexer.Slot]bool, len(q.Locals))
		for i := range sets {
			sets[i] = map[indexer.Slot]bool{}
		}
		for s := range indexer.Slot(600) {
			if s > 20 && s < 250 {
				continue
			}
			for i, b := range r.Explain(q, s, nil) {
				if b.Tiers.Has(indexer.Device) {
					sets[i][s] = true
				}
			}
		}
		out.Rows = out.Rows[:0]
		active := sets[0]
		for i := 1; i <= len(sets); i++ {
			next := map[indexer.Slot]bool{}
			for s := range active {
				switch {
				case i < len(sets) && (len(active) == len(sets[i]) || sets[i][s]):
					next[s] = true
				default:
					out.Rows = append(out.Rows, indexer.Row{Slot: s, Depth: uint32(i)})
				}
			}
			active = next
		}
	}},
	"some scores are one too high": {match: func(r indexer.Reader, q indexer.Query, out *indexer.Scores) {
		r.Match(q, out)
		for i := range out.Rows {
			if d := out.Rows[i].Depth; int(d) < len(q.Locals) && (uint64(d)+uint64(len(q.Locals)))%17 == 0 {
				out.Rows[i].Depth++
			}
		}
	}},
}

// mustFind runs seeds of all modes until one fails, and looks at the report.
func mustFind(t *testing.T, setup Setup, limit int) {
	for seed := int64(1); seed <= 6; seed++ {
		for _, m := range Modes() {
			for _, quiet := range []int{1, 100} {
				r := Run{Setup: setup, Mode: m, Seed: seed, Operations: 600, Quiet: quiet}
				f := r.Do()
				if f == nil {
					continue
				}
				if size(Valid(f.Small, m)) != size(f.Small) {
					t.Errorf("the shrunk stream is not one that engines could send:\n%s", Text(f.Small))
				}
				good := Run{Setup: references(), Mode: m}
				if err := good.replay(f.Small, 1); err != nil {
					t.Errorf("the shrunk stream fails without the mutant: %v\n%s", err, Text(f.Small))
				}
				if len(f.Small) > limit {
					t.Errorf("shrunk to %d steps only, want at most %d:\n%s", len(f.Small), limit, Text(f.Small))
				}
				if !strings.Contains(f.Error(), "seed") || f.Final == nil {
					t.Errorf("report %q", f.Error())
				}
				t.Log(f)
				return
			}
		}
	}
	t.Error("not found")
}

func TestMutantTranslatorsAreFound(t *testing.T) {
	for name, proto := range badTranslators {
		t.Run(name, func(t *testing.T) {
			setup := references()
			setup.Translate = mutated(proto)
			limit := 6
			if strings.Contains(name, "thirty") {
				limit = 60 // it takes that many operations to come about
			}
			mustFind(t, setup, limit)
		})
	}
}

func TestMutantIndexesAreFound(t *testing.T) {
	for name, proto := range badIndexes {
		t.Run(name, func(t *testing.T) {
			setup := references()
			setup.Open = func() indexer.Index {
				b := proto
				b.Index = reference.New(reference.Config{})
				return &b
			}
			mustFind(t, setup, 14)
		})
	}
}

// The soak must fail as well: on what only shows while frames are under way, and on
// what is left of earlier lives.
func TestSoakFindsMutants(t *testing.T) {
	slow := map[string]badIndex{
		"drops come a frame late": badIndexes["drops come a frame late"],
		"a purge does nothing":    badIndexes["a purge does nothing"],
		"a purge returns before it is done": {purge: func(x indexer.Index, g indexer.GroupID, s indexer.Slot) error {
			time.AfterFunc(time.Millisecond, func() { _ = x.Purge(context.Background(), g, s) })
			return nil
		}},
		"some scores are one too high": badIndexes["some scores are one too high"],
	}
	for name, proto := range slow {
		t.Run(name, func(t *testing.T) {
			setup := references()
			setup.Open = func() indexer.Index {
				b := proto
				b.Index = reference.New(reference.Config{})
				return &b
			}
			k := Soak{Setup: setup, Mode: Mode{Name: "mutant", Shape: Shape{2, 2, 2, 4, 4, 3}, Workers: 4, Ranks: 2}, Seed: 1, Rounds: 12}
			if _, err := k.Do(); err == nil {
				t.Error("not found")
			} else {
				t.Log(err)
			}
		})
	}
}
