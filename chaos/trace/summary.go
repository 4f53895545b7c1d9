package trace

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Summary says in figures what a trace is: sizes, lengths, and how much of it an
// unlimited cache would find again.
type Summary struct {
	Requests, Sessions int
	IDs                int // over all requests
	Distinct           int // different ids
	FirstIDs           int // different first ids
	Longest            int // ids of the longest prompt
	Span               time.Duration
	Input, Output      Quantiles
	TurnsMean          float64
	// Reuse is the share of ids that are part of a prefix seen before; Returning the
	// share of requests that find more than their first id.
	Reuse, Returning float64
}

// Quantiles describes token counts.
type Quantiles struct {
	Mean                    float64
	P10, P50, P90, P99, Max uint32
}

func quantiles(v []uint32) Quantiles {
	slices.Sort(v)
	at := func(p float64) uint32 { return v[int(p*float64(len(v)-1))] }
	sum := 0.0
	for _, x := range v {
		sum += float64(x)
	}
	return Quantiles{Mean: sum / float64(len(v)), P10: at(0.1), P50: at(0.5), P90: at(0.9), P99: at(0.99), Max: at(1)}
}

// Summarise counts a trace. The trace must have at least one request.
func (t *Trace) Summarise() Summary {
	s := Summary{Requests: len(t.Requests), Sessions: t.Sessions(), Span: t.Span()}
	seen := make(map[uint32]struct{})
	first := make(map[uint32]struct{})
	var in, out []uint32
	reused, returning := 0, 0
	for i := range t.Requests {
		r := &t.Requests[i]
		in, out = append(in, r.Input), append(out, r.Output)
		s.IDs += len(r.IDs)
		s.Longest = max(s.Longest, len(r.IDs))
		k := 0
		for k < len(r.IDs) {
			if _, ok := seen[r.IDs[k]]; !ok {
				break
			}
			k++
		}
		reused += k
		if k > 1 {
			returning++
		}
		for j, id := range r.IDs {
			if j == 0 {
				first[id] = struct{}{}
			}
			seen[id] = struct{}{}
		}
	}
	s.Distinct, s.FirstIDs = len(seen), len(first)
	if len(in) > 0 {
		s.Input, s.Output = quantiles(in), quantiles(out)
		s.TurnsMean = float64(s.Requests) / float64(s.Sessions)
		s.Returning = float64(returning) / float64(s.Requests)
	}
	if s.IDs > 0 {
		s.Reuse = float64(reused) / float64(s.IDs)
	}
	return s
}

// String prints the summary as lines of "name value".
func (s Summary) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-22s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("requests", "%d", s.Requests)
	line("sessions", "%d (%.2f turns each)", s.Sessions, s.TurnsMean)
	line("ids", "%d (%d distinct)", s.IDs, s.Distinct)
	line("first ids", "%d", s.FirstIDs)
	line("longest prompt", "%d ids", s.Longest)
	line("span", "%s", s.Span.Round(time.Second))
	q := func(name string, q Quantiles) {
		line(name, "mean %.0f, p10 %d, p50 %d, p90 %d, p99 %d, max %d", q.Mean, q.P10, q.P50, q.P90, q.P99, q.Max)
	}
	q("input tokens", s.Input)
	q("output tokens", s.Output)
	line("ids found again", "%.1f %%", 100*s.Reuse)
	line("requests that return", "%.1f %%", 100*s.Returning)
	return b.String()
}
