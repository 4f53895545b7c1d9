package bench

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/oplist"
)

func TestBothArmsAreExact(t *testing.T) {
	path, want := smallTape(t)
	if want.Rows == 0 || want.Held == 0 {
		t.Fatalf("nothing to answer: %+v", want)
	}
	for _, arm := range []string{ArmKVCluster, ArmBaseline} {
		r, err := RunJob(context.Background(), Job{Row: rowOplist, Arm: arm, Tape: path})
		if err != nil {
			t.Fatalf("%s: %v", arm, err)
		}
		if err := r.check(want); err != nil {
			t.Error(err)
		}
		if run := r.Run; run.CPU <= 0 || run.QueryNs.P50 <= 0 || run.QueryNs.P99 < run.QueryNs.P50 || run.BytesHeld.Live <= 8 {
			t.Errorf("%s: implausible figures %+v", arm, run)
		}
	}
}

func TestWrongAnswersAreSeen(t *testing.T) {
	path, want := smallTape(t)
	r, err := RunJob(context.Background(), Job{Row: rowOplist, Arm: ArmBaseline, Tape: path})
	if err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Run){
		"rows":     func(r *Run) { r.Rows++ },
		"depth":    func(r *Run) { r.DepthSum-- },
		"hash":     func(r *Run) { r.RowHash ^= 1 },
		"held":     func(r *Run) { r.Held++ },
		"distinct": func(r *Run) { r.Distinct-- },
	} {
		bad := *r.Run
		spoil(&bad)
		if err := bad.Check(want); !errors.Is(err, ErrWrongAnswers) {
			t.Errorf("%s: error %v", name, err)
		}
	}
	l, _ := smallList(t)
	known := oplist.Known{Answers: want.Answers}
	known.Answers.Hash++
	if _, err := ExpectedAnswers(l, known); !errors.Is(err, ErrWrongAnswers) {
		t.Errorf("published answers differ: error %v", err)
	}
	known = oplist.Known{Answers: want.Answers, Totals: l.Totals(), Complete: true}
	if _, err := ExpectedAnswers(l, known); err != nil {
		t.Errorf("published answers agree: error %v", err)
	}
	known.Totals.Checksum++
	if _, err := ExpectedAnswers(l, known); !errors.Is(err, ErrWrongAnswers) {
		t.Errorf("published checksum differs: error %v", err)
	}
}

// TestOplistReportSchema pins the names and the kinds of the fields that others read.
func TestOplistReportSchema(t *testing.T) {
	r, err := MeasureOplist(context.Background(), OplistConfig{
		List: oplist.Config{Copies: 2, Workers: 16, Capacity: 300}, Requests: 200, Repeat: 2, Spawn: inProcess,
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	check := func(where string, m map[string]any) {
		for _, k := range []string{"rows", "depth_sum", "held", "distinct", "block_ops"} {
			if v, ok := m[k].(float64); !ok || v <= 0 {
				t.Errorf("%s%s = %v", where, k, m[k])
			}
		}
		for _, k := range []string{"cpu_seconds", "block_ops_per_cpu_second"} {
			s, ok := m[k].(map[string]any)
			if !ok || s["median"].(float64) <= 0 || len(s["runs"].([]any)) != 2 || s["min"].(float64) > s["max"].(float64) {
				t.Errorf("%s%s = %v", where, k, m[k])
			}
		}
		if v, ok := m["row_hash"].(string); !ok || len(v) != 18 || !strings.HasPrefix(v, "0x") {
			t.Errorf("%srow_hash = %v", where, m["row_hash"])
		}
		for k, fields := range map[string][]string{"query_ns": {"p50", "p99"}, "bytes_per_held_block": {"live", "rss"}} {
			for _, f := range fields {
				if _, ok := m[k].(map[string]any)[f].(float64); !ok {
					t.Errorf("%s%s.%s = %v", where, k, f, m[k])
				}
			}
		}
		if runs, ok := m["runs"].([]any); !ok || len(runs) != 2 {
			t.Errorf("%sruns = %v", where, m["runs"])
		}
	}
	check("", got)
	check("baseline.", got["baseline"].(map[string]any))
	if v, ok := got["op_checksum"].(string); !ok || len(v) != 18 {
		t.Errorf("op_checksum = %v", got["op_checksum"])
	}
	if v, ok := got["ratio_to_baseline"].(float64); !ok || v <= 0 {
		t.Errorf("ratio_to_baseline = %v", got["ratio_to_baseline"])
	}
	if got["generated"] != true || got["d"] != 2.0 || got["w"] != 16.0 || got["cap"] != 300.0 || got["repeat"] != 2.0 {
		t.Errorf("inputs: %v", got)
	}
	var out strings.Builder
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "generated trace") || !strings.Contains(out.String(), "ratio") {
		t.Errorf("printed %q, error %v", out.String(), err)
	}
}

func TestWrongAnswerEndsTheMeasurement(t *testing.T) {
	lying := func(ctx context.Context, j Job) ([]byte, error) {
		r, err := RunJob(ctx, j)
		if err != nil {
			return nil, err
		}
		if j.Arm == ArmKVCluster {
			r.Run.DepthSum++
		}
		return json.Marshal(r)
	}
	_, err := MeasureOplist(context.Background(), OplistConfig{
		List: oplist.Config{Copies: 1, Workers: 4, Capacity: 300}, Requests: 50, Repeat: 1, Spawn: lying,
	})
	if !errors.Is(err, ErrWrongAnswers) {
		t.Errorf("error %v, want ErrWrongAnswers", err)
	}
}

func TestTapeIsTheList(t *testing.T) {
	l, tr := smallList(t)
	path := filepath.Join(t.TempDir(), "tape")
	if err := NewTape(l, tr).WriteFile(path); err != nil {
		t.Fatal(err)
	}
	tape, err := OpenTape(path)
	if err != nil {
		t.Fatal(err)
	}
	if tape.Len() != l.Len() || tape.BlockOps() != l.Totals().BlockOps() || tape.Workers() != 70 || tape.Queries() != l.Totals().Queries {
		t.Fatalf("%d ops, %d block ops, %d workers, %d queries", tape.Len(), tape.BlockOps(), tape.Workers(), tape.Queries())
	}
	var got, want oplist.Op
	for i := range l.Len() {
		tape.At(i, &got)
		l.At(i, &want)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("op %d: %+v, want %+v", i, got, want)
		}
		if at := tape.times[got.Request]; at != uint64(tr.Requests[got.Request/2].Time) {
			t.Fatalf("request %d comes at %d", got.Request, at)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{
		"empty": {}, "odd": raw[:len(raw)-1], "short": raw[:len(raw)-8], "no tape": make([]byte, 4096), "long": append(raw[:len(raw):len(raw)], make([]byte, 8)...),
	} {
		if err := os.WriteFile(path, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenTape(path); !errors.Is(err, ErrTape) {
			t.Errorf("%s: error %v, want ErrTape", name, err)
		}
	}
}

func TestBaselineKnowsItsOwnMind(t *testing.T) {
	b := newBaseline(3)
	b.store(0, false, 0, []uint64{10, 11, 12}, []uint64{1, 2, 3})
	b.store(2, false, 0, []uint64{10, 11}, []uint64{1, 2})
	b.store(1, true, 99, []uint64{10}, []uint64{7}) // unknown parent: nothing
	rows := func(locals ...uint64) map[uint32]uint32 {
		out := map[uint32]uint32{}
		for _, r := range b.query(locals) {
			out[uint32(r.Slot)] = r.Depth
		}
		return out
	}
	expect := func(got, want map[uint32]uint32) {
		t.Helper()
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%v, want %v", got, want)
		}
	}
	expect(rows(10, 11, 12), map[uint32]uint32{0: 3, 2: 2})
	expect(rows(11), map[uint32]uint32{})
	b.remove(0, []uint64{2, 50}) // a hole: the held score ends there
	expect(rows(10, 11, 12), map[uint32]uint32{0: 1, 2: 2})
	b.store(0, true, 1, []uint64{11}, []uint64{2}) // and closes again
	expect(rows(10, 11, 12), map[uint32]uint32{0: 3, 2: 2})
	b.remove(0, []uint64{3, 2, 1})
	b.remove(2, []uint64{1, 2})
	if held, distinct := b.counts(); held != 0 || distinct != 0 {
		t.Errorf("%d held, %d distinct at the end", held, distinct)
	}
}
