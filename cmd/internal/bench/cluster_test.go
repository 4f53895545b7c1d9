package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestClusterInItsShortForm measures two real node processes on little work, and again
// with a profile: every block and batch arrived and the answers agreed, or there were no
// report. What remains to be seen is that the figures fit together.
func TestClusterInItsShortForm(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "kvcluster")
	if msg, err := exec.Command("go", "build", "-o", bin, "../../kvcluster").CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, msg)
	}
	r, err := MeasureCluster(t.Context(), ClusterConfig{Command: []string{bin}, Nodes: []int{2}, Repeat: 1, Blocks: 60_000, Workers: 8, Rate: 200_000, Settle: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if r.Stored < 50_000 || r.Held == 0 || r.Held != r.Stored-r.Removed || r.Batches == 0 || r.Queries == 0 || r.Answers == 0 || r.FirstIDs < 20 {
		t.Errorf("work: %+v", r)
	}
	if len(r.Sizes) != 1 {
		t.Fatalf("%d sizes", len(r.Sizes))
	}
	for _, s := range r.Sizes {
		f := func(key string) float64 { return s.Figures[key].Median }
		if !(f(FigureWrite) > 0 && f(FigureQuery) > 0 && f(FigureSeconds) > 0 && f(FigureIO) > 0 && f(FigureIO) < f(FigureWrite)) {
			t.Errorf("%d nodes: %v", s.Nodes, s.Figures)
		}
		queries := f(FigureQuery) * float64(r.Queries) / float64(r.Stored+r.Removed)
		if math.Abs(f(FigureTotal)-f(FigureWrite)-queries) > 0.01*f(FigureTotal) {
			t.Errorf("%d nodes: %g s in all, %g of writes and %g of queries", s.Nodes, f(FigureTotal), f(FigureWrite), queries)
		}
		if sum := s.partsSum(); s.Samples > 0 && math.Abs(sum-f(FigureTotal)) > 1e-6 {
			t.Errorf("%d nodes: the parts come to %g s of %g: %v", s.Nodes, sum, f(FigureTotal), s.Parts)
		}
		if most := f(FigureHeldMost); most < 1 || most > float64(s.Nodes) {
			t.Errorf("%d nodes: balance %g", s.Nodes, most)
		}
	}
	two := r.Sizes[0].Figures
	// Each node reads about half of the engines and owns about half of the partitions.
	if x := two[FigureForwarded].Median; x < 0.1 || x > 0.9 {
		t.Errorf("%g of the stored blocks went to the other node, want about a half", x)
	}
	// A stored block is two hashes on the wire; the rest are headers and removals.
	if x := two[FigureFrame].Median; x < 16 || x > 64 || two[FigureLink].Median < x {
		t.Errorf("%g bytes of frames and %g of links for a stored block", x, two[FigureLink].Median)
	}
	checkClusterOutput(t, r)
}

func checkClusterOutput(t *testing.T, r *ClusterReport) {
	t.Helper()
	var out strings.Builder
	if err := r.Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range append([]string{"first ids", "balance", "translate", "bytes of frames", r.Host.CPU}, PartNames()...) {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table does not say %q:\n%s", want, out.String())
		}
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back ClusterReport
	if err := json.Unmarshal(raw, &back); err != nil || back.Sizes[0].Figures[FigureTotal].Median != r.Sizes[0].Figures[FigureTotal].Median {
		t.Errorf("JSON does not come back: %v", err)
	}
}

func TestClusterRunsMustAgree(t *testing.T) {
	var r ClusterReport
	first := clusterRun{batches: 3, stored: 10, removed: 4, held: 6, answers: 77}
	if err := r.agree(&first); err != nil {
		t.Fatal(err)
	}
	same := first
	same.batches++ // engines may cut batches differently
	if err := r.agree(&same); err != nil {
		t.Error(err)
	}
	other := first
	other.answers++
	if err := r.agree(&other); !errors.Is(err, ErrWrongAnswers) {
		t.Errorf("other answers: %v", err)
	}
	less := first
	less.held--
	if err := r.agree(&less); !errors.Is(err, ErrCluster) {
		t.Errorf("a block less: %v", err)
	}
}

func TestClusterRefusesWhatCannotBeMeasured(t *testing.T) {
	for _, c := range []ClusterConfig{{Nodes: []int{0}}, {Nodes: []int{65}}, {Replicas: 8}, {Repeat: -1}, {Blocks: -1}, {Workers: -1}, {Rate: -1}} {
		if _, err := MeasureCluster(t.Context(), c); !errors.Is(err, ErrJob) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestPartsOfStacks(t *testing.T) {
	m := modulePath
	for _, c := range []struct {
		stack []string // innermost first
		want  string
	}{
		{[]string{"runtime.memmove", m + "cluster/fanout.(*slot).write", m + "cluster/ingest/translate.(*Translator).End", m + "cluster/ingest.(*loop).run"}, partForward},
		{[]string{m + "cluster/ingest/translate.(*Translator).Store", m + "cluster/ingest.(*loop).run"}, partTranslate},
		{[]string{m + "transport/engine.Decode", m + "cluster/ingest.(*loop).run"}, partDecode},
		{[]string{"runtime.cgocall", "github.com/pebbe/zmq4.(*Socket).x", m + "transport/zmq.(*socket).receive", m + "cluster/ingest.(*loop).run"}, partReceive},
		{[]string{"runtime.cgocall", m + "transport/zmq.(*loop).Run", m + "transport/zmq.(*Network).NewMesh.func2"}, partForward},
		{[]string{m + "indexer/tree.(*Lane).Apply", m + "cluster/owner.(*worker).run"}, partApply},
		{[]string{m + "indexer/tree.(*Reader).Match", m + "cluster/search.(*Search).serve", m + "transport/link.(*Hub).serve"}, partQuery},
		{[]string{"syscall.write", "net/http.(*conn).serve"}, partQuery},
		{[]string{"github.com/hashicorp/raft.(*Raft).run"}, partControl},
		{[]string{"runtime.findRunnable", "runtime.mcall"}, partRuntime},
		{[]string{"runtime._ExternalCode"}, ""},
		{[]string{"compress/flate.x", "runtime/pprof.(*profileBuilder).build", "net/http.(*conn).serve"}, ""},
	} {
		if got := partOf(c.stack); got != c.want {
			t.Errorf("%v is for %q, want %q", c.stack, got, c.want)
		}
	}
}

// TestCountParts reads a profile of this process, which is busy in this package.
func TestCountParts(t *testing.T) {
	for limit := time.Now().Add(20 * time.Second); ; {
		var raw bytes.Buffer
		if err := pprof.StartCPUProfile(&raw); err != nil {
			t.Fatal(err)
		}
		for end := processCPU() + 100*time.Millisecond; processCPU() < end && time.Now().Before(limit); {
		}
		pprof.StopCPUProfile()
		got, err := countParts(raw.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		// This package is none of the parts of a node, so it is control with the rest.
		if got[partControl] > 2 {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("samples %v, want some of this package", got)
		}
	}
	for cut := range 40 {
		if _, err := parseProfile(slices.Repeat([]byte{0x12, 0xff, 0x01, 0x08}, cut+1)[:cut+1]); err == nil {
			t.Errorf("%d bytes of nonsense are a profile", cut+1)
		}
	}
	if _, err := countParts([]byte("no gzip")); err == nil {
		t.Error("text is a profile")
	}
}

func TestMostOverMean(t *testing.T) {
	for _, c := range []struct {
		v    []float64
		want float64
	}{{[]float64{2, 2, 2}, 1}, {[]float64{4, 0}, 2}, {[]float64{0, 0}, 0}, {nil, 0}, {[]float64{3, 1, 2}, 1.5}} {
		if got := mostOverMean(c.v); got != c.want {
			t.Errorf("%v: %g, want %g", c.v, got, c.want)
		}
	}
}
