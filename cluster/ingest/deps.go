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
	// Discover asks for a slot for a rank that a source carries and nobody registered.
	Discover(source uint64, rank uint32, done func(error))
	// Purged reports that no frame for a retired slot will come from here any more and
	// that all of them, a final clear included, were applied. Before the number is
	// given out again, indexer.Index.Purge has to run for it.
	Purged(r catalog.Retired, done func(error))
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
	Logger     *slog.Logger // nil = discard
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
