package bench

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
)

// ErrWrongAnswers: the index under test does not answer as it must. No figure of such
// a run means anything.
var ErrWrongAnswers = errors.New("wrong answers")

// arm is one index under test. One goroutine uses it.
type arm interface {
	query(locals []uint64) []indexer.Row
	store(worker uint32, hasParent bool, parent uint64, locals, keys []uint64)
	remove(worker uint32, keys []uint64)
	counts() (held, distinct uint64)
	liveBytes() uint64 // 0 = not accounted
	close() error
}

// Run is the outcome of one pass over an op list in one process.
type Run struct {
	Arm       string      `json:"arm"`
	Rows      uint64      `json:"rows"`
	DepthSum  uint64      `json:"depth_sum"`
	RowHash   string      `json:"row_hash"`
	Checksum  string      `json:"op_checksum"`
	Held      uint64      `json:"held"`
	Distinct  uint64      `json:"distinct"`
	BlockOps  int         `json:"block_ops"`
	CPU       float64     `json:"cpu_seconds"`
	PerCPU    float64     `json:"block_ops_per_cpu_second"`
	QueryNs   Percentiles `json:"query_ns"`
	BytesHeld Bytes       `json:"bytes_per_held_block"`
}

// Percentiles of a latency, in nanoseconds.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P99 float64 `json:"p99"`
}

// Bytes for each held block.
type Bytes struct {
	Live float64 `json:"live"`
	RSS  float64 `json:"rss"`
}

// Arms of RunOplist.
const (
	ArmKVCluster = "kvcluster"
	ArmBaseline  = "baseline"
)

// RunOplist passes once over a list in this process and checks the answers.
func RunOplist(ctx context.Context, list *oplist.List, name string) (Run, error) {
	before, err := residentBytes()
	if err != nil {
		return Run{}, err
	}
	workers := list.Config().Workers
	var a arm
	switch name {
	case ArmKVCluster:
		if a, err = newIndexArm(workers); err != nil {
			return Run{}, err
		}
	case ArmBaseline:
		a = newBaseline(workers)
	default:
		return Run{}, fmt.Errorf("unknown arm %q", name)
	}
	var ans oplist.Answers
	clock := newTickClock()
	samples := make([]uint32, 0, list.Totals().Queries)
	cpu := processCPU()
	var op oplist.Op
	for i := range list.Len() {
		list.At(i, &op)
		switch op.Kind {
		case oplist.Query:
			t := ticks()
			rows := a.query(op.Contents)
			samples = append(samples, uint32(min(ticks()-t, 1<<32-1)))
			for _, r := range rows {
				ans.Add(op.Request, uint32(r.Slot), r.Depth)
			}
		case oplist.Stored:
			a.store(op.Worker, op.HasParent, op.Parent, op.Contents, op.Keys)
		case oplist.Removed:
			a.remove(op.Worker, op.Keys)
		}
		if i&4095 == 0 && ctx.Err() != nil {
			return Run{}, ctx.Err()
		}
	}
	seconds := (processCPU() - cpu).Seconds()
	after, err := residentBytes()
	if err != nil {
		return Run{}, err
	}
	t := list.Totals()
	held, distinct := a.counts()
	p := clock.percentiles(samples, 50, 99)
	r := Run{
		Arm: name, Rows: ans.Rows, DepthSum: ans.DepthSum, RowHash: hex(ans.Hash), Checksum: hex(t.Checksum),
		Held: held, Distinct: distinct, BlockOps: t.BlockOps(), CPU: seconds, PerCPU: float64(t.BlockOps()) / seconds,
		QueryNs:   Percentiles{p[0], p[1]},
		BytesHeld: Bytes{Live: float64(a.liveBytes()) / float64(held), RSS: float64(after-before) / float64(held)},
	}
	if err := a.close(); err != nil {
		return r, fmt.Errorf("%s: %w", name, err)
	}
	if want := list.Expected(); ans != want || held != uint64(t.Held) || distinct != uint64(t.Distinct) {
		return r, fmt.Errorf("%w: %s on %s: answers %+v, held %d, distinct %d; want %+v, %d, %d", ErrWrongAnswers, name, list.Config(), ans, held, distinct, want, t.Held, t.Distinct)
	}
	return r, nil
}

func hex(v uint64) string { return fmt.Sprintf("%#016x", v) }
