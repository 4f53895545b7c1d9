package protocol

import "fmt"

// Fault is what a model must never show.
type Fault string

// The faults.
const (
	None Fault = ""
	// Over: an answer is more than what the claims that are not taken back justify.
	Over Fault = "over"
	// Under: a complete answer is less than what is acknowledged.
	Under Fault = "under"
	// Parity: all is delivered, and the copy is not what the stream says.
	Parity Fault = "parity"
)

// Model is a system of which every state that can be reached is looked at. States are
// values: two that are equal are one.
type Model[S comparable] interface {
	// Start is the state in which nothing has happened.
	Start() S
	// Steps calls to with every state that one step of anybody leads to.
	Steps(s S, to func(step string, next S))
	// Check says what is wrong with a state.
	Check(s S) Fault
}

// Result is what an exploration has found.
type Result struct {
	States int
	Fault  Fault    // the first, None when the model is clean
	Trace  []string // the steps to it, as few as there can be
}

// String is the result in one line and the trace below it.
func (r Result) String() string {
	if r.Fault == None {
		return fmt.Sprintf("%d states, clean", r.States)
	}
	s := fmt.Sprintf("%d states, %s after %d steps:", r.States, r.Fault, len(r.Trace))
	for _, step := range r.Trace {
		s += "\n  " + step
	}
	return s
}

// Explore looks at all states, breadth first, until one has a fault. More than limit
// states are an error: then nothing is proved.
func Explore[S comparable](m Model[S], limit int) (Result, error) {
	type origin struct {
		from int32
		step string
	}
	start := m.Start()
	states, origins := []S{start}, []origin{{-1, ""}}
	seen := map[S]struct{}{start: {}}
	for i := 0; i < len(states); i++ {
		if fault := m.Check(states[i]); fault != None {
			r := Result{States: len(states), Fault: fault}
			for at := int32(i); origins[at].from >= 0; at = origins[at].from {
				r.Trace = append([]string{origins[at].step}, r.Trace...)
			}
			return r, nil
		}
		m.Steps(states[i], func(step string, next S) {
			if _, known := seen[next]; !known {
				seen[next] = struct{}{}
				states, origins = append(states, next), append(origins, origin{int32(i), step})
			}
		})
		if len(states) > limit {
			return Result{States: len(states)}, fmt.Errorf("more than %d states", limit)
		}
	}
	return Result{States: len(states)}, nil
}
