package differential

import (
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/kvcluster/kvcluster/chaos/model"
)

// Run is one comparison.
type Run struct {
	Setup Setup
	Mode  Mode
	Seed  int64
	// Operations of the stream; 0 means 2,000.
	Operations int
	// Quiet is the number of operations from one quiet point to the next: 1 compares
	// after every operation, 0 means 100.
	Quiet int
}

// Failure is a stream on which index and judge differ.
type Failure struct {
	Run
	Err   error  // of the stream as drawn
	Small []Step // the smallest stream found that fails
	Final error  // of the small stream
}

// Error is the report: the seed, and the small stream as text.
func (f *Failure) Error() string {
	return fmt.Sprintf("mode %q, seed %d: %v\nshrunk to %d steps:\n%s\t// %v", f.Mode.Name, f.Seed, f.Err, len(f.Small), Text(f.Small), f.Final)
}

// Do runs the comparison and returns nil or the failure, shrunk.
func (r Run) Do() *Failure {
	if r.Operations == 0 {
		r.Operations = 2000
	}
	if r.Quiet == 0 {
		r.Quiet = 100
	}
	s := NewStream(r.Seed, r.Mode)
	var steps []Step
	for range r.Operations {
		steps = s.Next(steps)
	}
	err := r.replay(steps, r.Quiet)
	if err == nil {
		return nil
	}
	f := &Failure{Run: r, Err: err}
	f.Small, f.Final = r.shrink(steps)
	return f
}

// replay sends the steps to a new pipeline and compares.
func (r *Run) replay(steps []Step, quiet int) (err error) {
	p := newPipeline(r.Setup, r.Mode)
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v\n%s", v, debug.Stack())
			return
		}
		if cerr := p.close(); err == nil && cerr != nil {
			err = fmt.Errorf("close: %w", cerr)
		}
	}()
	j := newJudge(r.Mode)
	prompts := queries(r.Mode, steps)
	for i := range steps {
		s := &steps[i]
		j.apply(s)
		if err := p.apply(s); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		if err := j.checkHashes(p, s); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		last := i == len(steps)-1
		if quiet > 1 && (i+1)%quiet != 0 && !last {
			continue
		}
		if err := p.flush(); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		// All prompts in turn, and those of the step.
		some := append(touched(s), prompts[i%len(prompts)], prompts[(7*i+3)%len(prompts)])
		for _, q := range some {
			if err := j.checkPrompt(p, q); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
		}
		if quiet > 1 || i%100 == 99 || last {
			if err := j.checkAll(p, prompts); err != nil {
				return fmt.Errorf("step %d: %w", i, err)
			}
		}
	}
	return nil
}

// touched returns a prompt for each event of the step: up to its deepest block.
func touched(s *Step) (out [][]uint64) {
	for i := range s.Batch {
		e := &s.Batch[i]
		var longest []uint64
		if len(e.Blocks) > 0 {
			longest = slices.Concat(e.Under, e.Blocks)
		}
		for _, p := range e.Paths {
			if len(p) > len(longest) {
				longest = p
			}
		}
		if len(longest) > 0 {
			out = append(out, longest)
		}
	}
	return out
}

// queries are the prompts of the pool and every tail that the steps made.
func queries(m Mode, steps []Step) [][]uint64 {
	out := m.Shape.prompts()
	seen := map[string]bool{}
	for i := range steps {
		for _, q := range touched(&steps[i]) {
			if k := key(q); q[len(q)-1] < 1000 && !seen[k] && len(seen) < 200 {
				seen[k] = true
				out = append(out, q)
			}
		}
	}
	return out
}

// maxShrink bounds the replays spent on one failing stream.
const maxShrink = 4000

// shrink looks for a smaller valid stream that fails: fewer steps, then fewer events,
// then fewer blocks, until nothing more can go.
func (r *Run) shrink(steps []Step) (small []Step, final error) {
	tries := 0
	fails := func(c []Step) bool {
		if len(c) == 0 || tries >= maxShrink {
			return false
		}
		tries++
		// Compared after every step first; a failure that takes a burst without a
		// quiet point in between is looked for as such.
		err := r.replay(c, 1)
		if err == nil && r.Quiet > 1 {
			err = r.replay(c, r.Quiet)
		}
		if err != nil {
			final = err
		}
		return err != nil
	}
	if !fails(steps) {
		return steps, fmt.Errorf("the failure does not repeat")
	}
	for again := true; again; {
		again = false
		for n := len(steps); n >= 1; n /= 2 {
			for from := 0; from < len(steps); {
				c := Valid(slices.Concat(steps[:from], steps[min(from+n, len(steps)):]), r.Mode)
				if size(c) < size(steps) && fails(c) {
					steps, again = c, true
				} else {
					from += n
				}
			}
		}
		for i := 0; i < len(steps); i++ {
			for j := 0; i < len(steps) && j < len(steps[i].Batch); {
				if c, ok := r.shrinkEvent(steps, i, j, fails); ok {
					steps, again = c, true
				} else {
					j++
				}
			}
		}
	}
	fails(steps)
	return steps, final
}

// shrinkEvent tries to make one event smaller, or to do without it.
func (r *Run) shrinkEvent(steps []Step, i, j int, fails func([]Step) bool) ([]Step, bool) {
	for _, change := range []func(e *Event) bool{
		func(e *Event) bool { *e = Event{Kind: model.Removed}; return true },
		func(e *Event) bool { e.Blocks = e.Blocks[:len(e.Blocks)/2]; return len(e.Blocks) > 0 },
		func(e *Event) bool { e.Blocks = e.Blocks[:max(0, len(e.Blocks)-1)]; return len(e.Blocks) > 0 },
		func(e *Event) bool { e.Paths = e.Paths[:len(e.Paths)/2]; return len(e.Paths) > 0 },
		func(e *Event) bool { e.Paths = e.Paths[min(1, len(e.Paths)):]; return len(e.Paths) > 0 },
	} {
		c := slices.Clone(steps)
		c[i].Batch = slices.Clone(c[i].Batch)
		if !change(&c[i].Batch[j]) {
			continue
		}
		if c = Valid(c, r.Mode); size(c) < size(steps) && fails(c) {
			return c, true
		}
	}
	return steps, false
}

func size(steps []Step) (n int) {
	for i := range steps {
		n += 1 + len(steps[i].Batch)
		for _, e := range steps[i].Batch {
			n += len(e.Blocks) + len(e.Paths)
		}
	}
	return n
}
