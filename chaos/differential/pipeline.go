package differential

import (
	"context"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// Setup is what is judged.
type Setup struct {
	// Open returns a new, empty index.
	Open func() indexer.Index
	// Translate returns a new translator.
	Translate func(translate.Config) translate.Interface
	// Partitions of the key space; 0 means 4.
	Partitions uint32
	// Writers of the index, over which slots are spread; 0 means 1.
	Writers int
	// FirstSlot is the lowest slot number in use; numbers above 256 find tables that
	// are too small.
	FirstSlot indexer.Slot
}

const (
	group    indexer.GroupID = 2
	patience                 = 30 * time.Second
)

func (s *Setup) partitions() uint32 {
	if s.Partitions == 0 {
		return 4
	}
	return s.Partitions
}

func (s *Setup) partition(first uint64) indexer.PartitionID {
	return indexer.PartitionID(mix(first) % uint64(s.partitions()))
}

// pipeline is the translators of all ranks and the index behind them.
type pipeline struct {
	setup   Setup
	mode    Mode
	x       indexer.Index
	writers []indexer.Writer
	reader  indexer.Reader
	ranks   []*rank
	free    []indexer.Slot
}

// rank is one life of one rank.
type rank struct {
	hash     func([]uint64) uint64
	slot     indexer.Slot
	life     uint64
	sequence uint64
	tr       translate.Interface
	w        indexer.Writer
}

func newPipeline(s Setup, m Mode) *pipeline {
	p := &pipeline{setup: s, mode: m, x: s.Open()}
	p.reader = p.x.NewReader()
	for range max(1, s.Writers) {
		p.writers = append(p.writers, p.x.NewWriter())
	}
	for h := range m.Workers * m.Ranks {
		p.ranks = append(p.ranks, &rank{hash: m.hasher(h)})
	}
	for i := range 2 * len(p.ranks) {
		p.free = append(p.free, s.FirstSlot+indexer.Slot(i))
	}
	for _, r := range p.ranks {
		p.begin(r, p.take())
	}
	return p
}

func (p *pipeline) take() indexer.Slot {
	s := p.free[0]
	p.free = p.free[1:]
	return s
}

// begin starts a life of the rank under a slot number.
func (p *pipeline) begin(r *rank, s indexer.Slot) {
	r.slot = s
	r.life++
	r.sequence = 0
	r.w = p.writers[int(s)%len(p.writers)]
	r.tr = p.setup.Translate(translate.Config{
		Group: group, Slot: s, Life: r.life, Tenure: 1, BlockSize: 16,
		Partition: p.setup.partition, CountCopies: p.mode.Copies,
		MaxOrphanBlocks: 1 << 20, MaxTainted: 1 << 20, AwaitAck: s%2 == 0,
	})
}

func (p *pipeline) close() error {
	for _, w := range p.writers {
		w.Close()
	}
	p.reader.Close()
	return p.x.Close()
}

func (p *pipeline) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, w := range p.writers {
		if err := w.Flush(ctx); err != nil {
			return fmt.Errorf("flush: %w", err)
		}
	}
	return nil
}

// apply does one step.
func (p *pipeline) apply(s *Step) error {
	r := p.ranks[s.Holder]
	switch {
	case s.Lost:
		return nil
	case s.End != GoesOn:
		return p.end(r, s.End)
	}
	events := make([]model.Event, len(s.Batch))
	for i := range s.Batch {
		events[i] = s.Batch[i].event(r.hash)
	}
	return r.send(events)
}

// send translates one batch and writes its frames.
func (r *rank) send(events []model.Event) error {
	r.sequence++
	r.tr.Begin(r.sequence)
	for i := range events {
		translateEvent(r.tr, &events[i])
	}
	if err := r.tr.End(r.w.Write); err != nil {
		return fmt.Errorf("write the frames of batch %d: %w", r.sequence, err)
	}
	// Owners acknowledge late: run numbers stay taken for three more batches.
	if a, ok := r.tr.(interface{ Acknowledge(sequence uint64) }); ok && r.sequence > 3 {
		a.Acknowledge(r.sequence - 3)
	}
	return nil
}

func translateEvent(tr translate.Interface, e *model.Event) translate.Outcome {
	tier := indexer.Tier(e.Tier)
	switch e.Kind {
	case model.Removed:
		return tr.Remove(tier, e.Engines)
	case model.Cleared:
		return tr.Clear(tier)
	}
	return tr.Store(translate.Store{
		Tier: tier, HasParent: e.HasParent, Parent: e.Parent, Engines: e.Engines,
		Content: blockhash.Content{Locals: e.Locals}, Lora: e.Lora, Salt: e.Salt, Placeholder: e.Placeholder,
	})
}

func (p *pipeline) end(r *rank, how End) error {
	if how == ClearFirst {
		if err := r.send([]model.Event{{Kind: model.Cleared, Tier: model.AllTiers}}); err != nil {
			return err
		}
	}
	if err := p.flush(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.x.Purge(ctx, group, r.slot); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	next := r.slot
	if how != SameSlot {
		p.free = append(p.free, r.slot)
		next = p.take()
	}
	if c, ok := r.tr.(interface{ Close() }); ok {
		c.Close()
	}
	p.begin(r, next)
	return nil
}
