package contract

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

func raceTests() []test {
	return []test{
		{"scores within what is justified", func(t *testing.T, open Open) { raceScores(t, open, 2*time.Second) }},
		{"a clear is gone when it is flushed", raceClear},
		{"dumps are one moment", raceDump},
		{"purges among readers", racePurge},
	}
}

// Race runs only the test of scores during writes, for as long as told.
func Race(t *testing.T, open func(t *testing.T) indexer.Index, d time.Duration) {
	raceScores(t, open, d)
}

const (
	racePaths = 6  // prompts
	raceLen   = 48 // blocks of a prompt: one word of bits
	raceFull  = 1<<raceLen - 1
)

// racePath gives prompts that share the first half, a quarter more in pairs, and
// then nothing.
func racePath(p int) []uint64 {
	out := make([]uint64, raceLen)
	for i := range out {
		switch {
		case i < raceLen/2:
			out[i] = uint64(i)
		case i < 3*raceLen/4:
			out[i] = uint64(1000*(p/2+1) + i)
		default:
			out[i] = uint64(100000*(p+1) + i)
		}
	}
	return out
}

// history is what one slot held of each prompt after each of its frames: bit i for
// block i. The writer fills an entry before it publishes its number.
type history struct {
	states [][racePaths]uint64
	begun  atomic.Int64 // last state that a frame under way may have brought about
	acked  atomic.Int64 // last state that is surely applied
}

// bounds returns, for a reader that asked between from and to, the longest prefix
// that was held all the time and the longest whose every block was held at some time.
func (h *history) bounds(p int, from, to int64) (lower, upper uint32) {
	all, some := uint64(raceFull), uint64(0)
	for i := from; i <= to; i++ {
		all &= h.states[i][p]
		some |= h.states[i][p]
	}
	return uint32(bits.TrailingZeros64(^all)), uint32(bits.TrailingZeros64(^some))
}

// raceScores has 4 writers of 4 slots each and 3 readers. A score must lie between
// what was held during the whole query and what was held at some moment of it, claim
// by claim; when all is quiet it must be what is held.
func raceScores(t *testing.T, open Open, d time.Duration) {
	if err := race(t, open, d); err != nil {
		t.Error(err)
	}
}

func race(t *testing.T, open Open, d time.Duration) error {
	const writers, slots, frames = 4, 4, 20_000
	b := newBench(t, open)
	defer b.close()
	all := make([]*history, writers*slots)
	for i := range all {
		all[i] = &history{states: make([][racePaths]uint64, frames+1)}
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var writing, reading sync.WaitGroup
	failed := make(chan error, writers+3)
	for w := range writers {
		writing.Go(func() {
			if err := raceWriter(ctx, b.x, all[w*slots:(w+1)*slots], w*slots, frames, int64(w)); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	var answers, moving atomic.Int64
	for i := range 3 {
		reading.Go(func() {
			if err := raceReader(ctx, b.x, all, int64(i), &answers, &moving); err != nil {
				failed <- err
				cancel()
			}
		})
	}
	writing.Wait()
	cancel()
	reading.Wait()
	close(failed)
	var errs []error
	for err := range failed {
		errs = append(errs, err)
	}
	for p := range racePaths {
		want := rows{}
		for s, h := range all {
			if lower, _ := h.bounds(p, h.begun.Load(), h.begun.Load()); lower > 0 {
				want[indexer.Slot(s)] = lower
			}
		}
		got, lower, err := match(b.r, indexer.Query{Group: group, Partition: partition, Locals: racePath(p)})
		if err := errors.Join(err, sameScores(got, lower, want, nil)); err != nil {
			errs = append(errs, fmt.Errorf("prompt %d when all is quiet: %w", p, err))
		}
	}
	if len(errs) == 0 && (answers.Load() == 0 || moving.Load() == 0) {
		errs = append(errs, fmt.Errorf("%d answers, %d of them during a write: the test has seen nothing", answers.Load(), moving.Load()))
	}
	if n := b.faults(); n != 0 {
		errs = append(errs, fmt.Errorf("%d faults", n))
	}
	return errors.Join(errs...)
}

// raceSlot is a slot as its writer knows it: for each prompt the run that names each
// block, or none.
type raceSlot struct {
	at    at
	track *tracker
	hist  *history
}

func raceWriter(ctx context.Context, x indexer.Index, hist []*history, first, frames int, seed int64) error {
	rng := rand.New(rand.NewPCG(uint64(seed), 7))
	w := x.NewWriter()
	defer w.Close()
	slots := make([]*raceSlot, len(hist))
	for i := range slots {
		slots[i] = &raceSlot{at: slot(indexer.Slot(first + i)), track: newTracker(), hist: hist[i]}
	}
	var builder indexer.FrameBuilder
	for ctx.Err() == nil {
		for n := rng.IntN(12); n >= 0; n-- {
			s := slots[rng.IntN(len(slots))]
			next := s.hist.begun.Load() + 1
			if next > int64(frames) {
				return nil
			}
			f := raceFrame(rng, s)
			s.hist.states[next] = raceState(s)
			s.hist.begun.Store(next)
			builder.Reset(indexer.Header{Group: group, Partition: partition, Slot: s.at.s, Sequence: uint64(next)})
			f.pack(&builder)
			if err := w.Write(builder.Frame()); err != nil {
				return fmt.Errorf("write: %w", err)
			}
		}
		fctx, cancel := context.WithTimeout(context.Background(), patience)
		err := w.Flush(fctx)
		cancel()
		if err != nil {
			return fmt.Errorf("flush: %w", err)
		}
		for _, s := range slots {
			s.hist.acked.Store(s.hist.begun.Load())
		}
	}
	return nil
}

// raceFrame draws one frame: a store along a prompt from some held block on, a drop
// of a stretch, or seldom a clear.
func raceFrame(rng *rand.Rand, s *raceSlot) *frame {
	st := stream{mix: mix{length: raceLen, longest: 20, slots: 1, symbols: 3}, rng: rng, track: s.track, seen: map[string]indexer.Query{}}
	for p := range racePaths {
		st.prompts = append(st.prompts, racePath(p))
	}
	c := s.track.copyOf(s.at)
	for {
		f := &frame{at: s.at}
		switch v := rng.IntN(100); {
		case v == 0:
			f.ops = append(f.ops, op{kind: indexer.OpClear, tier: indexer.AllTiers})
		case v < 50:
			o := st.drawStore(s.at, c, s.track.now+1)
			if o.tier = indexer.Device; o.start == 0 {
				o.parent.Anchor = 0
			}
			f.ops = append(f.ops, o)
		default:
			o := st.drawRanges(c, indexer.OpDrop)
			if o.tier != indexer.Device {
				continue
			}
			f.ops = append(f.ops, o)
		}
		if s.track.accept(f) {
			return f
		}
	}
}

// raceState is the blocks of each prompt that the slot holds by what its runs say.
func raceState(s *raceSlot) (state [racePaths]uint64) {
	for p := range racePaths {
		path := racePath(p)
		for _, r := range s.track.copyOf(s.at).runs {
			if r.live == 0 {
				continue
			}
			full := r.path(len(r.locals))
			for i := 0; i < len(full) && i < raceLen && full[i] == path[i]; i++ {
				if pos := i - len(r.above); pos >= 0 && r.tiers[pos] != 0 {
					state[p] |= 1 << i
				}
			}
		}
	}
	return state
}

func raceReader(ctx context.Context, x indexer.Index, all []*history, seed int64, answers, moving *atomic.Int64) error {
	rng := rand.New(rand.NewPCG(uint64(seed), 8))
	r := x.NewReader()
	defer r.Close()
	from := make([]int64, len(all))
	var out indexer.Scores
	for ctx.Err() == nil {
		p := rng.IntN(racePaths)
		path := racePath(p)[:1+rng.IntN(raceLen)]
		for s, h := range all {
			from[s] = h.acked.Load()
		}
		r.Match(indexer.Query{Group: group, Partition: partition, Locals: path}, &out)
		got, lower, err := collect(&out, len(path))
		if len(lower) > 0 {
			err = errors.Join(err, fmt.Errorf("tier rows %v of a device-only stream", lower))
		}
		if err != nil {
			return err
		}
		for s, h := range all {
			to := h.begun.Load()
			if to > from[s] {
				moving.Add(1)
			}
			lo, hi := h.bounds(p, from[s], to)
			n := uint32(len(path))
			if d := got[indexer.Slot(s)]; d < min(lo, n) || d > min(hi, n) {
				return fmt.Errorf("slot %d, prompt %d of %d blocks: depth %d, justified are %d to %d (states %d to %d)",
					s, p, n, d, min(lo, n), min(hi, n), from[s], to)
			}
			delete(got, indexer.Slot(s))
		}
		if len(got) > 0 {
			return fmt.Errorf("rows of slots that do not exist: %v", got)
		}
		answers.Add(1)
	}
	return nil
}
