package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/chaos/oplist"
)

// IndexConfig says what MeasureIndex measures.
type IndexConfig struct {
	Only   []string // names of rows; empty = all
	Trace  string   // file of the conversation trace; empty = generated
	Repeat int      // processes for each row and arm; some rows take fewer
	Quick  bool     // the short form: smaller inputs, to see that all of it works
	// ProfileDir, if set, gets a CPU profile of every row, from one more repetition
	// that does not count.
	ProfileDir string
	Spawn      Spawner
	Progress   func(string)
}

// Report is what MeasureIndex found.
type Report struct {
	Time      time.Time   `json:"time"`
	Host      Host        `json:"host"`
	Trace     string      `json:"trace"`
	Generated bool        `json:"generated"`
	List      string      `json:"op_list"`
	Checksum  Hex         `json:"op_checksum"`
	Quick     bool        `json:"quick"`
	Repeat    int         `json:"repeat"`
	Rows      []RowReport `json:"rows"`
}

// RowReport has the figures of one row.
type RowReport struct {
	Name     string          `json:"name"`
	Title    string          `json:"title"`
	Inputs   string          `json:"inputs"`
	Repeat   int             `json:"repeat"`
	Invalid  []string        `json:"invalid,omitempty"` // repetitions that do not count
	Measures []MeasureReport `json:"measures"`
	// Figures are all figures of every repetition, also those not shown.
	Figures map[string]Spread `json:"figures"`
}

// MeasureReport is one figure, judged.
type MeasureReport struct {
	Measure
	Spread
	Verdict string `json:"verdict"`
}

// Missed counts the measures that miss their target.
func (r *Report) Missed() int {
	n := 0
	for i := range r.Rows {
		for j := range r.Rows[i].Measures {
			if r.Rows[i].Measures[j].Verdict == VerdictMissed {
				n++
			}
		}
	}
	return n
}

// selectRows returns the rows of the given names, all for none.
func selectRows(only []string) ([]Row, error) {
	all := Rows()
	if len(only) == 0 {
		return all, nil
	}
	for _, name := range only {
		if _, err := findRow(name); err != nil {
			names := make([]string, len(all))
			for i := range all {
				names[i] = all[i].Name
			}
			return nil, fmt.Errorf("%w: want some of %q", err, names)
		}
	}
	return slices.DeleteFunc(all, func(r Row) bool { return !slices.Contains(only, r.Name) }), nil
}

// MeasureIndex measures rows, one process for each repetition and arm, the repetitions
// of all rows spread over the whole time. An answer that is wrong ends it with an
// error that wraps ErrWrongAnswers or names the row.
func MeasureIndex(ctx context.Context, c IndexConfig) (*Report, error) {
	rows, err := selectRows(c.Only)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kvcluster-bench-")
	if err != nil {
		return nil, fmt.Errorf("benchmark: %w", err)
	}
	defer os.RemoveAll(dir)
	m := indexRun{c: c, tape: filepath.Join(dir, "oplist")}
	list := oplist.Config{Copies: 4, Workers: 128, Capacity: 8192}
	requests := math.MaxInt
	if c.Trace == "" {
		requests = publicRequests
	}
	if c.Quick {
		list, requests = oplist.Config{Copies: 1, Workers: 16, Capacity: 2048}, 2000
	}
	m.progress("building the op list %s", list)
	if m.want, err = writeTape(c.Trace, requests, list, m.tape); err != nil {
		return nil, err
	}
	r := &Report{
		Time: time.Now().UTC().Truncate(time.Second), Host: thisHost(), Trace: c.Trace, Generated: c.Trace == "",
		List: list.String(), Checksum: Hex(m.want.Checksum), Quick: c.Quick, Repeat: c.Repeat,
	}
	states := make([]*rowState, len(rows))
	for i := range rows {
		states[i] = &rowState{row: rows[i], figures: map[string][]float64{}}
	}
	for rep := range c.Repeat {
		for _, s := range states {
			if s.row.Repeat > 0 && rep >= s.row.Repeat {
				continue
			}
			if err := m.repetition(ctx, s, rep); err != nil {
				return nil, err
			}
		}
	}
	for _, s := range states {
		r.Rows = append(r.Rows, s.report())
	}
	if c.ProfileDir != "" {
		for _, s := range states {
			if err := m.profile(ctx, s); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// indexRun is what the repetitions share.
type indexRun struct {
	c    IndexConfig
	tape string
	want Answers
}

func (m *indexRun) progress(format string, args ...any) {
	if m.c.Progress != nil {
		m.c.Progress(fmt.Sprintf(format, args...))
	}
}

// rowState collects the repetitions of one row.
type rowState struct {
	row     Row
	inputs  string
	repeat  int
	invalid []string
	figures map[string][]float64
}

func (s *rowState) arms(quick bool) []string {
	switch {
	case quick && s.row.QuickArms != nil:
		return s.row.QuickArms
	case s.row.Arms == nil:
		return []string{""}
	}
	return s.row.Arms
}

// repetition measures all arms of a row once, in rotated order.
func (m *indexRun) repetition(ctx context.Context, s *rowState, rep int) error {
	arms := s.arms(m.c.Quick)
	results := map[string]Result{}
	for j := range arms {
		arm := arms[(rep+j)%len(arms)]
		m.progress("%s %s: repetition %d of %d", s.row.Name, arm, rep+1, m.c.Repeat)
		res, err := m.do(ctx, s.row.Name, arm, "")
		if err != nil {
			return err
		}
		s.inputs = res.Inputs
		if res.Invalid != "" {
			s.invalid = append(s.invalid, fmt.Sprintf("repetition %d %s: %s", rep+1, arm, res.Invalid))
			continue
		}
		results[arm] = res
	}
	if len(results) < len(arms) {
		return nil
	}
	figures := results[arms[0]].Figures
	if s.row.derive != nil {
		figures = s.row.derive(results)
	}
	for k, v := range figures {
		s.figures[k] = append(s.figures[k], v)
	}
	s.repeat++
	return nil
}

func (m *indexRun) do(ctx context.Context, row, arm, profile string) (Result, error) {
	res, err := m.c.Spawn.do(ctx, Job{Row: row, Arm: arm, Tape: m.tape, Trace: m.c.Trace, Quick: m.c.Quick, CPUProfile: profile})
	if err == nil && row == rowOplist {
		err = res.check(m.want)
	}
	return res, err
}

// profile runs a row once more, for its profile alone.
func (m *indexRun) profile(ctx context.Context, s *rowState) error {
	if err := os.MkdirAll(m.c.ProfileDir, 0o755); err != nil {
		return fmt.Errorf("cpu profiles: %w", err)
	}
	arms := s.arms(m.c.Quick)
	m.progress("%s: profile", s.row.Name)
	_, err := m.do(ctx, s.row.Name, arms[0], filepath.Join(m.c.ProfileDir, s.row.Name+".pprof"))
	return err
}

func (s *rowState) report() RowReport {
	r := RowReport{Name: s.row.Name, Title: s.row.Title, Inputs: s.inputs, Repeat: s.repeat, Invalid: s.invalid, Figures: map[string]Spread{}}
	for _, k := range slices.Sorted(maps.Keys(s.figures)) {
		r.Figures[k] = NewSpread(s.figures[k])
	}
	for _, m := range s.row.Measures {
		if runs := s.figures[m.Key]; len(runs) > 0 {
			sp := NewSpread(runs)
			r.Measures = append(r.Measures, MeasureReport{Measure: m, Spread: sp, Verdict: m.Verdict(sp.Median)})
		} else if m.AtLeast != 0 {
			// Nothing measured is not a target met.
			r.Measures = append(r.Measures, MeasureReport{Measure: m, Verdict: VerdictMissed})
		}
	}
	return r
}

// IsUsage reports whether an error is about what was asked for, not about what was
// found.
func IsUsage(err error) bool { return errors.Is(err, ErrJob) }
