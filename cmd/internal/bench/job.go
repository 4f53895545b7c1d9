package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Job is one repetition of one row, for a process of its own.
type Job struct {
	Row   string `json:"row"`
	Arm   string `json:"arm,omitempty"`   // of the row's arms
	Tape  string `json:"tape,omitempty"`  // file of the op list
	Trace string `json:"trace,omitempty"` // file of requests; empty = generated
	Quick bool   `json:"quick,omitempty"` // the short form
	// CPUProfile is where the process writes a profile of what it measures.
	CPUProfile string `json:"cpu_profile,omitempty"`
}

// ErrJob: the job names something that does not exist.
var ErrJob = errors.New("unknown benchmark")

// RunJob does a job in this process.
func RunJob(ctx context.Context, j Job) (Result, error) {
	row, err := findRow(j.Row)
	if err != nil {
		return Result{}, err
	}
	b := newBencher(ctx, j)
	if err := row.run(b); err != nil {
		return Result{}, fmt.Errorf("%s: %w", row.Name, err)
	}
	return b.result, nil
}

// Spawner does a job in a process of its own and returns the JSON of its result.
type Spawner func(ctx context.Context, j Job) ([]byte, error)

// Self returns a Spawner that starts this program again with args; the program must
// then call ServeJob.
func Self(args ...string) Spawner {
	return func(ctx context.Context, j Job) ([]byte, error) {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		in, err := json.Marshal(j)
		if err != nil {
			return nil, err
		}
		cmd := exec.CommandContext(ctx, exe, args...)
		var out, errs bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(in), &out, &errs
		if err := cmd.Run(); err != nil {
			return nil, fmt.Errorf("%s %s: %w: %s", j.Row, j.Arm, err, strings.TrimSpace(errs.String()))
		}
		return out.Bytes(), nil
	}
}

// ServeJob reads a job, does it and writes its result.
func ServeJob(ctx context.Context, r io.Reader, w io.Writer) error {
	var j Job
	if err := json.NewDecoder(r).Decode(&j); err != nil {
		return fmt.Errorf("read benchmark job: %w", err)
	}
	res, err := RunJob(ctx, j)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(w).Encode(res); err != nil {
		return fmt.Errorf("write result of %s: %w", j.Row, err)
	}
	return nil
}

// do does a job elsewhere and decodes its result.
func (s Spawner) do(ctx context.Context, j Job) (Result, error) {
	var r Result
	raw, err := s(ctx, j)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("%s %s: result %q: %w", j.Row, j.Arm, raw, err)
	}
	return r, nil
}
