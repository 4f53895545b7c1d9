package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

func lanesRow() Row {
	return Row{
		Name: "lanes", Title: "several lanes behind rings, on work with many first blocks", run: runLanes,
		Measures: []Measure{
			{Key: "l1.rate", Title: "one lane: blocks stored and dropped per CPU-second, writer included", Unit: "M/s", HigherIsBetter: true, Scale: 1e6},
			{Key: "l2.rate", Title: "two lanes: the same", Unit: "M/s", HigherIsBetter: true, Scale: 1e6},
			{Key: "l2.wall", Title: "two lanes over one: blocks a second of wall time", Unit: "x", HigherIsBetter: true},
			{Key: "l2.balance", Title: "two lanes: frames of the busier one over the mean", Unit: "x"},
		},
	}
}

// runLanes feeds the recorded frames of a list in which nearly every session has a
// first block of its own through one writer into an index of one lane, and of two.
func runLanes(b *bencher) error {
	cfg := trace.DefaultGenerate(b.choose(12_000, 400))
	cfg.Common, cfg.SystemPrompts, cfg.SystemSkew = 0, 2000, 0
	t, err := trace.Generate(cfg)
	if err != nil {
		return err
	}
	list, err := oplist.Build(t, oplist.Config{Copies: 2, Workers: 64, Capacity: 8192})
	if err != nil {
		return err
	}
	tape := NewTape(list, t)
	log, _, err := recordFrames(tape)
	if err != nil {
		return err
	}
	blocks := len(tape.keys) + len(tape.evicted)
	b.inputs("%d frames, %d blocks, %d slots, from a generated trace with %d system prompts", log.len(), blocks, tape.Workers(), cfg.SystemPrompts)
	var walls [2]float64
	err = b.profiled(func() error {
		for i := range walls {
			cpu, wall, balance, err := feedLanes(log, i+1, uint64(len(tape.keys)-len(tape.evicted)))
			if err != nil {
				return err
			}
			walls[i] = wall.Seconds()
			b.set(fmt.Sprintf("l%d.rate", i+1), float64(blocks)/cpu.Seconds())
			b.set(fmt.Sprintf("l%d.balance", i+1), balance)
		}
		return b.ctx.Err()
	})
	b.set("l2.wall", walls[0]/walls[1])
	return err
}

func feedLanes(log *frameLog, lanes int, want uint64) (cpu, wall time.Duration, balance float64, err error) {
	index, err := tree.Open(tree.Config{Lanes: lanes})
	if err != nil {
		return 0, 0, 0, err
	}
	defer func() { err = errors.Join(err, index.Close()) }()
	writer := index.NewWriter()
	defer writer.Close()
	from, clock := time.Now(), processCPU()
	for i := range log.len() {
		if err := writer.Write(log.frame(i)); err != nil {
			return 0, 0, 0, err
		}
	}
	for writer.Applied() < writer.Written() {
		time.Sleep(50 * time.Microsecond)
	}
	cpu, wall = processCPU()-clock, time.Since(from)
	s := index.Stats()
	if s.Held[indexer.Device] != want || s.Faults != 0 {
		return 0, 0, 0, fmt.Errorf("%w: %d held, want %d, %d faults", ErrWrongAnswers, s.Held[indexer.Device], want, s.Faults)
	}
	most := uint64(0)
	for _, l := range s.Lanes {
		most = max(most, l.Frames)
	}
	return cpu, wall, float64(most) * float64(lanes) / float64(s.Frames), nil
}
