package bench

import (
	"errors"
	"fmt"
	"maps"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
)

const rowOplist = "oplist"

// ErrWrongAnswers: the index under test does not answer as it must. No figure of such
// a run means anything.
var ErrWrongAnswers = errors.New("wrong answers")

// arm is one index under test. One goroutine uses it.
type arm interface {
	query(locals []uint64) []indexer.Row
	store(worker uint32, hasParent bool, parent uint64, locals, keys []uint64)
	remove(worker uint32, keys []uint64)
	counts() (held, distinct uint64)
	mappedBytes() uint64 // in use outside the Go heap
	parts() map[string]uint64
	// rest does what a node does in a quiet moment; it is part of the CPU time.
	rest()
	close() error
}

// Run is the outcome of one pass over an op list in one process.
type Run struct {
	Arm       string      `json:"arm"`
	Rows      uint64      `json:"rows"`
	DepthSum  uint64      `json:"depth_sum"`
	RowHash   Hex         `json:"row_hash"`
	Held      uint64      `json:"held"`
	Distinct  uint64      `json:"distinct"`
	BlockOps  int         `json:"block_ops"`
	CPU       float64     `json:"cpu_seconds"`
	PerCPU    float64     `json:"block_ops_per_cpu_second"`
	QueryNs   Percentiles `json:"query_ns"`
	BytesHeld Bytes       `json:"bytes_per_held_block"`
	// Parts says where the memory is, in bytes for each held block: in use by purpose,
	// and what is reserved, that is taken from the system.
	Parts map[string]float64 `json:"bytes_by_part,omitempty"`
}

// Percentiles of a latency, in nanoseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Bytes for each held block. Live is what the parts use, RSS the growth of the
// resident set, both with the list itself left out.
type Bytes struct {
	Live float64 `json:"live"`
	RSS  float64 `json:"rss"`
}

// Arms of the op list row.
const (
	ArmKVCluster = "kvcluster"
	ArmBaseline  = "baseline"
)

// newArm returns an empty index of one of the two kinds.
func newArm(name string, workers int) (arm, error) {
	switch name {
	case ArmKVCluster:
		return newIndexArm(workers)
	case ArmBaseline:
		return newBaseline(workers), nil
	}
	return nil, fmt.Errorf("unknown arm %q: %s or %s", name, ArmKVCluster, ArmBaseline)
}

// profilePasses is how often a list is passed over for a profile: one pass has a few
// dozen samples.
const profilePasses = 8

// runOplist passes once over the list of the job's tape. Run.Check tells whether the
// answers are right.
func runOplist(b *bencher) error {
	tape, err := OpenTape(b.job.Tape)
	if err != nil {
		return err
	}
	passes := 1
	if b.job.CPUProfile != "" {
		passes = profilePasses
	}
	var r Run
	err = b.profiled(func() error {
		for range passes {
			if r, err = passOplist(b, tape); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	b.result.Run = &r
	b.inputs("%d ops, %d block ops, %d workers", tape.Len(), tape.BlockOps(), tape.Workers())
	b.set("rate", r.PerCPU)
	b.set("query.p50", r.QueryNs.P50)
	b.set("query.p99", r.QueryNs.P99)
	b.set("live", r.BytesHeld.Live)
	b.set("rss", r.BytesHeld.RSS)
	return nil
}

func passOplist(b *bencher, tape *Tape) (Run, error) {
	samples := make([]uint32, 0, tape.Queries())
	before, err := takeMemory()
	if err != nil {
		return Run{}, err
	}
	a, err := newArm(b.job.Arm, tape.Workers())
	if err != nil {
		return Run{}, err
	}
	var ans oplist.Answers
	cpu := processCPU()
	var op oplist.Op
	for i := range tape.Len() {
		tape.At(i, &op)
		switch op.Kind {
		case oplist.Query:
			t := ticks()
			rows := a.query(op.Contents)
			samples = append(samples, since(t))
			for _, r := range rows {
				ans.Add(op.Request, uint32(r.Slot), r.Depth)
			}
		case oplist.Stored:
			a.store(op.Worker, op.HasParent, op.Parent, op.Contents, op.Keys)
		case oplist.Removed:
			a.remove(op.Worker, op.Keys)
		}
		if i&4095 == 0 && b.ctx.Err() != nil {
			return Run{}, b.ctx.Err()
		}
	}
	a.rest()
	seconds := (processCPU() - cpu).Seconds()
	after, err := takeMemory()
	if err != nil {
		return Run{}, err
	}
	held, distinct := a.counts()
	p := b.clock.percentiles(samples, 50, 99)
	r := Run{
		Arm: b.job.Arm, Rows: ans.Rows, DepthSum: ans.DepthSum, RowHash: Hex(ans.Hash), Held: held, Distinct: distinct,
		BlockOps: tape.BlockOps(), CPU: seconds, PerCPU: float64(tape.BlockOps()) / seconds,
		QueryNs: Percentiles{p[0], p[1]},
		BytesHeld: Bytes{
			Live: float64(int64(a.mappedBytes())+after.heap-before.heap) / float64(held),
			RSS:  float64(after.resident-before.resident) / float64(held),
		},
	}
	for name, n := range a.parts() {
		if r.Parts == nil {
			r.Parts = map[string]float64{}
		}
		r.Parts[name] = float64(n) / float64(held)
	}
	if err := a.close(); err != nil {
		return r, fmt.Errorf("%s: %w", b.job.Arm, err)
	}
	return r, nil
}

// Answers are what a list must come to.
type Answers struct {
	oplist.Answers
	Held, Distinct int
	Checksum       uint64
}

// ExpectedAnswers computes the answers of a list by a plain model and, when known has
// the published ones of this list, compares them.
func ExpectedAnswers(l *oplist.List, known oplist.Known) (Answers, error) {
	t := l.Totals()
	a := Answers{l.Expected(), t.Held, t.Distinct, t.Checksum}
	if k := known.Answers; k != (oplist.Answers{}) && k != a.Answers {
		return a, fmt.Errorf("%w: the model says %+v, published are %+v", ErrWrongAnswers, a.Answers, k)
	}
	if k := known.Totals; known.Complete && (k.Checksum != t.Checksum || k.Held != t.Held || k.BlockOps() != t.BlockOps()) {
		return a, fmt.Errorf("%w: the list has checksum %#x, %d held; published are %#x, %d", ErrWrongAnswers, t.Checksum, t.Held, k.Checksum, k.Held)
	}
	return a, nil
}

// Check compares the answers of a run with what they must be.
func (r *Run) Check(want Answers) error {
	got := Answers{oplist.Answers{Rows: r.Rows, DepthSum: r.DepthSum, Hash: uint64(r.RowHash)}, int(r.Held), int(r.Distinct), want.Checksum}
	if got != want {
		return fmt.Errorf("%w: %s answers %+v, want %+v", ErrWrongAnswers, r.Arm, got, want)
	}
	return nil
}

// check is Run.Check for a result of the op list row.
func (r *Result) check(want Answers) error {
	if r.Run == nil {
		return fmt.Errorf("%w: none", ErrWrongAnswers)
	}
	return r.Run.Check(want)
}

// deriveOplist puts the two arms of one repetition side by side.
func deriveOplist(arms map[string]Result) map[string]float64 {
	out := maps.Clone(arms[ArmKVCluster].Figures)
	if b, ok := arms[ArmBaseline].Figures["rate"]; ok {
		out["baseline"], out["ratio"] = b, out["rate"]/b
	}
	return out
}

func oplistRow() Row {
	return Row{
		Name: rowOplist, Title: "common op list, translator and tree", Arms: []string{ArmKVCluster, ArmBaseline}, run: runOplist, derive: deriveOplist,
		Measures: []Measure{
			{Key: "rate", Title: "block ops per CPU-second", Unit: "M/s", HigherIsBetter: true, AtLeast: 30e6, Aim: 45e6, Scale: 1e6, Prototype: "26"},
			{Key: "ratio", Title: "over the baseline", Unit: "x", HigherIsBetter: true, AtLeast: 7, Aim: 10},
			{Key: "query.p50", Title: "query p50", Unit: "ns", AtLeast: 550, Aim: 400, Prototype: "590"},
			{Key: "query.p99", Title: "query p99", Unit: "ns", AtLeast: 4000, Aim: 2500, Prototype: "4300"},
			{Key: "live", Title: "live bytes per held block", Unit: "B", AtLeast: 32, Aim: 27, Prototype: "28-33"},
			{Key: "rss", Title: "resident bytes per held block", Unit: "B", AtLeast: 36, Aim: 30, Prototype: "33-38"},
			{Key: "baseline", Title: "baseline: block ops per CPU-second", Unit: "M/s", HigherIsBetter: true, Scale: 1e6},
		},
	}
}
