package trace

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

func read(t *testing.T, text string) *Trace {
	t.Helper()
	tr, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestReadTimesAndSessions(t *testing.T) {
	tr := read(t, `{"timestamp": 10, "input_length": 1000, "output_length": 5, "hash_ids": [0, 1], "other": {}}

{"delay": 2.5, "input_length": 512, "output_length": 0, "hash_ids": [0]}
{"timestamp": 100, "input_length": 513, "output_length": 1, "hash_ids": [0, 9], "session_id": "a"}
{"timestamp": 200, "input_length": 1, "output_length": 1, "hash_ids": [7], "session_id": 3}
{"delay": 50, "input_length": 1024, "output_length": 1, "hash_ids": [0, 9], "session_id": "a"}
{"delay": 1, "input_length": 1, "output_length": 1, "hash_ids": [8], "session_id": null}
`)
	ms := time.Millisecond
	want := []Request{
		{Time: 10 * ms, Session: 0, Input: 1000, Output: 5, IDs: []uint32{0, 1}},
		{Time: 12500 * time.Microsecond, Session: 1, Input: 512, IDs: []uint32{0}},
		{Time: 100 * ms, Session: 2, Input: 513, Output: 1, IDs: []uint32{0, 9}},
		{Time: 200 * ms, Session: 3, Input: 1, Output: 1, IDs: []uint32{7}},
		{Time: 150 * ms, Session: 2, Turn: 1, Input: 1024, Output: 1, IDs: []uint32{0, 9}},
		{Time: 151 * ms, Session: 4, Input: 1, Output: 1, IDs: []uint32{8}},
	}
	if d := cmp.Diff(want, tr.Requests); d != "" {
		t.Errorf("requests (-want +got):\n%s", d)
	}
}

func TestReadErrorsNameTheLine(t *testing.T) {
	good := `{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}` + "\n"
	for _, c := range []struct {
		name, line, part string
		is               error
	}{
		{"not json", `{"timestamp": `, "line 2", ErrFormat},
		{"no time", `{"input_length": 1, "hash_ids": [1]}`, "neither timestamp nor delay", ErrFormat},
		{"no length", `{"timestamp": 1, "hash_ids": [1]}`, "input_length", ErrFormat},
		{"large id", `{"timestamp": 1, "input_length": 1, "hash_ids": [4294967296]}`, "hash_ids[0] = 4294967296", ErrRange},
		{"negative id", `{"timestamp": 1, "input_length": 1, "hash_ids": [-1]}`, "line 2", ErrFormat},
		{"negative length", `{"timestamp": 1, "input_length": -4, "hash_ids": [1]}`, "input_length -4", ErrRange},
		{"half a token", `{"timestamp": 1, "input_length": 1.5, "hash_ids": [1]}`, "input_length 1.5", ErrFormat},
		{"negative time", `{"timestamp": -1, "input_length": 1, "hash_ids": [1]}`, "time -1 ms", ErrRange},
		{"huge time", `{"timestamp": 1e30, "input_length": 1, "hash_ids": [1]}`, "time 1e+30 ms", ErrRange},
		{"session object", `{"timestamp": 1, "input_length": 1, "hash_ids": [1], "session_id": {}}`, "session_id", ErrFormat},
	} {
		_, err := Read(strings.NewReader(good + c.line + "\n" + good))
		if !errors.Is(err, c.is) || !strings.Contains(err.Error(), "line 2") || !strings.Contains(err.Error(), c.part) {
			t.Errorf("%s: error %v, want %v with line 2 and %q", c.name, err, c.is, c.part)
		}
	}
	if _, err := Read(strings.NewReader("\n")); !errors.Is(err, ErrFormat) {
		t.Errorf("empty file: error %v, want ErrFormat", err)
	}
	if _, err := ReadFile(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: error %v", err)
	}
}

func TestScaleAndDuplicate(t *testing.T) {
	tr := read(t, `{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [0, 3]}
{"timestamp": 5, "input_length": 512, "output_length": 7, "hash_ids": [2]}
`)
	long, err := tr.Scale(2)
	if err != nil {
		t.Fatal(err)
	}
	wide, err := long.Duplicate(2)
	if err != nil {
		t.Fatal(err)
	}
	var ids [][]uint32
	for _, r := range wide.Requests {
		ids = append(ids, r.IDs)
	}
	if d := cmp.Diff([][]uint32{{0, 1, 6, 7}, {4, 5}, {8, 9, 14, 15}, {12, 13}}, ids); d != "" {
		t.Errorf("ids (-want +got):\n%s", d)
	}
	if r := wide.Requests[2]; r.Input != 1200 || r.Output != 7 || r.Time != 0 || r.Session != 2 {
		t.Errorf("first request of the copy: %+v", r)
	}
	if _, err := tr.Scale(0); !errors.Is(err, ErrRange) {
		t.Errorf("Scale(0): %v", err)
	}
	if _, err := tr.Scale(1 << 23); !errors.Is(err, ErrRange) {
		t.Errorf("Scale beyond 32-bit lengths: %v", err)
	}
	if _, err := tr.Duplicate(1 << 31); !errors.Is(err, ErrRange) {
		t.Errorf("Duplicate beyond 32-bit ids: %v", err)
	}
}

// The token rule has a published vector: id 7, block 128.
func TestTokens(t *testing.T) {
	tr := read(t, `{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [7, 3]}
{"timestamp": 0, "input_length": 2000, "output_length": 7, "hash_ids": [1]}
`)
	tokens := tr.AppendTokens([]uint32{99}, 0)
	if len(tokens) != 601 || tokens[0] != 99 || tokens[1] != 7 || tokens[512] != 7 || tokens[513] != 3 || tokens[600] != 3 {
		t.Errorf("tokens of request 0 are wrong: %d", len(tokens))
	}
	locals := blockhash.AppendTokens(nil, tokens[1:], 128, blockhash.Seed)
	if len(locals) != 4 || locals[0] != 16733376827091874706 || locals[3] != locals[0] {
		t.Errorf("local hashes %v", locals)
	}
	if n := len(tr.AppendTokens(nil, 1)); n != 512 || tr.PromptTokens(1) != n {
		t.Errorf("a prompt longer than its ids has %d tokens, want 512", n)
	}
}

func TestInferSessions(t *testing.T) {
	tr := read(t, `{"timestamp": 0, "input_length": 1500, "output_length": 1, "hash_ids": [0, 1, 2]}
{"timestamp": 1, "input_length": 1500, "output_length": 1, "hash_ids": [0, 3, 4]}
{"timestamp": 2, "input_length": 2500, "output_length": 1, "hash_ids": [0, 1, 5, 6]}
{"timestamp": 3, "input_length": 2500, "output_length": 1, "hash_ids": [0, 1, 5, 6, 7]}
{"timestamp": 3, "input_length": 25, "output_length": 1, "hash_ids": [0]}
`)
	var got [][2]uint32
	for _, r := range tr.InferSessions().Requests {
		got = append(got, [2]uint32{r.Session, r.Turn})
	}
	if d := cmp.Diff([][2]uint32{{0, 0}, {1, 0}, {0, 1}, {0, 2}, {2, 0}}, got); d != "" {
		t.Errorf("session and turn (-want +got):\n%s", d)
	}
}

func TestWriteReadsBack(t *testing.T) {
	tr, err := Generate(DefaultGenerate(300))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tr.Write(&b); err != nil {
		t.Fatal(err)
	}
	back, err := Read(&b)
	if err != nil {
		t.Fatal(err)
	}
	for i := range tr.Requests {
		if !reflect.DeepEqual(tr.Requests[i], back.Requests[i]) {
			t.Fatalf("request %d went into the file as %+v and came back as %+v", i, tr.Requests[i], back.Requests[i])
		}
	}
	if len(back.Requests) != len(tr.Requests) || back.TokensPerID != tr.TokensPerID {
		t.Errorf("%d requests came back of %d", len(back.Requests), len(tr.Requests))
	}
}

// The figures of the public files are known; they hold when the files are here.
func TestPublicTraces(t *testing.T) {
	for _, c := range []struct {
		file string
		want Summary
	}{
		{"conversation_trace.jsonl", Summary{Requests: 12031, IDs: 288500, Distinct: 182790, FirstIDs: 1, Longest: 247}},
		{"synthetic_trace.jsonl", Summary{Requests: 3993, IDs: 121877, Distinct: 43924, FirstIDs: 2211, Longest: 374}},
	} {
		path := filepath.Join("..", "..", "..", "shared", "traces", c.file)
		if _, err := os.Stat(path); err != nil {
			t.Logf("%s is not here: %v", c.file, err)
			continue
		}
		tr, err := ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		s := tr.Summarise()
		got := Summary{Requests: s.Requests, IDs: s.IDs, Distinct: s.Distinct, FirstIDs: s.FirstIDs, Longest: s.Longest}
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.file, got, c.want)
		}
	}
}

func TestAtRate(t *testing.T) {
	tr, err := Generate(DefaultGenerate(1000))
	if err != nil {
		t.Fatal(err)
	}
	fast, err := tr.AtRate(50)
	if err != nil {
		t.Fatal(err)
	}
	if fast.Span() != 20*time.Second {
		t.Errorf("1000 requests at 50/s last %s", fast.Span())
	}
	for i, r := range fast.Requests {
		want := float64(tr.Requests[i].Time) / float64(tr.Span())
		if got := float64(r.Time) / float64(fast.Span()); got < want-1e-6 || got > want+1e-6 {
			t.Fatalf("request %d comes at %.6f of the span, was at %.6f", i, got, want)
		}
	}
	once := read(t, strings.Repeat(`{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}`+"\n", 4))
	if even, err := once.AtRate(2); err != nil || even.Requests[3].Time != 1500*time.Millisecond {
		t.Errorf("at once becomes %v, %v", even.Requests[3].Time, err)
	}
	if _, err := tr.AtRate(0); !errors.Is(err, ErrRange) {
		t.Errorf("rate 0: %v", err)
	}
	if _, err := tr.AtRate(1e-12); !errors.Is(err, ErrRange) {
		t.Errorf("a rate of one request in 30,000 years: %v", err)
	}
}
