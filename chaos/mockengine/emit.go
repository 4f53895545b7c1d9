package mockengine

import (
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// emitStored announces blocks from..to-1 of a request in one event.
func (s *scheduler) emitStored(t *task, from, to int, tier indexer.Tier, decode bool) {
	size := s.cfg.BlockSize
	end := to * size
	if s.prof.bigram {
		end++
	}
	e := engine.Event{
		Kind: engine.Stored, Tier: tier, Hashes: t.engines[from:to], Group: s.prof.group, SpecKind: s.prof.spec,
		Tokens:    s.plan.AppendTokens(make([]uint32, 0, end-from*size), t.request, from*size, end),
		BlockSize: uint32(size), Bigram: s.prof.bigram, LoraName: t.ns.Lora,
	}
	if from > 0 {
		e.HasParent, e.Parent = true, t.engines[from-1]
	}
	if from == 0 || !s.prof.saltOnce {
		e.Salt = t.ns.Salt
	}
	s.emit(e, Record{
		Kind: RecordStored, Tier: tier, HasParent: e.HasParent, Parent: e.Parent, Engines: e.Hashes, Locals: t.locals[from:to],
	}, decode)
	s.stats.Stored.add(to - from)
	s.stats.StoredBlocks[tier] += uint64(to - from)
}

// emitEvicted announces what an admission evicted from the device.
func (s *scheduler) emitEvicted(gone []evictedBlock) {
	for _, b := range gone {
		if !b.copyLeft {
			s.host.deviceGone(b.key)
		}
	}
	if !s.cfg.SingleRemovals {
		s.emitRemoved(gone, indexer.Device)
		return
	}
	for i := range gone {
		s.emitRemoved(gone[i:i+1], indexer.Device)
	}
}

func (s *scheduler) emitRemoved(gone []evictedBlock, tier indexer.Tier) {
	if len(gone) == 0 {
		return
	}
	engines := make([]uint64, len(gone))
	for i, b := range gone {
		engines[i] = b.engine
	}
	s.emit(engine.Event{Kind: engine.Removed, Tier: tier, Hashes: engines, Group: s.prof.group},
		Record{Kind: RecordRemoved, Tier: tier, Engines: engines}, false)
	s.stats.Removed.add(len(gone))
	s.stats.RemovedBlocks[tier] += uint64(len(gone))
}

// emitCleared announces that everything is gone.
func (s *scheduler) emitCleared() {
	s.emit(engine.Event{Kind: engine.Cleared, Tier: indexer.AllTiers, Group: -1},
		Record{Kind: RecordCleared, Tier: indexer.AllTiers}, false)
	s.stats.Cleared++
}

// emit puts an event into the batch at hand. Events of decoding may wait where the
// engine reports decoding only now and then.
func (s *scheduler) emit(e engine.Event, r Record, decode bool) {
	at := s.now
	if decode && s.prof.decodeHold > 0 {
		at = max(at, s.flushed+seconds(float64(s.prof.decodeHold)/s.cfg.DecodeRate))
	}
	due := s.stepAfter(at)
	if len(s.out.events) == 0 || due < s.out.due {
		s.out.due = due
	}
	s.out.events = append(s.out.events, e)
	s.out.records = append(s.out.records, r)
}

// stepAfter is the end of the scheduler step in which at lies.
func (s *scheduler) stepAfter(at time.Duration) time.Duration {
	return (at/s.cfg.Step + 1) * s.cfg.Step
}

// take hands over the batch and begins the next one.
func (s *scheduler) take() outbox {
	out := s.out
	s.out = outbox{}
	s.now = max(s.now, out.due)
	s.flushed = s.now
	return out
}
