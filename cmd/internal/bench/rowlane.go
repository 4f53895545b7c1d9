package bench

import (
	"fmt"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
)

func laneRow() Row {
	return Row{
		Name: "lane", Title: "one lane alone, canonical frames of the op list", run: runLane,
		Measures: []Measure{
			{Key: "rate", Title: "blocks stored and dropped per CPU-second", Unit: "M/s", HigherIsBetter: true, AtLeast: 80e6, Aim: 130e6, Scale: 1e6, Prototype: "80 (69-106)"},
			{Key: "query.p50", Title: "query p50 at the end", Unit: "ns"},
			{Key: "query.p99", Title: "query p99 at the end", Unit: "ns"},
			{Key: "live", Title: "live bytes per held block, tree alone", Unit: "B"},
		},
	}
}

// runLane applies the recorded frames of the op list, then asks its queries.
func runLane(b *bencher) error {
	tape, err := OpenTape(b.job.Tape)
	if err != nil {
		return err
	}
	log, _, err := recordFrames(tape)
	if err != nil {
		return err
	}
	lane, err := openLane()
	if err != nil {
		return err
	}
	blocks := len(tape.keys) + len(tape.evicted)
	b.inputs("%d frames, %d blocks, %d slots", log.len(), blocks, tape.Workers())
	err = b.profiled(func() error {
		cpu := processCPU()
		for i := range log.len() {
			lane.Apply(log.frame(i))
		}
		b.set("rate", float64(blocks)/(processCPU()-cpu).Seconds())
		return b.ctx.Err()
	})
	if err != nil {
		return err
	}
	if held := lane.held(); held != uint64(len(tape.keys)-len(tape.evicted)) {
		return fmt.Errorf("%w: %d blocks held, want %d", ErrWrongAnswers, held, len(tape.keys)-len(tape.evicted))
	}
	b.set("live", float64(lane.liveBytes())/float64(lane.held()))
	reader := lane.NewReader()
	defer reader.Close()
	samples := make([]uint32, 0, tape.Queries())
	var scores indexer.Scores
	var op oplist.Op
	for i := range tape.Len() {
		if tape.At(i, &op); op.Kind != oplist.Query || len(op.Contents) == 0 {
			continue
		}
		q := queryOf(op.Contents)
		t := ticks()
		reader.Match(q, &scores)
		samples = append(samples, since(t))
	}
	b.latencies("query", samples)
	return lane.end()
}

// queryOf asks the partition that a node asks.
func queryOf(locals []uint64) indexer.Query {
	return indexer.Query{Partition: partitionOf(locals[0]), Locals: locals}
}

// since returns the ticks that have passed, as a sample.
func since(t uint64) uint32 { return uint32(min(ticks()-t, 1<<32-1)) }
