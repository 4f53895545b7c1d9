package bench

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestEveryRowInItsShortForm measures all rows once, small: every figure that a row
// promises is there, and every answer is right.
func TestEveryRowInItsShortForm(t *testing.T) {
	r, err := MeasureIndex(context.Background(), IndexConfig{Repeat: 1, Quick: true, Spawn: inProcess})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows) != len(Rows()) || r.Host.Cores < 1 || !r.Generated {
		t.Fatalf("%d rows of %d; host %+v", len(r.Rows), len(Rows()), r.Host)
	}
	for i, row := range Rows() {
		got := r.Rows[i]
		if got.Repeat == 0 && len(got.Invalid) > 0 {
			// The machine did not let the reader stand still: said, and not counted.
			t.Logf("%s: %q", row.Name, got.Invalid)
			continue
		}
		if got.Inputs == "" || got.Repeat != 1 {
			t.Errorf("%s: inputs %q, %d repetitions", row.Name, got.Inputs, got.Repeat)
		}
		for _, m := range row.Measures {
			window, _, _ := strings.Cut(m.Key, ".")
			if row.QuickArms != nil && slices.Contains(row.Arms, window) && !slices.Contains(row.QuickArms, window) {
				continue // not measured in the short form
			}
			if s, ok := got.Figures[m.Key]; !ok || len(s.Runs) != 1 {
				t.Errorf("%s: no figure %q", row.Name, m.Key)
			}
		}
	}
	checkChart(t, r)
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"short form", "contention", "M/s", "verdict", r.Host.CPU} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not say %q", want)
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Rows) != len(r.Rows) || back.Rows[0].Measures[0].Verdict == "" || len(back.Rows[0].Measures[0].Runs) != 1 {
		t.Errorf("JSON does not come back: %+v", back.Rows[0].Measures[0])
	}
}

func sampleReport() *Report {
	m := Measure{Key: "rate", Title: `a <rate> & "more"`, Unit: "M/s", HigherIsBetter: true, AtLeast: 30, Aim: 45}
	lower := Measure{Key: "p99", Title: "p99", Unit: "ns", AtLeast: 4000}
	return &Report{
		Time: time.Unix(0, 0).UTC(), Host: Host{CPU: "a & b", Cores: 2},
		Rows: []RowReport{{Name: "oplist", Measures: []MeasureReport{
			{m, NewSpread([]float64{20, 50, 1e6}), VerdictAim},
			{lower, NewSpread([]float64{0, 9000}), VerdictMissed},
			{Measure{Key: "free", Title: "without a target"}, NewSpread([]float64{1}), VerdictNone},
		}}},
	}
}

func TestChartIsWellFormed(t *testing.T) {
	got := checkChart(t, sampleReport())
	for _, want := range []string{"a &lt;rate&gt; &amp; &#34;more&#34;", `class="dot good"`, `class="dot bad"`, `class="aim"`, "(20 to 1e+06)"} {
		if !strings.Contains(got, want) {
			t.Errorf("the chart has no %s", want)
		}
	}
	if strings.Contains(got, "without a target") {
		t.Error("the chart shows a figure without a target")
	}
	if strings.Count(got, "<circle") != 5 {
		t.Errorf("%d dots, want one for each of five runs", strings.Count(got, "<circle"))
	}
}

// checkChart returns the chart after it has been parsed as XML.
func checkChart(t *testing.T, r *Report) string {
	t.Helper()
	var out strings.Builder
	if err := r.WriteSVG(&out); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(out.String()))
	elements := 0
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("chart: %v\n%s", err, out.String())
		}
		if _, ok := tok.(xml.StartElement); ok {
			elements++
		}
	}
	if elements < 5 || strings.Contains(out.String(), "NaN") || strings.Contains(out.String(), "http://") && strings.Count(out.String(), "http://") != 1 {
		t.Errorf("chart of %d elements:\n%s", elements, out.String())
	}
	return out.String()
}

func TestPlaceOnTheChart(t *testing.T) {
	m := MeasureReport{Measure: Measure{HigherIsBetter: true, AtLeast: 10}}
	if x := m.place(10); x != chartLabel+chartPlot/2 {
		t.Errorf("the target is at %v", x)
	}
	if !(m.place(5) < m.place(10) && m.place(10) < m.place(20)) || m.place(0) != chartLabel || m.place(1e9) != chartLabel+chartPlot {
		t.Errorf("order: %v %v %v %v %v", m.place(0), m.place(5), m.place(10), m.place(20), m.place(1e9))
	}
	m.HigherIsBetter = false
	if !(m.place(5) > m.place(10) && m.place(10) > m.place(20)) {
		t.Error("a lower value is better and must be to the right")
	}
}

func TestOnlyNamesRows(t *testing.T) {
	rows, err := selectRows([]string{"wide", "lane"})
	if err != nil || len(rows) != 2 || rows[0].Name != "lane" {
		t.Errorf("%d rows, error %v", len(rows), err)
	}
	if _, err := selectRows([]string{"lane", "lame"}); !errors.Is(err, ErrJob) || !strings.Contains(err.Error(), "lane") {
		t.Errorf("error %v does not help", err)
	}
	if _, err := RunJob(context.Background(), Job{Row: "lame"}); !errors.Is(err, ErrJob) {
		t.Errorf("error %v, want ErrJob", err)
	}
	if _, err := RunJob(context.Background(), Job{Row: "replay", Arm: "soon"}); !errors.Is(err, ErrJob) {
		t.Errorf("error %v, want ErrJob", err)
	}
}

func TestRowsAreSound(t *testing.T) {
	names := map[string]bool{}
	for _, r := range Rows() {
		if names[r.Name] || r.run == nil || r.Title == "" || len(r.Measures) == 0 {
			t.Errorf("row %q", r.Name)
		}
		names[r.Name] = true
		keys := map[string]bool{}
		for _, m := range r.Measures {
			if keys[m.Key] || m.Title == "" {
				t.Errorf("%s: measure %q", r.Name, m.Key)
			}
			keys[m.Key] = true
			if m.Aim != 0 && (m.Aim < m.AtLeast) == m.HigherIsBetter {
				t.Errorf("%s: the aim of %q is easier than its target", r.Name, m.Key)
			}
		}
	}
}

// TestOwnProcess starts this program again for a job, with a profile.
func TestOwnProcess(t *testing.T) {
	path, want := smallTape(t)
	profile := filepath.Join(t.TempDir(), "cpu")
	r, err := Self("serve-one-job").spawnFor(t, Job{Row: rowOplist, Arm: ArmKVCluster, Tape: path, CPUProfile: profile})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.check(want); err != nil {
		t.Error(err)
	}
	if info, err := os.Stat(profile); err != nil || info.Size() == 0 {
		t.Errorf("profile: %v, %v", info, err)
	}
	_, err = Self("serve-one-job").spawnFor(t, Job{Row: rowOplist, Arm: "nothing", Tape: path})
	if err == nil || !strings.Contains(err.Error(), "unknown arm") {
		t.Errorf("error %v does not carry what the process said", err)
	}
}

func (s Spawner) spawnFor(t *testing.T, j Job) (Result, error) {
	t.Helper()
	return s.do(t.Context(), j)
}

func TestReplayDerivesTheKeepUpPoint(t *testing.T) {
	window := func(kept, offered, achieved float64) Result {
		return Result{Figures: map[string]float64{"kept": kept, "offered": offered, "achieved": achieved}}
	}
	got := deriveReplay(map[string]Result{"3000": window(1, 4e6, 4e6), "1500": window(1, 8e6, 8e6), "750": window(0, 16e6, 11e6)})
	if got["keepup.rate"] != 8e6 || got["overload.rate"] != 11e6 || got["1500.kept"] != 1 {
		t.Errorf("%v", got)
	}
	if got := deriveReplay(map[string]Result{"750": window(0, 16e6, 11e6)}); got["keepup.rate"] != 0 {
		t.Errorf("a window that was not kept up with counts: %v", got)
	}
}

func TestScheduleKeepsTheRules(t *testing.T) {
	l, tr := smallList(t)
	tape := NewTape(l, tr)
	const window = int64(50 * time.Millisecond)
	p := &replay{tape: tape, window: window}
	p.makeSchedule()
	if len(p.schedule) != tape.Len() {
		t.Fatalf("%d entries for %d ops", len(p.schedule), tape.Len())
	}
	last := map[uint32]int64{}
	lastOp := map[uint32]uint32{}
	for i, s := range p.schedule {
		if i > 0 {
			q := p.schedule[i-1]
			if s.deadline < q.deadline || s.deadline == q.deadline && s.query && !q.query {
				t.Fatalf("entry %d: %+v after %+v", i, s, q)
			}
		}
		w := p.worker(s)
		if !s.query {
			if at, ok := lastOp[w]; ok && s.op < at {
				t.Fatalf("worker %d: op %d after op %d", w, s.op, at)
			}
			lastOp[w] = s.op
		}
		last[w] = max(last[w], s.deadline)
	}
	for w, at := range last {
		if at != window {
			t.Errorf("worker %d ends at %d ns, want the end of the window", w, at)
		}
	}
}
