package translate

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// Thousands of blocks come, go in odd orders and come again, with few bits of tag:
// chunks are given back and taken again, tables grow and are fitted, and candidates
// are often false. The engine's hashes name prefixes, so a set of hashes is the
// whole truth.
func TestChurn(t *testing.T) {
	steps := 500
	if *long {
		steps = 5000
	}
	for _, idBits := range []int{0, maxIDBits} {
		for _, k := range allKernels() {
			t.Run(fmt.Sprintf("%s/ids=%d", k.name, idBits), func(t *testing.T) {
				t.Parallel()
				churn(t, k.kernel, idBits, steps)
			})
		}
	}
}

func churn(t *testing.T, k kernel, idBits, steps int) {
	rng := rand.New(rand.NewPCG(7, uint64(idBits)))
	o := newOwner()
	sc := NewScratch()
	sc.kernel, sc.minIDBits = k, idBits
	tr := New(Config{Memory: NewMemory(), Scratch: sc, Partition: func(f uint64) indexer.PartitionID { return indexer.PartitionID(f % 5) }})
	type path struct{ hashes []uint64 } // held, root first; the hash of a block is its path's
	var paths []path
	truth := map[uint64]indexer.TierMask{}
	var held []uint64
	target := 4000
	for step := range steps {
		tr.Begin(uint64(step))
		if step%150 == 149 {
			target = []int{9000, 300, 5000}[step/150%3]
		}
		// Store a continuation of a path, or a new one; parents may be evicted.
		var p path
		if len(paths) > 0 && rng.IntN(3) > 0 {
			from := paths[rng.IntN(len(paths))].hashes
			p.hashes = append(p.hashes, from[:1+rng.IntN(len(from))]...)
		}
		k := len(p.hashes)
		for k > 0 && truth[p.hashes[k-1]] == 0 {
			k-- // an engine stores below what it holds
		}
		p.hashes = p.hashes[:k]
		var prev uint64
		if k > 0 {
			prev = p.hashes[k-1]
		}
		tier := indexer.Tier(max(0, rng.IntN(12)-8))
		s := Store{Tier: tier, HasParent: k > 0, Parent: prev}
		again := 0
		if k > 0 && rng.IntN(4) == 0 {
			again = min(k-1, rng.IntN(20)) // announce some of it again
			if s.HasParent = k-again-1 >= 0; s.HasParent {
				s.Parent = p.hashes[k-again-1]
			}
			s.Engines = append(s.Engines, p.hashes[k-again:]...)
		}
		for range 1 + rng.IntN(120) {
			h := mix64(prev*31 + rng.Uint64N(50) + uint64(len(p.hashes))<<48)
			p.hashes = append(p.hashes, h)
			s.Engines = append(s.Engines, h)
			prev = h
		}
		for _, h := range s.Engines {
			s.Content.Locals = append(s.Content.Locals, h^1)
		}
		if s.HasParent && truth[s.Parent] == 0 {
			tr.End(o.apply)
			continue
		}
		if out := tr.Store(s); out.Err != nil {
			// Short hashes of this generator may meet twice on one path.
			if !errors.Is(out.Err, ErrRejected) {
				t.Fatal(out.Err)
			}
			t.Fatalf("step %d: %v", step, out.Err)
		}
		for _, h := range s.Engines {
			if truth[h] == 0 {
				held = append(held, h)
			}
			truth[h] |= tier.Mask()
		}
		paths = append(paths, p)
		if len(paths) > 300 {
			paths = paths[100:]
		}
		// Evict: a stretch of the oldest, backwards, or hashes at random.
		for len(truth) > target {
			var gone []uint64
			n := min(1+rng.IntN(700), len(held))
			if rng.IntN(3) == 0 {
				rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
			}
			for i := n - 1; i >= 0; i-- {
				gone = append(gone, held[i])
			}
			if rng.IntN(4) == 0 {
				gone = append(gone, gone[0], rng.Uint64())
			}
			held = append(held[:0], held[n:]...)
			for tier := range indexer.Tier(indexer.NumTiers) {
				want := 0
				for i, h := range gone {
					if i < n && truth[h].Has(tier) {
						want++
					}
				}
				if out := tr.Remove(tier, gone); out.Dropped != want {
					t.Fatalf("step %d: %d dropped, want %d", step, out.Dropped, want)
				}
			}
			for _, h := range gone {
				delete(truth, h)
			}
		}
		if err := tr.End(o.apply); err != nil {
			t.Fatal(err)
		}
		if step%100 == 0 || step == steps-1 {
			checkTruth(t, tr, o, truth)
		}
	}
	if n := len(tr.blocks.chunks) - tr.blocks.holes; n*chunkUnits > len(truth)+10*chunkUnits {
		t.Errorf("%d chunks for %d blocks", n, len(truth))
	}
	tr.Begin(1 << 30)
	tr.Clear(indexer.AllTiers)
	if err := tr.End(o.apply); err != nil {
		t.Fatal(err)
	}
	checkTruth(t, tr, o, map[uint64]indexer.TierMask{})
	tr.Close()
}

func checkTruth(t *testing.T, tr *Translator, o *owner, truth map[uint64]indexer.TierMask) {
	t.Helper()
	if err := tr.audit(); err != nil {
		t.Fatal(err)
	}
	if int(tr.Stats().Mapped) != len(truth) || o.names() != len(truth) {
		t.Fatalf("%d mapped, %d names, want %d", tr.Stats().Mapped, o.names(), len(truth))
	}
	for h, tiers := range truth {
		id := tr.blocks.find(h)
		if id == 0 || tr.blocks.tiers(id) != tiers {
			t.Fatalf("hash %#x: block %d, want tiers %b", h, id, tiers)
		}
	}
	perTier := [indexer.NumTiers]int{}
	for _, m := range o.covered() {
		for tier := range perTier {
			if m.Has(indexer.Tier(tier)) {
				perTier[tier]++
			}
		}
	}
	for tier, n := range tr.Stats().Held {
		if perTier[tier] != int(n) {
			t.Fatalf("tier %d: %d covered, held %d", tier, perTier[tier], n)
		}
	}
}
