package differential

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvcluster/kvcluster/chaos/model"
)

// Event is an engine event in terms of paths; an engine hash is a function of one.
type Event struct {
	Kind model.Kind
	Tier int
	// Under and Blocks: the path of the parent (empty at the root) and the blocks
	// stored below it.
	Under, Blocks []uint64
	// Paths of the blocks removed, or announced by their hashes alone.
	Paths       [][]uint64
	Placeholder bool
}

// Step is what one engine does at one time: a batch of events, or its end.
type Step struct {
	Holder int // number of the rank
	Batch  []Event
	End    End
	// Lost: the batch never arrived.
	Lost bool
}

// End says that a rank ends, and how its successor is numbered.
type End uint8

// The ends of a rank.
const (
	GoesOn     End = iota
	SameSlot       // purged; the next life gets the same slot number
	FreshSlot      // purged; the next life gets a number not used for a while
	ClearFirst     // cleared by its translator, then purged; a fresh number
)

// event gives an event its hashes.
func (e *Event) event(hash func(path []uint64) uint64) model.Event {
	m := model.Event{Kind: e.Kind, Tier: e.Tier, Placeholder: e.Placeholder}
	if e.Kind == model.Stored && !e.Placeholder {
		path := slices.Clone(e.Under)
		if len(path) > 0 {
			m.HasParent, m.Parent = true, hash(path)
		}
		m.Locals = e.Blocks
		for _, l := range e.Blocks {
			path = append(path, l)
			m.Engines = append(m.Engines, hash(path))
		}
		return m
	}
	for _, p := range e.Paths {
		m.Engines = append(m.Engines, hash(p))
	}
	return m
}

// String is the step as Go-like text.
func (s *Step) String() string {
	switch s.End {
	case SameSlot:
		return fmt.Sprintf("end(%d, SameSlot)", s.Holder)
	case FreshSlot:
		return fmt.Sprintf("end(%d, FreshSlot)", s.Holder)
	case ClearFirst:
		return fmt.Sprintf("end(%d, ClearFirst)", s.Holder)
	}
	parts := make([]string, len(s.Batch))
	for i := range s.Batch {
		parts[i] = s.Batch[i].String()
	}
	verb := "batch"
	if s.Lost {
		verb = "lost"
	}
	return fmt.Sprintf("%s(%d, %s)", verb, s.Holder, strings.Join(parts, ", "))
}

// String is the event as Go-like text.
func (e *Event) String() string {
	tier := tierName(e.Tier)
	switch {
	case e.Kind == model.Cleared:
		return fmt.Sprintf("clear(%s)", tier)
	case e.Kind == model.Removed:
		return fmt.Sprintf("remove(%s, %s)", tier, pathList(e.Paths))
	case e.Placeholder:
		return fmt.Sprintf("announce(%s, %s)", tier, pathList(e.Paths))
	}
	return fmt.Sprintf("store(%s, %s, %s)", tier, pathText(e.Under), pathText(e.Blocks))
}

func tierName(t int) string {
	if t == model.AllTiers {
		return "all"
	}
	return [...]string{"device", "host", "disk", "external"}[t]
}

func pathText(p []uint64) string {
	if len(p) == 0 {
		return "root"
	}
	return strings.ReplaceAll(fmt.Sprintf("p(%d)", p), " ", ", ")
}

func pathList(ps [][]uint64) string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = pathText(p)
	}
	return strings.Join(out, ", ")
}

// Text is a stream as Go-like text, a line for each step.
func Text(steps []Step) string {
	var b strings.Builder
	for i := range steps {
		fmt.Fprintf(&b, "\t%v\n", &steps[i])
	}
	return b.String()
}
