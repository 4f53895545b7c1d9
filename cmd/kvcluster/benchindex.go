package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cmd/internal/bench"
)

type benchIndexCmd struct {
	Only       []string `help:"Rows to measure: oplist, lane, contention, holes, decode, page, big, stalled, shallow, wide, lanes, replay; all unless given." placeholder:"ROW"`
	Trace      string   `help:"Trace of requests (Mooncake JSON lines)." type:"existingfile" short:"t" xor:"trace"`
	Traces     string   `help:"Directory with the public traces; where conversation_trace.jsonl is not in it, a trace is generated." type:"path" xor:"trace" placeholder:"DIR"`
	Repeat     int      `help:"Repetitions of each row, each a process of its own; long rows take fewer (5 unless --quick)." short:"n"`
	Quick      bool     `help:"Short form: small inputs, one repetition. It shows that everything works, not how fast it is."`
	Out        string   `help:"Write index.json and index.svg into this directory." type:"path" short:"o" placeholder:"DIR"`
	CPUProfile string   `help:"Write ROW.pprof into this directory, of one more repetition of every row." name:"cpuprofile" type:"path" placeholder:"DIR"`
	JSON       bool     `help:"Print JSON instead of the table." name:"json"`
	Strict     bool     `help:"Exit code 1 if a target is missed."`
}

// Help explains the rows and what can be done with the figures.
func (benchIndexCmd) Help() string {
	return `Every row names its inputs, its unit and its target, and shows the median and the
lowest and highest repetition. Answers are checked; a wrong one is exit code 1.

Examples:
  kvcluster bench index --traces ../shared/traces --out bench-out
  kvcluster bench index --only decode --only holes -n 9
  kvcluster bench index --quick
  kvcluster bench index --only lane --repeat 1 --cpuprofile profiles && go tool pprof -top profiles/lane.pprof`
}

// Run measures, prints and writes.
func (c *benchIndexCmd) Run(a *app) error {
	if c.Repeat < 0 {
		return fmt.Errorf("%w: --repeat %d, want at least 1", errUsage, c.Repeat)
	}
	if c.Repeat == 0 {
		c.Repeat = 5
		if c.Quick {
			c.Repeat = 1
		}
	}
	file := c.Trace
	if c.Traces != "" {
		if p := filepath.Join(c.Traces, oplist.Conversation); exists(p) {
			file = p
		}
	}
	if file == "" {
		fmt.Fprintln(a.stderr, "no trace given or found: it is generated, and figures are not those of the published list")
	}
	if c.Out != "" {
		if err := os.MkdirAll(c.Out, 0o755); err != nil {
			return fmt.Errorf("%w: --out: %w", errUsage, err)
		}
	}
	now, stop := benchProgress(a.stderr)
	r, err := bench.MeasureIndex(a.ctx, bench.IndexConfig{
		Only: c.Only, Trace: file, Repeat: c.Repeat, Quick: c.Quick, ProfileDir: c.CPUProfile,
		Spawn: bench.Self("bench", "child"), Progress: now,
	})
	stop()
	if errors.Is(err, bench.ErrJob) || errors.Is(err, trace.ErrRange) {
		return fmt.Errorf("%w: %w", errUsage, err)
	}
	if err != nil {
		return err
	}
	if c.Out != "" {
		if err := c.write(a, r); err != nil {
			return err
		}
	}
	if c.JSON {
		err = writeJSON(a.stdout, r)
	} else {
		err = r.Print(a.stdout)
	}
	if n := r.Missed(); err == nil && c.Strict && n > 0 {
		return fmt.Errorf("%d targets missed", n)
	}
	return err
}

// write puts the report and the chart into --out.
func (c *benchIndexCmd) write(a *app, r *bench.Report) error {
	for _, f := range []struct {
		name  string
		write func(io.Writer) error
	}{
		{"index.json", func(w io.Writer) error { return writeJSON(w, r) }},
		{"index.svg", r.WriteSVG},
	} {
		path := filepath.Join(c.Out, f.name)
		w, err := os.Create(path)
		if err != nil {
			return fmt.Errorf("write report: %w", err)
		}
		if err := errors.Join(f.write(w), w.Close()); err != nil {
			return fmt.Errorf("write report %s: %w", path, err)
		}
		fmt.Fprintln(a.stderr, "wrote", path)
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
