package differential

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/indexer"
)

// Soak is a run with writers and readers at the same time.
//
// While they run, a score must lie between what its slot held during the whole query
// and what it held at some moment of it, claim by claim. At the end of every round
// all is quiet and index and judge must be equal in everything.
type Soak struct {
	Setup   Setup
	Mode    Mode // Workers x Ranks is the number of ranks of one writer
	Seed    int64
	Writers int           // 0 means 8
	Readers int           // 0 means 4
	Round   time.Duration // from one quiet point to the next; 0 means 500 ms
	Rounds  int           // 0 means 4
}

// SoakResult says how much a soak has seen.
type SoakResult struct {
	Batches, Ends, Answers int64
	Moving                 int64 // answers that met at least one frame under way
	Rows                   int64 // scores above 0 that were judged while frames were under way
}

const (
	soakTracked = 40   // prompts that readers ask for in one round
	soakStates  = 1500 // states that one slot can have in one round
)

// slotHistory is what one slot held of the tracked prompts, state by state, one for
// each event: bit i for block i. A frame is one unit where it fails, not where it is
// read: what was stored and removed within one batch was held for a moment. Whoever
// owns the slot fills an entry before it publishes its number.
type slotHistory struct {
	states [soakStates][soakTracked]uint64
	begun  atomic.Int64 // last state that a frame under way may have brought about
	acked  atomic.Int64 // last state that is surely applied
}

// full reports whether a burst more could be too much; the writer then ends its
// round early.
func (h *slotHistory) full() bool { return h.begun.Load() >= soakStates-300 }

type soak struct {
	Soak
	p       *pipeline
	prompts [][]uint64
	tracked [][]uint64
	history map[indexer.Slot]*slotHistory
	writers []*soakWriter
	result  struct{ batches, ends, answers, moving, rows atomic.Int64 }

	mu struct {
		sync.Mutex
		free []indexer.Slot
	}
}

// soakWriter is one writing thread with its ranks, its stream and its judge.
type soakWriter struct {
	s      *soak
	w      indexer.Writer
	ranks  []*rank
	stream *Stream
	told   *model.Model[int]
	rng    *rand.Rand
	dirty  []*slotHistory // begun since the last flush
}

// Do runs the soak.
func (k Soak) Do() (SoakResult, error) {
	if k.Writers == 0 {
		k.Writers = 8
	}
	if k.Readers == 0 {
		k.Readers = 4
	}
	if k.Round == 0 {
		k.Round = 500 * time.Millisecond
	}
	if k.Rounds == 0 {
		k.Rounds = 4
	}
	k.Setup.Writers = k.Writers
	s := &soak{Soak: k, prompts: k.Mode.Shape.prompts(), history: map[indexer.Slot]*slotHistory{}}
	all := k.Mode
	all.Workers *= k.Writers
	s.p = newPipeline(k.Setup, all)
	s.mu.free = s.p.free[:min(len(s.p.free), 2*k.Writers)] // few spares: numbers come back soon
	for i := range k.Writers {
		n := k.Mode.Workers * k.Mode.Ranks
		w := &soakWriter{
			s: s, w: s.p.writers[i], ranks: s.p.ranks[i*n : (i+1)*n], stream: NewStream(k.Seed*1000+int64(i), k.Mode),
			told: model.New[int](model.Config{CountCopies: k.Mode.Copies}), rng: rand.New(rand.NewPCG(uint64(k.Seed), uint64(i))),
		}
		for _, r := range w.ranks { // all slots of a writer, so that a rank can change its slot
			r.w = w.w
		}
		s.writers = append(s.writers, w)
	}
	for i := range len(s.p.ranks) + 2*k.Writers {
		s.history[k.Setup.FirstSlot+indexer.Slot(i)] = &slotHistory{}
	}
	var err error
	for round := 0; round < k.Rounds && err == nil; round++ {
		if err = s.round(round); err != nil {
			err = fmt.Errorf("soak %q, seed %d, round %d: %w", k.Mode.Name, k.Seed, round, err)
		}
	}
	err = errors.Join(err, s.p.close())
	r := &s.result
	return SoakResult{r.batches.Load(), r.ends.Load(), r.answers.Load(), r.moving.Load(), r.rows.Load()}, err
}

func (s *soak) round(n int) error {
	rng := rand.New(rand.NewPCG(uint64(s.Seed), uint64(n)<<8|1))
	s.tracked = nil
	for range soakTracked {
		s.tracked = append(s.tracked, s.prompts[rng.IntN(len(s.prompts))])
	}
	for _, h := range s.history {
		h.begun.Store(0)
		h.acked.Store(0)
		h.states[0] = [soakTracked]uint64{}
	}
	for _, w := range s.writers {
		for i, r := range w.ranks {
			s.history[r.slot].states[0] = w.state(i)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.Round)
	defer cancel()
	failed := make(chan error, s.Writers+s.Readers)
	var wg sync.WaitGroup
	for _, w := range s.writers {
		wg.Go(func() {
			if err := w.run(ctx); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	for i := range s.Readers {
		wg.Go(func() {
			if err := s.read(ctx, rand.New(rand.NewPCG(uint64(s.Seed), uint64(n)<<8|uint64(i+2)))); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	wg.Wait()
	close(failed)
	for err := range failed {
		return err
	}
	if err := s.quiet(); err != nil {
		return fmt.Errorf("all quiet: %w", err)
	}
	return nil
}

// state is what a rank holds of each tracked prompt in the device tier.
func (w *soakWriter) state(holder int) (state [soakTracked]uint64) {
	for i, q := range w.s.tracked {
		for d, tiers := range w.told.Tiers(holder, q) {
			state[i] |= uint64(tiers&1) << d
		}
	}
	return state
}

func (w *soakWriter) run(ctx context.Context) error {
	for ctx.Err() == nil {
		for n := 1 + w.rng.IntN(8); n > 0; n-- {
			for _, s := range w.stream.Next(nil) {
				if err := w.step(&s); err != nil {
					return err
				}
			}
		}
		if err := w.flush(); err != nil {
			return err
		}
		for _, r := range w.ranks {
			if w.s.history[r.slot].full() {
				return nil
			}
		}
	}
	return nil
}

func (w *soakWriter) flush() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.w.Flush(ctx); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	for _, h := range w.dirty {
		h.acked.Store(h.begun.Load())
	}
	w.dirty = w.dirty[:0]
	return nil
}

// begin publishes a state that the next frame of a rank will bring about.
func (w *soakWriter) begin(holder int) {
	h := w.s.history[w.ranks[holder].slot]
	next := h.begun.Load() + 1
	h.states[next] = w.state(holder)
	h.begun.Store(next)
	w.dirty = append(w.dirty, h)
}

func (w *soakWriter) step(s *Step) error {
	r := w.ranks[s.Holder]
	if s.End != GoesOn {
		w.s.result.ends.Add(1)
		return w.end(s.Holder, r, s.End)
	}
	w.s.result.batches.Add(1)
	events := make([]model.Event, len(s.Batch))
	for i := range s.Batch {
		events[i] = s.Batch[i].event(r.hash)
		w.told.Apply(s.Holder, events[i])
		w.begin(s.Holder)
	}
	return r.send(events)
}

// end purges the slot and gives the rank a number: the same, or the one that is free
// the longest, which another writer may have had.
func (w *soakWriter) end(holder int, r *rank, how End) error {
	w.told.Remove(holder)
	w.begin(holder)
	if how == ClearFirst {
		if err := r.send([]model.Event{{Kind: model.Cleared, Tier: model.AllTiers}}); err != nil {
			return err
		}
	}
	if err := w.w.Flush(context.Background()); err != nil {
		return fmt.Errorf("flush: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.s.p.x.Purge(ctx, group, r.slot); err != nil {
		return fmt.Errorf("purge: %w", err)
	}
	if err := w.flush(); err != nil {
		return err
	}
	if how != SameSlot {
		w.s.mu.Lock()
		w.s.mu.free = append(w.s.mu.free, r.slot)
		r.slot = w.s.mu.free[0]
		w.s.mu.free = w.s.mu.free[1:]
		w.s.mu.Unlock()
	}
	if c, ok := r.tr.(interface{ Close() }); ok {
		c.Close()
	}
	w.s.p.begin(r, r.slot)
	r.w = w.w
	return nil
}

func (s *soak) read(ctx context.Context, rng *rand.Rand) error {
	r := s.p.x.NewReader()
	defer r.Close()
	from := make(map[indexer.Slot]int64, len(s.history))
	got := make(map[indexer.Slot]uint32, len(s.history))
	var out indexer.Scores
	for ctx.Err() == nil {
		i := rng.IntN(len(s.tracked))
		q := s.tracked[i][:1+rng.IntN(len(s.tracked[i]))]
		for slot, h := range s.history {
			from[slot] = h.acked.Load()
		}
		r.Match(indexer.Query{Group: group, Partition: s.p.setup.partition(q[0]), Locals: q}, &out)
		clear(got)
		for _, w := range out.Rows {
			if _, twice := got[w.Slot]; twice || s.history[w.Slot] == nil || w.Depth == 0 {
				return fmt.Errorf("query %d: row %+v (twice: %t)", q, w, twice)
			}
			got[w.Slot] = w.Depth
		}
		moving := false
		for slot, h := range s.history {
			to := h.begun.Load()
			all, some := ^uint64(0), uint64(0)
			for n := from[slot]; n <= to; n++ {
				all &= h.states[n][i]
				some |= h.states[n][i]
			}
			least, most := min(bits.TrailingZeros64(^all), len(q)), min(bits.TrailingZeros64(^some), len(q))
			if d := int(got[slot]); d < least || d > most {
				return fmt.Errorf("query %d: slot %d scores %d, justified are %d to %d (states %d to %d)", q, slot, d, least, most, from[slot], to)
			}
			if to > from[slot] {
				moving = true
				if got[slot] > 0 {
					s.result.rows.Add(1)
				}
			}
		}
		s.result.answers.Add(1)
		if moving {
			s.result.moving.Add(1)
		}
	}
	return nil
}

// quiet compares everything with the judges of all writers.
func (s *soak) quiet() error {
	if err := s.p.flush(); err != nil {
		return err
	}
	n := s.Mode.Workers * s.Mode.Ranks
	all := s.p.mode
	counts := model.Counts{}
	distinct := map[string]bool{}
	for i, w := range s.writers {
		j := &judge{mode: all, told: w.told}
		for h := range w.ranks {
			if err := j.checkClaimsOf(s.p, w.ranks[h], h); err != nil {
				return fmt.Errorf("rank %d (slot %d): %w", i*n+h, w.ranks[h].slot, err)
			}
			for _, c := range w.told.Claims(h) {
				distinct[key(c.Path)] = true
			}
		}
		c := w.told.Counts()
		for t := range counts.Held {
			counts.Held[t] += c.Held[t]
		}
	}
	for _, q := range s.prompts {
		got, err := s.p.scores(q)
		if err != nil {
			return fmt.Errorf("query %d: %w", q, err)
		}
		for i, w := range s.writers {
			for h := range w.ranks {
				if have, want := got[i*n+h], w.told.Walk(h, q); have != want {
					return fmt.Errorf("query %d: rank %d (slot %d) scores %v, want %v", q, i*n+h, w.ranks[h].slot, have, want)
				}
			}
		}
	}
	st := s.p.x.Stats()
	if st.Faults != 0 || st.Distinct != uint64(len(distinct)) {
		return fmt.Errorf("%d faults; %d distinct blocks counted, want %d", st.Faults, st.Distinct, len(distinct))
	}
	for t, n := range counts.Held {
		if st.Held[t] != uint64(n) {
			return fmt.Errorf("the index counts %d held in tier %d, want %d", st.Held[t], t, n)
		}
	}
	return nil
}
