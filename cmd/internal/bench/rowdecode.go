package bench

import (
	"fmt"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

func decodeRow() Row {
	return Row{
		Name: "decode", Title: "decode-append: one-block stores over 4,096 growing sequences, translator and tree", run: runDecode,
		Measures: []Measure{
			{Key: "single", Title: "one-block stores per CPU-second, one event a batch", Unit: "M/s", HigherIsBetter: true, AtLeast: 1.2e6, Aim: 3e6, Scale: 1e6, Prototype: "0.5-0.85"},
			{Key: "step", Title: "the same, 64 events a batch (a step of an engine)", Unit: "M/s", HigherIsBetter: true, AtLeast: 1.2e6, Aim: 3e6, Scale: 1e6},
			{Key: "live", Title: "live bytes per held block", Unit: "B"},
		},
	}
}

const (
	decodeWorkers   = 64
	decodeSequences = 64 // of each worker
	decodePrompt    = 16 // blocks of one sequence before it grows
)

// runDecode lets all sequences grow by one block in turn.
func runDecode(b *bencher) error {
	rounds := b.choose(200, 50)
	b.inputs("%d workers x %d sequences, prompts of %d blocks, %d rounds of one block each", decodeWorkers, decodeSequences, decodePrompt, rounds)
	for _, step := range []bool{false, true} {
		if err := decodeOnce(b, rounds, step); err != nil {
			return err
		}
	}
	return nil
}

func decodeLocal(worker, seq, pos int) uint64 {
	return oplist.Mix(uint64(worker)<<40 ^ uint64(seq)<<24 ^ uint64(pos) ^ 7<<56)
}

func decodeOnce(b *bencher, rounds int, step bool) error {
	a, err := newIndexArm(decodeWorkers)
	if err != nil {
		return err
	}
	before, err := takeMemory()
	if err != nil {
		return err
	}
	var locals, keys []uint64
	for w := range decodeWorkers {
		for s := range decodeSequences {
			locals, keys = locals[:0], keys[:0]
			for i := range decodePrompt {
				locals = append(locals, decodeLocal(w, s, i))
				keys = append(keys, oplist.Mix(locals[i]))
			}
			a.store(uint32(w), false, 0, locals, keys)
		}
	}
	key := "single"
	if step {
		key = "step"
	}
	err = b.profiled(func() error {
		cpu := processCPU()
		var local, engine [1]uint64
		for r := range rounds {
			pos := decodePrompt + r
			for w := range decodeWorkers {
				var t *translate.Translator
				if step {
					t = a.begin(uint32(w))
				}
				for s := range decodeSequences {
					local[0] = decodeLocal(w, s, pos)
					engine[0] = oplist.Mix(local[0])
					parent := oplist.Mix(decodeLocal(w, s, pos-1))
					if !step {
						a.store(uint32(w), true, parent, local[:], engine[:])
						continue
					}
					o := t.Store(translate.Store{
						Tier: indexer.Device, HasParent: true, Parent: parent, Engines: engine[:],
						Content: blockhash.Content{Locals: local[:]},
					})
					if o.Err != nil {
						return o.Err
					}
				}
				if step {
					a.end(t, translate.Outcome{})
				}
			}
			if b.ctx.Err() != nil {
				return b.ctx.Err()
			}
		}
		b.set(key, float64(rounds*decodeWorkers*decodeSequences)/(processCPU()-cpu).Seconds())
		return nil
	})
	if err != nil {
		return err
	}
	want := uint64(decodeWorkers * decodeSequences * (decodePrompt + rounds))
	held, distinct := a.counts()
	if held != want || distinct != want {
		return fmt.Errorf("%w: %d held, %d distinct, want %d", ErrWrongAnswers, held, distinct, want)
	}
	after, err := takeMemory()
	if err != nil {
		return err
	}
	b.set("live", float64(int64(a.mappedBytes())+after.heap-before.heap)/float64(held))
	// The whole of a few sequences.
	for w := range decodeWorkers {
		locals = locals[:0]
		for i := range decodePrompt + rounds {
			locals = append(locals, decodeLocal(w, w, i))
		}
		rows := a.query(locals)
		if len(rows) != 1 || rows[0] != (indexer.Row{Slot: indexer.Slot(w), Depth: uint32(len(locals))}) {
			return fmt.Errorf("%w: a sequence of worker %d scores %v", ErrWrongAnswers, w, rows)
		}
	}
	return a.close()
}
