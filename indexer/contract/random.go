package contract

import (
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

func randomTests() []test {
	var tests []test
	for _, m := range []mix{mixFork, mixLong, mixFew, mixBad} {
		tests = append(tests, test{m.name, func(t *testing.T, open Open) {
			differential(t, open, m, 1, 6, 300)
		}})
	}
	return tests
}

// Differential compares the index with the model of sets on random valid streams of
// frames: seeds first, first+1, ..., n of them in each of the four mixes, each of so
// many frames. A seed that fails is shrunk to a minimal valid stream and printed as
// the text of a test.
func Differential(t *testing.T, open func(t *testing.T) indexer.Index, first int64, n, frames int) {
	for _, m := range []mix{mixFork, mixLong, mixFew, mixBad} {
		t.Run(m.name, func(t *testing.T) { differential(t, open, m, first, n, frames) })
	}
}

func differential(t *testing.T, open Open, m mix, first int64, n, frames int) {
	for seed := first; seed < first+int64(n); seed++ {
		s := newStream(seed, m)
		all := make([]*frame, frames)
		for i := range all {
			all[i] = s.next()
		}
		// Half of the seeds ask after every frame, the others at quiet points only.
		every := 1
		if seed%2 == 0 {
			every = 40
		}
		err := replay(t, open, all, s.paths(), every)
		if err == nil {
			continue
		}
		small := shrink(t, open, all, s.paths())
		final := replay(t, open, small, queriesOf(small), 1)
		if final == nil {
			t.Fatalf("%s, seed %d: %v\nthe failure does not repeat", m.name, seed, err)
		}
		t.Fatalf("%s, seed %d: %v\nshrunk to %d frames:\n%s\n// %v", m.name, seed, err, len(small), text(small), final)
	}
}

func text(frames []*frame) string {
	var s strings.Builder
	for _, f := range frames {
		fmt.Fprintln(&s, f)
	}
	return s.String()
}

// replay runs the frames on a new index; it compares a few answers after every
// so-many frames and everything at the end.
func replay(t *testing.T, open Open, frames []*frame, queries []indexer.Query, every int) (err error) {
	b := newBench(t, open)
	defer b.close()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	m := newModel()
	for i, f := range frames {
		m.apply(f)
		f.send(b)
		if (i+1)%every != 0 {
			continue
		}
		b.flush()
		for j := range min(12, len(queries)) {
			// Steps that have no factor with the number of queries would be better
			// still; these meet all of them over a stream.
			if err := checkQuery(b.r, m, queries[(i*12+j)%len(queries)]); err != nil {
				return fmt.Errorf("after frame %d: %w", i, err)
			}
		}
		if every > 1 {
			if err := checkAll(b, m, queries); err != nil {
				return fmt.Errorf("after frame %d: %w", i, err)
			}
		}
	}
	b.flush()
	return checkAll(b, m, queries)
}

// queriesOf are the paths that a short stream stores.
func queriesOf(frames []*frame) (out []indexer.Query) {
	k := newTracker()
	for _, f := range copyFrames(frames) {
		if !k.accept(f) || f.purge {
			continue
		}
		for _, r := range k.copies[f.at].runs {
			out = append(out, indexer.Query{Group: f.at.g, Partition: f.at.p, Anchor: r.anchor, Locals: r.path(len(r.locals))})
		}
	}
	slices.SortFunc(out, func(a, b indexer.Query) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	return slices.CompactFunc(out, func(a, b indexer.Query) bool { return fmt.Sprint(a) == fmt.Sprint(b) })
}

func copyFrames(frames []*frame) []*frame {
	out := make([]*frame, len(frames))
	for i, f := range frames {
		out[i] = &frame{f.at, f.purge, slices.Clone(f.ops)}
	}
	return out
}

// valid leaves out of the frames what their predecessors no longer allow.
func valid(frames []*frame) (out []*frame) {
	k := newTracker()
	for _, f := range copyFrames(frames) {
		if k.accept(f) {
			out = append(out, f)
		}
	}
	return out
}

// maxShrink bounds the replays spent on one failing seed.
const maxShrink = 3000

// shrink looks for a smaller valid stream that fails as well: fewer frames, fewer
// operations, fewer blocks, fewer ranges, until nothing more can go.
func shrink(t *testing.T, open Open, frames []*frame, queries []indexer.Query) []*frame {
	tries := 0
	fails := func(c []*frame) bool {
		tries++
		return replay(t, open, c, queriesOf(c), 1) != nil || replay(t, open, c, queries, max(1, len(c))) != nil
	}
	for smaller := true; smaller && tries < maxShrink; {
		smaller = false
		for n := len(frames); n >= 1; n /= 2 {
			for from := 0; from < len(frames) && tries < maxShrink; {
				c := valid(slices.Concat(frames[:from], frames[min(from+n, len(frames)):]))
				if len(c) < len(frames) && fails(c) {
					frames, smaller = c, true
				} else {
					from += n
				}
			}
		}
		for i := 0; i < len(frames) && tries < maxShrink; i++ {
			for j := 0; i < len(frames) && j < len(frames[i].ops) && tries < maxShrink; {
				c, ok := shrinkOp(frames, i, j, fails)
				if ok {
					frames, smaller = c, true
				} else {
					j++
				}
			}
		}
	}
	return frames
}

// shrinkOp tries to make one operation smaller, or to do without it.
func shrinkOp(frames []*frame, i, j int, fails func([]*frame) bool) ([]*frame, bool) {
	for _, change := range []func(o *op) bool{
		func(o *op) bool { o.kind = 0; return true },
		func(o *op) bool {
			n := len(o.locals) / 2
			o.locals, o.engines = o.locals[:n], o.engines[:n]
			return n > 0
		},
		func(o *op) bool {
			n := len(o.locals) - 1
			if n > 0 {
				o.locals, o.engines = o.locals[:n], o.engines[:n]
			}
			return n > 0
		},
		func(o *op) bool {
			n := len(o.ranges) / 2
			o.ranges = o.ranges[:n]
			return n > 0
		},
		func(o *op) bool {
			n := len(o.ranges) - 1
			if n > 0 {
				o.ranges = o.ranges[1:]
			}
			return n > 0
		},
	} {
		c := copyFrames(frames)
		if !change(&c[i].ops[j]) {
			continue
		}
		before := size(frames)
		if c = valid(c); size(c) < before && fails(c) {
			return c, true
		}
	}
	return frames, false
}

func size(frames []*frame) (n int) {
	for _, f := range frames {
		n += 1 + len(f.ops)
		for _, o := range f.ops {
			n += len(o.locals) + len(o.ranges)
		}
	}
	return n
}
