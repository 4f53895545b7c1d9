package bench

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/indexer/tree"
	"github.com/kvcluster/kvcluster/shard"
)

// indexArm is the write and the read path of a node without its threads and sockets:
// one translator for each worker, whose frames go straight into a lane, and a reader
// of that lane. Everything runs in the goroutine that calls, so that the CPU time of
// the process is that of the index.
type indexArm struct {
	lane    *tree.Lane
	reader  *tree.Reader
	memory  *translate.Memory
	workers []*translate.Translator
	seqs    []uint64
	scores  indexer.Scores
	apply   func(indexer.Frame) error
	err     error
}

// newIndexArm opens an empty index for so many workers.
func newIndexArm(workers int) (*indexArm, error) {
	a := &indexArm{
		memory: translate.NewMemory(), workers: make([]*translate.Translator, workers), seqs: make([]uint64, workers),
	}
	var err error
	if a.lane, err = tree.OpenLane(tree.LaneConfig{OnFault: func(_ indexer.Header, err error) { a.fail(err) }}); err != nil {
		return nil, err
	}
	a.reader = a.lane.NewReader()
	a.apply = func(f indexer.Frame) error {
		a.lane.Apply(f)
		return nil
	}
	scratch := translate.NewScratch()
	for w := range a.workers {
		a.workers[w] = translate.New(translate.Config{
			Slot: indexer.Slot(w), Life: 1, Tenure: 1, BlockSize: 16, Memory: a.memory, Scratch: scratch,
			Partition: partitionOf,
		})
	}
	return a, nil
}

// partitionOf places a chain as a node does.
func partitionOf(first uint64) indexer.PartitionID {
	return indexer.PartitionID(shard.Layout{Partitions: shard.DefaultPartitions}.Partition(0, first, 0))
}

func (a *indexArm) fail(err error) { a.err = errors.Join(a.err, err) }

func (a *indexArm) query(locals []uint64) []indexer.Row {
	if len(locals) == 0 {
		return nil
	}
	a.reader.Match(queryOf(locals), &a.scores)
	return a.scores.Rows
}

// begin opens a batch of one event, as an engine that sends every event at once.
func (a *indexArm) begin(worker uint32) *translate.Translator {
	t := a.workers[worker]
	a.seqs[worker]++
	t.Begin(a.seqs[worker])
	return t
}

func (a *indexArm) end(t *translate.Translator, o translate.Outcome) {
	if o.Err != nil {
		a.fail(o.Err)
	}
	if err := t.End(a.apply); err != nil {
		a.fail(err)
	}
}

func (a *indexArm) store(worker uint32, hasParent bool, parent uint64, locals, keys []uint64) {
	t := a.begin(worker)
	a.end(t, t.Store(translate.Store{
		Tier: indexer.Device, HasParent: hasParent, Parent: parent, Engines: keys,
		Content: blockhash.Content{Locals: locals},
	}))
}

func (a *indexArm) remove(worker uint32, keys []uint64) {
	t := a.begin(worker)
	a.end(t, t.Remove(indexer.Device, keys))
}

func (a *indexArm) counts() (held, distinct uint64) {
	s := a.lane.Stats()
	return s.Held[indexer.Device], s.Distinct
}

// mappedBytes is what the parts use of the memory that they keep outside the Go heap.
func (a *indexArm) mappedBytes() uint64 {
	_, total := a.memory.Reserved()
	for _, n := range a.lane.Stats().Bytes {
		total += n
	}
	return total
}

// parts are the bytes in use by purpose, and those taken from the system.
func (a *indexArm) parts() map[string]uint64 {
	s := a.lane.Stats()
	out := map[string]uint64{"tree reserved": s.Reserved, "tree limbo": s.Limbo}
	for name, n := range s.Bytes {
		out["tree "+name] = n
	}
	out["translators reserved"], out["translators"] = a.memory.Reserved()
	return out
}

func (a *indexArm) rest() { a.memory.Trim(math.MaxInt) }

func (a *indexArm) close() error {
	held, _ := a.counts()
	mapped := uint64(0)
	for _, t := range a.workers {
		mapped += t.Stats().Mapped
		t.Close()
	}
	if held != mapped {
		a.fail(fmt.Errorf("the tree holds %d blocks, the translators %d", held, mapped))
	}
	a.reader.Close()
	return errors.Join(a.err, a.lane.Close())
}
