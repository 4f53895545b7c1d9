package ingest

import (
	"log/slog"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// Log takes the commands that ingest sends to the catalog. In a cluster each is a
// Raft round trip, so all are asynchronous: done is called once, from any goroutine,
// also before the method returns, with nil when the command was applied or was
// needless. What changed comes back through Manager.Reconcile, before or after done.
// The methods must not block.
type Log interface {
	// NewLife asks for a fresh slot for a rank, unless its life is no longer the one given.
	NewLife(instance string, rank uint32, life uint64, done func(error))
	// Filled says that a rank whose source was taken over has all in this life that its engine
	// can be asked for, applied at all owners. Before it, answers without the rank are not
	// complete.
	Filled(instance string, rank uint32, life uint64, done func(error))
	// Discover asks for a slot for a rank that a source carries and nobody registered.
	Discover(source uint64, rank uint32, done func(error))
	// Purged reports that no frame for a retired slot will come from here any more and
	// that all of them, a final clear included, were applied. Before the number is
	// given out again, indexer.Index.Purge has to run for it.
	Purged(r catalog.Retired, done func(error))
}

// Cursor says how far the stream of a slot has come: every batch up to Sequence is in
// the frames that were written before. Digest is of that batch and of what a dump does
// not say; its meaning is known to ingest alone.
type Cursor struct {
	Group            indexer.GroupID
	Slot             indexer.Slot
	Life, Tenure     uint64
	Sequence, Digest uint64
}

// Takeover gets what the owners have of a slot that another ingest, or an earlier
// process, wrote (rules T1, T2).
type Takeover interface {
	// Adopt fences off all earlier tenures of the slot at every node that holds any of
	// it, and calls done once, from any goroutine, also before it returns: with what is
	// there, or with an error if a partition has no complete copy that can be reached;
	// the slot starts over then. After it every copy is as in the inheritance, or closed
	// until it has been filled from one that is. It must not block.
	Adopt(group indexer.GroupID, slot indexer.Slot, life, tenure uint64, done func(Inheritance, error))
}

// Inheritance is what the owners have of a slot.
type Inheritance struct {
	// Cursors are the latest ones that the nodes with the copies in Parts got. A copy has
	// all batches up to the cursor of its node.
	Cursors []Cursor
	// Parts has every partition of the layout, with the batch up to which it is complete:
	// its node's cursor, or its latest frame if that is later.
	Parts []translate.Inherited
}

// Decoder is what a loop needs of engine.Decoder. One goroutine uses it.
type Decoder interface {
	Decode(payload []byte) (*engine.Batch, error)
}

// Deps is what a Manager works with. Network, Log and NewWriter are required.
type Deps struct {
	Network transport.Network
	Log     Log
	// NewWriter makes the writer of one loop; the Manager closes it.
	NewWriter func() indexer.Writer
	// NewTranslator makes the translator of one life of a slot; nil = translate.New.
	NewTranslator func(translate.Config) translate.Interface
	// NewDecoder makes the decoder of one loop; nil = engine.NewDecoder.
	NewDecoder func() Decoder
	// Takeover, if set, lets slots be continued that others wrote; nil = they start over.
	Takeover Takeover
	// Cursor, if set, is told every second how far each slot has come, on its loop, behind
	// the frames in question. It must reach every owner in the order of the frames. What
	// it never said cannot be inherited.
	Cursor func(Cursor)
	// Bigram, if set, is told on a loop that engines of a group have announced EAGLE pages,
	// once for each group: whoever hashes prompts of it has to know. It must not block.
	Bigram func(indexer.GroupID)
	Logger *slog.Logger // nil = discard
}

func (d *Deps) applyDefaults() {
	if d.NewTranslator == nil {
		d.NewTranslator = func(c translate.Config) translate.Interface { return translate.New(c) }
	}
	if d.NewDecoder == nil {
		d.NewDecoder = func() Decoder { return engine.NewDecoder(engine.DecoderConfig{}) }
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
}
