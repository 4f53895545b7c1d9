package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cmd/internal/bench"
)

type benchClusterCmd struct {
	Nodes    []int   `help:"Numbers of node processes to measure; the first is what the others are compared with." default:"1,2,4,8"`
	Replicas int     `help:"Owners of every partition." default:"1"`
	Repeat   int     `help:"Repetitions of each size, with fresh processes." default:"3" short:"n"`
	Blocks   int     `help:"Blocks that the mock engines store, about." default:"2000000"`
	Workers  int     `help:"Mock engines." default:"32" env:"-"`
	MaxRate  float64 `help:"Blocks stored and removed a second by all engines together: no more than the nodes keep up with." name:"max-block-rate" default:"3000000"`
	Trace    string  `help:"Trace of requests (Mooncake JSON lines); without it one with many system prompts is generated." type:"existingfile" short:"t"`
	NoParts  bool    `help:"Leave the profiled pass out that divides the CPU by part." name:"no-parts"`
	Profiles string  `help:"Write the profiles of that pass into this directory, NODES-nodes-NAME.pprof (go tool pprof)." name:"cpuprofile" type:"path" placeholder:"DIR"`
	JSON     bool    `help:"Print all runs as JSON." name:"json"`
}

// Help explains the figures.
func (benchClusterCmd) Help() string {
	return `Starts clusters of node processes on loopback, gives each the same work, and reads their
CPU clocks: CPU seconds for a million blocks (stored and removed) in total and by part,
bytes between nodes for each block, and how even the work is spread. A block that does
not arrive or an answer that differs is exit code 1. All requests with one first block
lie in one partition, so the trace must have many of them.

Examples:
  kvcluster bench cluster
  kvcluster bench cluster --nodes 1,4 --replicas 2 --repeat 5 --json
  kvcluster bench cluster --nodes 2 --blocks 100000 --repeat 1 --no-parts`
}

// Run measures and prints.
func (c *benchClusterCmd) Run(a *app) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find my own program: %w", err)
	}
	cfg := bench.ClusterConfig{
		Command: []string{self}, Nodes: c.Nodes, Replicas: c.Replicas, Repeat: c.Repeat, Blocks: c.Blocks,
		Workers: c.Workers, Rate: c.MaxRate, Trace: c.Trace, NoParts: c.NoParts, ProfileDir: c.Profiles,
	}
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if c.Profiles != "" {
		if err := os.MkdirAll(c.Profiles, 0o755); err != nil {
			return fmt.Errorf("%w: --cpuprofile: %w", errUsage, err)
		}
	}
	var stop func()
	cfg.Progress, stop = benchProgress(a.stderr)
	r, err := bench.MeasureCluster(a.ctx, cfg)
	stop()
	if errors.Is(err, bench.ErrJob) || errors.Is(err, trace.ErrRange) {
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
