package bench

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/kvcluster/kvcluster/chaos/oplist"
)

// OplistReport is what several passes of both arms over one list came to.
type OplistReport struct {
	Trace     string `json:"trace"`
	Generated bool   `json:"generated"` // no published answers apply
	D         int    `json:"d"`
	W         int    `json:"w"`
	Cap       int    `json:"cap"`
	Repeat    int    `json:"repeat"`
	Checksum  Hex    `json:"op_checksum"`
	OplistArm
	Baseline *OplistArm `json:"baseline,omitempty"`
	// Ratio is the median rate over that of the baseline; 0 without one.
	Ratio float64 `json:"ratio_to_baseline,omitempty"`
}

// OplistArm has the figures of one arm.
type OplistArm struct {
	Rows      uint64      `json:"rows"`
	DepthSum  uint64      `json:"depth_sum"`
	RowHash   Hex         `json:"row_hash"`
	Held      uint64      `json:"held"`
	Distinct  uint64      `json:"distinct"`
	BlockOps  int         `json:"block_ops"`
	CPU       Spread      `json:"cpu_seconds"`
	PerCPU    Spread      `json:"block_ops_per_cpu_second"`
	QueryNs   Percentiles `json:"query_ns"`             // medians
	BytesHeld Bytes       `json:"bytes_per_held_block"` // medians
	Runs      []Run       `json:"runs"`
}

// OplistConfig says what to measure.
type OplistConfig struct {
	List       oplist.Config
	Trace      string // file; empty = a trace is generated
	Requests   int    // of a generated trace; 0 = as many as the public one has
	Repeat     int    // processes for each arm
	NoBaseline bool
	CPUProfile string // file for a profile of the kvcluster arm, of passes that do not count
	Spawn      Spawner
	// Progress, if set, is told what is being done.
	Progress func(string)
}

func (c *OplistConfig) progress(format string, args ...any) {
	if c.Progress != nil {
		c.Progress(fmt.Sprintf(format, args...))
	}
}

// MeasureOplist runs both arms in turn, each in a fresh process, and checks every
// answer. Wrong answers are an error that wraps ErrWrongAnswers.
func MeasureOplist(ctx context.Context, c OplistConfig) (OplistReport, error) {
	r := OplistReport{Trace: c.Trace, D: c.List.Copies, W: c.List.Workers, Cap: c.List.Capacity, Repeat: c.Repeat}
	dir, err := os.MkdirTemp("", "kvcluster-bench-")
	if err != nil {
		return r, fmt.Errorf("benchmark: %w", err)
	}
	defer os.RemoveAll(dir)
	c.progress("building the op list")
	path := filepath.Join(dir, "oplist")
	requests := publicRequests
	if c.Trace != "" {
		requests = math.MaxInt
	} else if c.Requests > 0 {
		requests = c.Requests
	}
	want, err := writeTape(c.Trace, requests, c.List, path)
	if err != nil {
		return r, err
	}
	r.Generated, r.Checksum = c.Trace == "", Hex(want.Checksum)
	runs := map[string][]Run{}
	arms := []string{ArmKVCluster, ArmBaseline}
	if c.NoBaseline {
		arms = arms[:1]
	}
	for i := range c.Repeat {
		for j := range arms {
			name := arms[(i+j)%len(arms)]
			c.progress("op list %s: run %d of %d, %s", c.List, i+1, c.Repeat, name)
			job := Job{Row: rowOplist, Arm: name, Tape: path}
			res, err := c.Spawn.do(ctx, job)
			if err != nil {
				return r, err
			}
			if err := res.check(want); err != nil {
				return r, fmt.Errorf("op list %s: %w", c.List, err)
			}
			runs[name] = append(runs[name], *res.Run)
		}
	}
	if c.CPUProfile != "" {
		c.progress("op list %s: profile", c.List)
		if _, err := c.Spawn.do(ctx, Job{Row: rowOplist, Arm: ArmKVCluster, Tape: path, CPUProfile: c.CPUProfile}); err != nil {
			return r, err
		}
	}
	r.OplistArm = summarise(runs[ArmKVCluster])
	if !c.NoBaseline {
		b := summarise(runs[ArmBaseline])
		r.Baseline, r.Ratio = &b, r.PerCPU.Median/b.PerCPU.Median
	}
	return r, nil
}

// writeTape builds the list of a trace (of a generated one when the path is empty),
// writes it to path and returns its answers. In its own function so that the list is
// gone before anything is measured.
func writeTape(file string, requests int, cfg oplist.Config, path string) (want Answers, err error) {
	t, err := loadTrace(file, requests)
	if err != nil {
		return want, err
	}
	l, err := oplist.Build(t, cfg)
	if err != nil {
		return want, err
	}
	var known oplist.Known
	if filepath.Base(file) == oplist.Conversation && len(t.Requests) == publicRequests {
		known, _ = oplist.ConversationKnown(cfg)
	}
	if want, err = ExpectedAnswers(l, known); err != nil {
		return want, err
	}
	return want, NewTape(l, t).WriteFile(path)
}

// publicRequests is the length of the public conversation trace, and of a generated
// one in its place.
const publicRequests = 12031

func summarise(runs []Run) OplistArm {
	if len(runs) == 0 {
		return OplistArm{}
	}
	r := &runs[0]
	median := func(figure func(*Run) float64) float64 { return spreadOf(runs, figure).Median }
	return OplistArm{
		Rows: r.Rows, DepthSum: r.DepthSum, RowHash: r.RowHash, Held: r.Held, Distinct: r.Distinct, BlockOps: r.BlockOps,
		CPU:    spreadOf(runs, func(r *Run) float64 { return r.CPU }),
		PerCPU: spreadOf(runs, func(r *Run) float64 { return r.PerCPU }),
		QueryNs: Percentiles{
			P50: median(func(r *Run) float64 { return r.QueryNs.P50 }),
			P99: median(func(r *Run) float64 { return r.QueryNs.P99 }),
		},
		BytesHeld: Bytes{
			Live: median(func(r *Run) float64 { return r.BytesHeld.Live }),
			RSS:  median(func(r *Run) float64 { return r.BytesHeld.RSS }),
		},
		Runs: runs,
	}
}
