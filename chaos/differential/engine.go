package differential

import (
	"slices"

	"github.com/kvcluster/kvcluster/chaos/model"
)

// engine is the cache of one rank: what it may say of itself.
type engine struct {
	has    [model.NumTiers]map[string]int // path -> physical copies
	copies bool
}

func newEngine(copies bool) *engine {
	e := &engine{copies: copies}
	for t := range e.has {
		e.has[t] = map[string]int{}
	}
	return e
}

func (e *engine) resident(path []uint64, tier int) bool { return e.has[tier][key(path)] > 0 }

func (e *engine) anywhere(path []uint64) bool {
	k := key(path)
	for t := range e.has {
		if e.has[t][k] > 0 {
			return true
		}
	}
	return false
}

// lead is the number of leading blocks of a prompt that the tier has.
func (e *engine) lead(prompt []uint64, tier int) int {
	n := 0
	for n < len(prompt) && e.resident(prompt[:n+1], tier) {
		n++
	}
	return n
}

// accept does what the batch says and leaves out what the engine could not say. It
// reports whether anything is left.
func (e *engine) accept(batch []Event) []Event {
	out := batch[:0:0]
	for _, ev := range batch {
		if e.acceptEvent(&ev) {
			out = append(out, ev)
		}
	}
	return out
}

func (e *engine) acceptEvent(ev *Event) bool {
	switch {
	case ev.Kind == model.Cleared:
		for t := range e.has {
			if ev.Tier == model.AllTiers || ev.Tier == t {
				clear(e.has[t])
			}
		}
		return true
	case ev.Kind == model.Removed:
		ev.Paths = slices.DeleteFunc(slices.Clone(ev.Paths), func(p []uint64) bool {
			k := key(p)
			if e.has[ev.Tier][k] == 0 {
				return true
			}
			if e.has[ev.Tier][k]--; e.has[ev.Tier][k] == 0 {
				delete(e.has[ev.Tier], k)
			}
			return false
		})
		return len(ev.Paths) > 0
	case ev.Placeholder:
		ev.Paths = slices.DeleteFunc(slices.Clone(ev.Paths), func(p []uint64) bool { return !e.anywhere(p) })
		for _, p := range ev.Paths {
			e.put(p, ev.Tier)
		}
		return len(ev.Paths) > 0
	}
	if len(ev.Blocks) == 0 || len(ev.Under) > 0 && !e.anywhere(ev.Under) {
		return false
	}
	path := slices.Clone(ev.Under)
	for _, l := range ev.Blocks {
		path = append(path, l)
		e.put(path, ev.Tier)
	}
	return true
}

func (e *engine) put(path []uint64, tier int) {
	k := key(path)
	if e.has[tier][k] == 0 || e.copies {
		e.has[tier][k]++
	}
}

// Valid leaves out of the steps what the engines could not send after what is left
// before: the shorter stream is again one that engines could send.
func Valid(steps []Step, m Mode) []Step {
	engines := map[int]*engine{}
	var out []Step
	for _, s := range steps {
		e := engines[s.Holder]
		if e == nil || s.End != GoesOn {
			e = newEngine(m.Copies)
			engines[s.Holder] = e
		}
		if s.End != GoesOn {
			out = append(out, s)
			continue
		}
		if s.Batch = e.accept(s.Batch); len(s.Batch) > 0 {
			out = append(out, s)
		}
	}
	return out
}
