package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/chaos/trace"
)

// TestMain serves a job when a test starts this program again.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "serve-one-job" {
		if err := ServeJob(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// inProcess is a Spawner without a process.
func inProcess(ctx context.Context, j Job) ([]byte, error) {
	r, err := RunJob(ctx, j)
	if err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

// smallList has evictions, queries that hit other workers' blocks, and more than one
// word of workers.
func smallList(t testing.TB) (*oplist.List, *trace.Trace) {
	t.Helper()
	tr, err := trace.Generate(trace.DefaultGenerate(300))
	if err != nil {
		t.Fatal(err)
	}
	l, err := oplist.Build(tr, oplist.Config{Copies: 2, Workers: 70, Capacity: 300})
	if err != nil {
		t.Fatal(err)
	}
	if n := l.Totals().RemovedBlocks; n < 1000 {
		t.Fatalf("the list removes %d blocks only", n)
	}
	return l, tr
}

func smallTape(t testing.TB) (string, Answers) {
	t.Helper()
	l, tr := smallList(t)
	want, err := ExpectedAnswers(l, oplist.Known{})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "tape")
	if err := NewTape(l, tr).WriteFile(path); err != nil {
		t.Fatal(err)
	}
	return path, want
}
