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
	"runtime/pprof"
	"strings"
)

// Job is one repetition of one measurement, for a process of its own.
type Job struct {
	Row  string `json:"row"`            // which measurement
	Arm  string `json:"arm,omitempty"`  // of which index
	Tape string `json:"tape,omitempty"` // file of the op list
	// CPUProfile is where the process writes a profile of what it measures.
	CPUProfile string `json:"cpu_profile,omitempty"`
}

// ErrJob: the job names something that does not exist.
var ErrJob = errors.New("unknown benchmark job")

// RunJob does a job in this process and returns its result as JSON.
func RunJob(ctx context.Context, j Job) (raw []byte, err error) {
	if j.CPUProfile != "" {
		f, err := os.Create(j.CPUProfile)
		if err != nil {
			return nil, fmt.Errorf("cpu profile: %w", err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return nil, fmt.Errorf("cpu profile: %w", err)
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, f.Close())
		}()
	}
	var result any
	switch j.Row {
	case rowOplist:
		tape, err := OpenTape(j.Tape)
		if err != nil {
			return nil, err
		}
		result, err = RunOplist(ctx, tape, j.Arm)
		if err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("%w: row %q", ErrJob, j.Row)
	}
	return json.Marshal(result)
}

const rowOplist = "oplist"

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
	raw, err := RunJob(ctx, j)
	if err != nil {
		return err
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

// spawn does a job elsewhere and decodes its result.
func spawn[T any](ctx context.Context, s Spawner, j Job) (T, error) {
	var v T
	raw, err := s(ctx, j)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("%s %s: result %q: %w", j.Row, j.Arm, raw, err)
	}
	return v, nil
}
