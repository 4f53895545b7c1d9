package translate

import (
	"errors"
	"maps"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"pgregory.net/rapid"
)

// bench of one translator, its model and an owner of its frames.
type world struct {
	t     *Translator
	model *model
	owner *owner
	seq   uint64
	seen  map[uint64]bool
}

func newWorld(cfg Config) *world {
	cfg.Partition = func(first uint64) indexer.PartitionID { return indexer.PartitionID(first % 3) }
	w := &world{t: New(cfg), model: newModel(), owner: newOwner(), seen: map[uint64]bool{}}
	w.model.count, w.model.lora, w.model.salt = cfg.CountCopies, cfg.Lora, cfg.Salt
	return w
}

type tb interface {
	Helper()
	Fatalf(format string, args ...any)
}

// batch runs events as one batch, and compares everything afterwards.
func (w *world) batch(t tb, events ...func(tb)) {
	t.Helper()
	w.seq++
	w.t.Begin(w.seq)
	for _, e := range events {
		if !w.model.collided {
			e(t)
		}
	}
	if err := w.t.End(w.owner.apply); err != nil {
		t.Fatalf("sequence %d: %v", w.seq, err)
	}
	if !w.model.collided {
		w.compare(t)
	}
}

func (w *world) compare(t tb) {
	t.Helper()
	want, got := w.model.covered(), w.owner.covered()
	if !maps.Equal(want, got) {
		for p, m := range want {
			if got[p] != m {
				t.Fatalf("path %x: tiers %04b, want %04b", p, got[p], m)
			}
		}
		for p, m := range got {
			if want[p] != m {
				t.Fatalf("path %x: tiers %04b, want %04b", p, m, want[p])
			}
		}
	}
	for h := range w.seen {
		if g, wnt := w.t.Lookup(h), w.model.state(h); g != wnt {
			t.Fatalf("hash %d: state %d, want %d", h, g, wnt)
		}
	}
	s := w.t.Stats()
	if int(s.Mapped) != len(w.model.claims) || w.owner.names() != len(w.model.claims) {
		t.Fatalf("%d mapped, %d names, want %d", s.Mapped, w.owner.names(), len(w.model.claims))
	}
	var held [indexer.NumTiers]uint64
	for _, c := range w.model.claims {
		for tier := range held {
			if c.tiers.Has(indexer.Tier(tier)) {
				held[tier]++
			}
		}
	}
	if s.Held != held || int(s.Orphans) != len(w.model.waiting) || int(s.Tainted) != len(w.model.tainted) {
		t.Fatalf("held %v orphans %d tainted %d, want %v %d %d", s.Held, s.Orphans, s.Tainted,
			held, len(w.model.waiting), len(w.model.tainted))
	}
	if err := w.t.audit(); err != nil {
		t.Fatalf("audit: %v", err)
	}
}

func (w *world) store(t tb, s Store) {
	for _, h := range s.Engines {
		w.seen[h] = true
	}
	out := w.t.Store(s)
	if s.Placeholder {
		w.model.placeholder(s)
		return
	}
	ok := w.model.store(s)
	if w.model.collided {
		return
	}
	if ok != (out.Err == nil) || (out.Err != nil && !errors.Is(out.Err, ErrRejected)) {
		t.Fatalf("store %+v: error %v, want accepted=%v", s, out.Err, ok)
	}
	// Orphans that attach, or turn out to be tainted, count on top.
	if n := out.Stored + out.Attached + out.Claimed + out.Trimmed + out.Orphaned + out.Uncredited; n < len(s.Engines) {
		t.Fatalf("store %+v: %d of %d blocks accounted for: %+v", s, n, len(s.Engines), out)
	}
}

func (w *world) remove(tier indexer.Tier, engines []uint64) {
	w.t.Remove(tier, engines)
	w.model.remove(tier, engines)
}

func (w *world) clear(tier indexer.Tier) {
	w.t.Clear(tier)
	w.model.clear(tier)
}

// Hashes and parents at random, most of them contradictions sooner or later.
func TestRandomAdversarial(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(Config{CountCopies: rapid.Bool().Draw(t, "copies"), AwaitAck: false})
		w.t.scratch.minIDBits = rapid.SampledFrom([]int{0, 28, maxIDBits}).Draw(t, "idbits")
		kernels := allKernels()
		w.t.scratch.kernel = kernels[rapid.IntRange(0, len(kernels)-1).Draw(t, "kernel")].kernel
		hashes := rapid.SampledFrom([]int{4, 12, 40, 400}).Draw(t, "hashes")
		clean := rapid.Bool().Draw(t, "clean") // hashes name paths, mostly
		for range rapid.IntRange(1, 25).Draw(t, "batches") {
			var events []func(tb)
			for range rapid.IntRange(1, 4).Draw(t, "events") {
				events = append(events, drawEvent(t, w, hashes, clean))
			}
			w.batch(t, events...)
		}
	})
}

func drawHash(t *rapid.T, hashes int) uint64 {
	return spread(uint64(rapid.IntRange(0, hashes-1).Draw(t, "hash")))
}

// spread makes hash-like values of small numbers; 0 stays 0, which is a hash too.
func spread(x uint64) uint64 { return x * 0xd6e8feb86659fd93 }

func drawEvent(t *rapid.T, w *world, hashes int, clean bool) func(tb) {
	tier := indexer.Tier(rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2, 3}).Draw(t, "tier"))
	switch k := rapid.IntRange(0, 99).Draw(t, "kind"); {
	case k < 1:
		return func(tb) { w.clear(indexer.AllTiers) }
	case k < 2:
		return func(tb) { w.clear(tier) }
	case k < 35:
		var hs []uint64
		first := rapid.IntRange(0, hashes-1).Draw(t, "first")
		down := rapid.Bool().Draw(t, "down")
		for i := range rapid.IntRange(1, 12).Draw(t, "n") {
			switch {
			case rapid.IntRange(0, 9).Draw(t, "odd") == 0:
				hs = append(hs, drawHash(t, hashes))
			case down:
				hs = append(hs, spread(uint64(max(0, first-i))))
			default:
				hs = append(hs, spread(uint64(min(hashes-1, first+i))))
			}
		}
		return func(tb) { w.remove(tier, hs) }
	}
	s := Store{Tier: tier, HasParent: true}
	first := rapid.IntRange(0, hashes-1).Draw(t, "first")
	n := rapid.IntRange(1, 14).Draw(t, "n")
	wild := !clean || rapid.IntRange(0, 19).Draw(t, "wild") == 0
	for i := range n {
		h := min(first+i, hashes-1)
		if wild && rapid.IntRange(0, 5).Draw(t, "odd") == 0 {
			h = rapid.IntRange(0, hashes-1).Draw(t, "h")
		}
		s.Engines = append(s.Engines, spread(uint64(h)))
		s.Content.Tokens = append(s.Content.Tokens, uint32(h%5), uint32(h%3))
	}
	if clean && first+n > hashes {
		s.Engines = s.Engines[:hashes-first]
		s.Content.Tokens = s.Content.Tokens[:2*(hashes-first)]
	}
	s.Content.BlockSize, s.Content.Window = 2, 2
	// Clean streams: hash i hangs below hash i-1, every tenth is a root block.
	switch {
	case wild && rapid.IntRange(0, 3).Draw(t, "root") == 0:
		s.HasParent = false
	case wild && rapid.Bool().Draw(t, "anyparent"):
		s.Parent = drawHash(t, hashes)
	case first == 0:
		s.HasParent = false
	default:
		s.Parent = spread(uint64(first - 1))
	}
	if rapid.IntRange(0, 19).Draw(t, "ns") == 0 {
		s.Lora = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "lora")
		s.Salt = rapid.SampledFrom([]string{"", "x"}).Draw(t, "salt")
	}
	if rapid.IntRange(0, 19).Draw(t, "ph") == 0 {
		s.Placeholder, s.HasParent, s.Content = true, false, blockhash.Content{}
	}
	return func(t tb) { w.store(t, s) }
}
