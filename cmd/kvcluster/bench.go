package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cmd/internal/bench"
)

type benchCmd struct {
	Oplist  benchOplistCmd  `cmd:"" help:"The common op list: rate, query latency and memory, beside a plain index of Go maps."`
	Index   benchIndexCmd   `cmd:"" help:"All measures of the index with their targets: op list, lane, open-loop replay, shapes that could collapse."`
	Cluster benchClusterCmd `cmd:"" help:"Clusters of 1, 2, 4 and 8 node processes on the same work: CPU by part, bytes on the wire, balance."`
	Child   benchChildCmd   `cmd:"" hidden:"" help:"One repetition, described on standard input."`
}

type benchOplistCmd struct {
	Trace      string `help:"Trace of requests (Mooncake JSON lines); without it one of the public shape is generated." type:"existingfile" short:"t"`
	D          int    `help:"Disjoint copies of the trace." default:"4"`
	W          int    `help:"Workers." default:"128"`
	Cap        int    `help:"Blocks in the cache of one worker." default:"8192"`
	Repeat     int    `help:"Repetitions, each a process of its own." default:"5" short:"n"`
	NoBaseline bool   `help:"Leave the baseline arm out." name:"no-baseline"`
	CPUProfile string `help:"Write a CPU profile of further passes, which do not count (go tool pprof)." name:"cpuprofile" type:"path" placeholder:"FILE"`
	JSON       bool   `help:"Print all runs as JSON." name:"json"`
}

// Help explains what the figures are.
func (benchOplistCmd) Help() string {
	return `Every answer is checked; a wrong one is exit code 1. Rates are block operations
(hashes queried, stored, removed) a CPU second of the process.

Examples:
  kvcluster bench oplist --trace conversation_trace.jsonl
  kvcluster bench oplist --trace conversation_trace.jsonl --d 1 --w 16 --cap 2048 --repeat 9 --json
  kvcluster bench oplist --repeat 1 --no-baseline --cpuprofile cpu.out`
}

// Run measures and prints.
func (c *benchOplistCmd) Run(a *app) error {
	if c.Repeat < 1 {
		return fmt.Errorf("%w: --repeat %d, want at least 1", errUsage, c.Repeat)
	}
	cfg := oplist.Config{Copies: c.D, Workers: c.W, Capacity: c.Cap}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if c.Trace == "" {
		fmt.Fprintln(a.stderr, "no --trace given: the list is generated, and is not the published one")
	}
	now, stop := benchProgress(a.stderr)
	defer stop()
	r, err := bench.MeasureOplist(a.ctx, bench.OplistConfig{
		List: cfg, Trace: c.Trace, Repeat: c.Repeat, NoBaseline: c.NoBaseline, CPUProfile: c.CPUProfile,
		Spawn: bench.Self("bench", "child"), Progress: now,
	})
	if errors.Is(err, trace.ErrRange) {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if err != nil {
		return err
	}
	if c.JSON {
		return writeJSON(a.stdout, r)
	}
	return r.Print(a.stdout)
}

type benchChildCmd struct{}

// Run serves one job.
func (benchChildCmd) Run(a *app) error { return bench.ServeJob(a.ctx, os.Stdin, a.stdout) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// benchProgress writes every two seconds what is being measured.
func benchProgress(w io.Writer) (now func(string), stop func()) {
	var doing atomic.Pointer[string]
	doing.Store(new(string))
	return func(s string) { doing.Store(&s) }, progress(w, func() string { return *doing.Load() })
}
