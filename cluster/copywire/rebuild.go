package copywire

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
)

// minFrameWords is the least that Rebuild can work with: a header and a store.
const minFrameWords = 64

// Rebuild makes the frames after which a copy equals the dumped one: the same runs,
// with the same positions live in the same tiers on the same paths, however many names
// a position has. The first frame begins with a clear, so it does not matter what the
// copy was before. Frames have at most maxWords words, at least 64; emit gets them in
// order and must not keep them.
//
// Dumps name what is live. The dead names below a run's last live one come back too,
// since they may be named as parents: they are stored, and dropped at the end of their
// run. A run whose parent no run can name any more hangs below a temporary one, with a
// number above all others, that is dropped at the very end. Engine hashes of dead
// blocks are 0 unless the dump says what they were.
//
// Errors are those of emit, or wrap ErrMessage when the stretches are none of a dump.
func Rebuild(b *indexer.FrameBuilder, h indexer.Header, stretches []indexer.Stretch, maxWords int, emit func(first, last bool, f indexer.Frame) error) error {
	r := rebuilder{
		b: b, h: h, max: min(maxWords, indexer.MaxFrameWords), emit: emit, first: true,
		index: newPathIndex(), engines: map[uint64]uint64{},
	}
	if r.max < minFrameWords {
		return fmt.Errorf("%w: frames of %d words, want %d", ErrMessage, r.max, minFrameWords)
	}
	if err := r.collect(stretches); err != nil {
		return err
	}
	r.reset()
	r.b.Clear(indexer.AllTiers)
	r.words++
	for i := range r.runs {
		if err := r.restore(&r.runs[i]); err != nil {
			return err
		}
	}
	for _, t := range r.temps {
		if err := r.drop(indexer.Device, t.run, 0, t.n); err != nil {
			return err
		}
	}
	return r.emit(r.first, true, r.b.Frame())
}

type rebuilder struct {
	b     *indexer.FrameBuilder
	h     indexer.Header
	max   int
	words int // of the present frame
	first bool
	emit  func(first, last bool, f indexer.Frame) error

	runs    []dumpedRun
	next    uint64 // number of the next temporary run
	temps   []tempRun
	index   *pathIndex
	names   []nameOf          // by place.path: how the blocks of that path are named
	engines map[uint64]uint64 // of dead blocks, by fingerprint of their path

	col []uint64 // engine hashes of the present run
}

// dumpedRun is what a dump has of one run.
type dumpedRun struct {
	run  indexer.Run
	path runPath
	of   []indexer.Stretch
}

func (d *dumpedRun) len() int { return len(d.path.full) - d.path.above }

type tempRun struct {
	run indexer.Run
	n   int
}

// nameOf says that the blocks of a path behind the first above belong to run.
type nameOf struct {
	run   indexer.Run
	above int
}

// collect groups the stretches by runs, and orders these so that every run comes after
// those that it may hang below: by the depth at which they begin.
func (r *rebuilder) collect(stretches []indexer.Stretch) error {
	seen := map[indexer.Run]bool{}
	for len(stretches) > 0 {
		of := stretches[:nextRun(stretches)]
		stretches = stretches[len(of):]
		run := of[0].Run
		if err := checkRun(of); err != nil {
			return fmt.Errorf("run %d: %w", run, err)
		}
		if seen[run] {
			return fmt.Errorf("run %d: %w: comes twice", run, ErrMessage)
		}
		seen[run] = true
		r.runs = append(r.runs, dumpedRun{run, pathOf(of), of})
		r.next = max(r.next, uint64(run)+1)
	}
	slices.SortStableFunc(r.runs, func(a, b dumpedRun) int {
		return cmp.Or(cmp.Compare(a.path.above, b.path.above), cmp.Compare(a.run, b.run))
	})
	for i := range r.runs {
		d := &r.runs[i]
		r.index.prints.of(d.path.anchor, d.path.full)
		for j := range d.of {
			if s := &d.of[j]; !s.Parent.Root {
				r.engines[r.index.prints[len(s.Path)]] = s.Parent.Engine
			}
		}
	}
	return nil
}

func checkRun(of []indexer.Stretch) error {
	last := &of[len(of)-1]
	above := len(last.Path) - int(last.Start)
	end := 0
	for i := range of {
		s := &of[i]
		n := len(s.Locals)
		if n == 0 || len(s.Engines) != n || s.Tiers == 0 || s.Tiers >= 1<<indexer.NumTiers ||
			s.Start > indexer.MaxRunLength || int(s.Start)+n > indexer.MaxRunLength || int(s.Start) < end ||
			above < 0 || len(s.Path) != above+int(s.Start) || s.Anchor != last.Anchor || s.Mark != last.Mark {
			return fmt.Errorf("%w: stretch at %d of %d blocks and %d engine hashes, tiers %04b, below %d", ErrMessage, s.Start, n, len(s.Engines), s.Tiers, len(s.Path))
		}
		if end = int(s.Start) + n; i < len(of)-1 && (!slices.Equal(s.Path, last.Path[:len(s.Path)]) || above+end > len(last.Path) || !slices.Equal(s.Locals, last.Path[len(s.Path):above+end])) {
			return fmt.Errorf("%w: stretches on different paths", ErrMessage)
		}
	}
	return nil
}

// restore makes the operations of one run.
func (r *rebuilder) restore(d *dumpedRun) error {
	x := r.index
	x.prints.of(d.path.anchor, d.path.full)
	parent, err := r.parent(d)
	if err != nil {
		return err
	}
	r.column(d)
	x.add(d.path, d.path.above)
	r.names = append(r.names, nameOf{d.run, d.path.above})

	// A stretch is stored together with the dead names before it, in its lowest tier.
	at := 0
	for i := range d.of {
		s := &d.of[i]
		end := int(s.Start) + len(s.Locals)
		if err := r.store(lowest(s.Tiers), d.run, at, end, parent, s.Mark, d.path.full[d.path.above:], r.col); err != nil {
			return err
		}
		at = end
	}
	for t := range indexer.Tier(indexer.NumTiers) {
		for i := range d.of {
			if s := &d.of[i]; s.Tiers.Has(t) && t != lowest(s.Tiers) {
				if err := r.claim(t, d.run, int(s.Start), len(s.Locals)); err != nil {
					return err
				}
			}
		}
	}
	at = 0
	for i := range d.of {
		s := &d.of[i]
		if int(s.Start) > at {
			if err := r.drop(lowest(s.Tiers), d.run, at, int(s.Start)-at); err != nil {
				return err
			}
		}
		at = int(s.Start) + len(s.Locals)
	}
	return nil
}

func lowest(m indexer.TierMask) indexer.Tier {
	t := indexer.Tier(0)
	for !m.Has(t) {
		t++
	}
	return t
}

// column fills in the engine hashes of a run, as far as they are known.
func (r *rebuilder) column(d *dumpedRun) {
	r.col = r.col[:0]
	for pos := range d.len() {
		r.col = append(r.col, r.engines[r.index.prints[d.path.above+pos+1]])
	}
	for i := range d.of {
		copy(r.col[d.of[i].Start:], d.of[i].Engines)
	}
}

// parent says how the block above a run is named; if nobody can name it, by a
// temporary run. The prints are those of the run's path.
func (r *rebuilder) parent(d *dumpedRun) (indexer.Parent, error) {
	above := d.path.above
	at := r.index.longest(d.path, above)
	parent := indexer.Parent{Anchor: d.path.anchor}
	if at.depth > 0 {
		parent = r.nameAt(at)
	}
	for from := int(at.depth); from < above; {
		n := min(above-from, indexer.MaxRunLength)
		if r.next > 1<<32-1 {
			return parent, fmt.Errorf("%w: no number left for a run", ErrMessage)
		}
		t := tempRun{indexer.Run(r.next), n}
		r.next++
		r.temps = append(r.temps, t)
		p := runPath{d.path.anchor, d.path.full[:from+n], from}
		r.col = r.col[:0]
		for i := range n {
			r.col = append(r.col, r.engines[r.index.prints[from+i+1]])
		}
		if err := r.store(indexer.Device, t.run, 0, n, parent, indexer.Mark{}, p.full[from:], r.col); err != nil {
			return parent, err
		}
		r.index.add(p, from)
		r.names = append(r.names, nameOf{t.run, from})
		parent = indexer.Parent{Kind: indexer.ParentName, Run: t.run, Pos: uint32(n - 1)}
		from += n
	}
	return parent, nil
}

func (r *rebuilder) nameAt(at place) indexer.Parent {
	n := r.names[at.path]
	return indexer.Parent{Kind: indexer.ParentName, Run: n.run, Pos: at.depth - 1 - uint32(n.above)}
}

// store stores positions from to end of a run, cut where a frame is full.
func (r *rebuilder) store(t indexer.Tier, run indexer.Run, from, end int, parent indexer.Parent, mark indexer.Mark, locals, engines []uint64) error {
	for from < end {
		head := 3
		if from == 0 && mark.Note != [2]uint64{} {
			head += len(mark.Note)
		}
		// A frame is not begun for the sake of few blocks, nor ended with a sliver.
		if r.max-r.words < head+2*min(8, end-from) {
			if err := r.cut(); err != nil {
				return err
			}
		}
		n := min(end-from, (r.max-r.words-head)/2)
		l, e := r.b.Store(t, run, uint32(from), parent, n)
		copy(l, locals[from:])
		copy(e, engines[from:])
		if from == 0 {
			r.b.Mark(mark)
		}
		r.words += head + 2*n
		from += n
	}
	return nil
}

func (r *rebuilder) claim(t indexer.Tier, run indexer.Run, from, n int) error {
	if err := r.room(); err != nil {
		return err
	}
	r.b.Claim(t, indexer.MakeRange(run, from, n))
	return nil
}

func (r *rebuilder) drop(t indexer.Tier, run indexer.Run, from, n int) error {
	if err := r.room(); err != nil {
		return err
	}
	r.b.Drop(t, indexer.MakeRange(run, from, n))
	return nil
}

// room makes sure that a range and a head fit.
func (r *rebuilder) room() error {
	if r.max-r.words < 2 {
		if err := r.cut(); err != nil {
			return err
		}
	}
	r.words += 2
	return nil
}

// cut emits the present frame and begins the next.
func (r *rebuilder) cut() error {
	if err := r.emit(r.first, false, r.b.Frame()); err != nil {
		return err
	}
	r.first = false
	r.reset()
	return nil
}

func (r *rebuilder) reset() {
	r.b.Reset(r.h)
	r.words = frameHeader
}
