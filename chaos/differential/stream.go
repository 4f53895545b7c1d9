package differential

import (
	"math/rand/v2"
	"slices"

	"github.com/kvcluster/kvcluster/chaos/model"
)

// Mode is a kind of stream.
type Mode struct {
	Name  string
	Shape Shape
	// Workers and Ranks of each; the number of holders is their product.
	Workers, Ranks int
	Tiers          bool // lower tiers too: write-through, demotion, load-back, announcements
	Copies         bool // engines keep several copies and remove each; claims are counted
	OwnHashes      bool // the hashes of each rank are its own
	Lossy          bool // some batches never arrive: unknown parents, unknown removals
	ContentOnly    bool // hashes that do not name a prefix: only over-counts are judged
}

// Modes are the streams of the test suite.
func Modes() []Mode {
	small := SmallShape()
	return []Mode{
		{Name: "device", Shape: small, Workers: 3, Ranks: 2},
		{Name: "tiers", Shape: small, Workers: 2, Ranks: 2, Tiers: true},
		{Name: "own hashes", Shape: small, Workers: 4, Ranks: 1, Tiers: true, OwnHashes: true},
		{Name: "copies", Shape: small, Workers: 2, Ranks: 1, Copies: true},
		{Name: "lossy", Shape: small, Workers: 2, Ranks: 2, Tiers: true, Lossy: true},
		{Name: "content-only hashes", Shape: small, Workers: 2, Ranks: 1, ContentOnly: true},
	}
}

// hasher is how the engine of a rank names a path.
func (m *Mode) hasher(holder int) func([]uint64) uint64 {
	flavour := uint64(7)
	if m.OwnHashes {
		flavour += uint64(holder) << 32
	}
	if m.ContentOnly {
		return func(p []uint64) uint64 { return contentHash(p, flavour) }
	}
	return func(p []uint64) uint64 { return engineHash(p, flavour) }
}

// Stream makes the steps of a seed.
type Stream struct {
	mode    Mode
	rng     *rand.Rand
	prompts [][]uint64
	engines []*engine
	// tails are paths that decode has made, for more of it and for removals.
	tails [][]uint64
}

// NewStream returns the stream of a seed.
func NewStream(seed int64, m Mode) *Stream {
	s := &Stream{mode: m, rng: rand.New(rand.NewPCG(uint64(seed), 0xd1ff)), prompts: m.Shape.prompts()}
	for range m.Workers * m.Ranks {
		s.engines = append(s.engines, newEngine(m.Copies))
	}
	return s
}

// Next appends the next operation, which is one step or, if a worker ends, several.
func (s *Stream) Next(dst []Step) []Step {
	for {
		h := s.rng.IntN(len(s.engines))
		if v := s.rng.IntN(100); v < 3 {
			return s.end(dst, h, v == 0)
		}
		step := Step{Holder: h, Batch: s.events(h)}
		for s.rng.IntN(4) == 0 { // several events in one batch build on each other
			step.Batch = append(step.Batch, s.events(h)...)
		}
		if len(step.Batch) == 0 {
			continue
		}
		step.Lost = s.mode.Lossy && s.rng.IntN(25) == 0
		return append(dst, step)
	}
}

// events draws one operation and does it on the engine.
func (s *Stream) events(h int) []Event {
	e := s.engines[h]
	var batch []Event
	switch v := s.rng.IntN(97); {
	case v < 40:
		batch = s.stores(e)
	case v < 52:
		batch = s.decode(e)
	case v < 94:
		batch = s.removals(e)
	default:
		tier := model.AllTiers
		if s.mode.Tiers && s.rng.IntN(2) == 0 {
			tier = s.rng.IntN(model.NumTiers)
		}
		batch = []Event{{Kind: model.Cleared, Tier: tier}}
	}
	return e.accept(batch)
}

func (s *Stream) end(dst []Step, h int, worker bool) []Step {
	first, n := h, 1
	if worker {
		first, n = h/s.mode.Ranks*s.mode.Ranks, s.mode.Ranks
	}
	how := []End{SameSlot, SameSlot, FreshSlot, ClearFirst}[s.rng.IntN(4)]
	for i := first; i < first+n; i++ {
		s.engines[i] = newEngine(s.mode.Copies)
		dst = append(dst, Step{Holder: i, End: how})
	}
	return dst
}

func (s *Stream) prompt() []uint64 {
	if len(s.tails) > 0 && s.rng.IntN(5) == 0 {
		return s.tails[s.rng.IntN(len(s.tails))]
	}
	return s.prompts[s.rng.IntN(len(s.prompts))]
}

// stores is a request: the blocks of a prompt that the engine has to compute.
func (s *Stream) stores(e *engine) []Event {
	prompt := s.prompt()
	prompt = prompt[:1+s.rng.IntN(len(prompt))]
	lead := e.lead(prompt, model.Device)
	from, to := lead, len(prompt)
	switch s.rng.IntN(10) {
	case 0, 1: // a hole alone: up to the next block that is there
		for to = from; to < len(prompt) && !e.resident(prompt[:to+1], model.Device); {
			to++
		}
	case 2: // a part of what is missing
		to = from + s.rng.IntN(to-from+1)
	case 3, 4: // duplicates in front
		from = s.rng.IntN(lead + 1)
	}
	if from >= to {
		return nil
	}
	batch := s.chained(prompt, from, to, model.Device)
	if s.mode.Tiers {
		batch = append(batch, s.offload(e, prompt, from, to)...)
	}
	return batch
}

// chained stores prompt[from:to], three times of ten as two events.
func (s *Stream) chained(prompt []uint64, from, to, tier int) []Event {
	at := to
	if to-from > 1 && s.rng.IntN(10) < 3 {
		at = from + 1 + s.rng.IntN(to-from-1)
	}
	batch := []Event{{Kind: model.Stored, Tier: tier, Under: prompt[:from], Blocks: prompt[from:at]}}
	if at < to {
		batch = append(batch, Event{Kind: model.Stored, Tier: tier, Under: prompt[:at], Blocks: prompt[at:to]})
	}
	return batch
}

// offload gives blocks a further tier, by a store or by an announcement of hashes,
// and sometimes takes the device copy away.
func (s *Stream) offload(e *engine, prompt []uint64, from, to int) []Event {
	tier := 1 + s.rng.IntN(model.NumTiers-1)
	switch s.rng.IntN(4) {
	case 0:
		return s.chained(prompt, from, to, tier)
	case 1:
		a := Event{Kind: model.Stored, Tier: tier, Placeholder: true}
		for i := from; i < to; i++ {
			a.Paths = append(a.Paths, prompt[:i+1])
		}
		return []Event{a}
	case 2:
		batch := s.chained(prompt, from, to, tier)
		gone := Event{Kind: model.Removed, Tier: model.Device}
		for i := to; i > from; i-- {
			gone.Paths = append(gone.Paths, prompt[:i])
		}
		return append(batch, gone)
	}
	return nil
}

// decode fills one block at the end of a prompt that the engine has whole; few
// different contents, so that ranks race for the same tail.
func (s *Stream) decode(e *engine) []Event {
	for range 20 {
		p := s.prompt()
		if len(p) > 60 || e.lead(p, model.Device) < len(p) {
			continue
		}
		block := uint64(1 + s.rng.IntN(3))
		tail := append(slices.Clone(p), block)
		if len(s.tails) < 40 {
			s.tails = append(s.tails, tail)
		} else {
			s.tails[s.rng.IntN(len(s.tails))] = tail
		}
		return []Event{{Kind: model.Stored, Tier: model.Device, Under: p, Blocks: []uint64{block}}}
	}
	return nil
}

// removals evicts blocks of one prompt or, 15 times of 100, of two.
func (s *Stream) removals(e *engine) []Event {
	tier := model.Device
	if s.mode.Tiers && s.rng.IntN(3) == 0 {
		tier = s.rng.IntN(model.NumTiers)
	}
	var paths [][]uint64
	for range 10 { // prompts of which nothing is there are passed over
		if paths = s.evict(e, tier); len(paths) > 0 {
			break
		}
	}
	if s.rng.IntN(100) < 15 {
		paths = append(paths, s.evict(e, tier)...)
	}
	switch s.rng.IntN(3) {
	case 0:
		slices.Reverse(paths)
	case 1:
		s.rng.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	}
	return []Event{{Kind: model.Removed, Tier: tier, Paths: paths}}
}

// evict picks blocks of one prompt, head first.
func (s *Stream) evict(e *engine, tier int) (out [][]uint64) {
	prompt := s.prompt()
	var has [][]uint64
	for i := range prompt {
		if e.resident(prompt[:i+1], tier) {
			has = append(has, prompt[:i+1])
		}
	}
	if len(has) == 0 {
		return nil
	}
	n := 1 + s.rng.IntN(len(has))
	switch v := s.rng.IntN(100); {
	case v < 35:
		return has[len(has)-n:]
	case v < 50:
		return has[:n]
	case v < 70:
		return has[n-1 : n]
	}
	for _, p := range has {
		if s.rng.IntN(3) == 0 {
			out = append(out, p)
		}
	}
	return out
}
