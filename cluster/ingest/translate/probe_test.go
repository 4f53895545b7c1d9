package translate

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"testing"
)

// Every kernel finds in every bucket what the portable one finds.
func TestKernelsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, idBits := range []int{9, 16, 24, maxIDBits} {
		for _, n := range []int{1, 7, 100, 3000} {
			sc := NewScratch()
			sc.minIDBits = idBits
			var m blockMap
			m.init(NewMemory(), sc)
			keys := make([]uint64, n)
			for i := range keys {
				keys[i] = rng.Uint64() >> (rng.IntN(3) * 20)
			}
			m.reserve(n)
			m.reserveUnits(n/4 + 1)
			var u uint32
			for i, k := range keys {
				if i%4 == 0 {
					u = m.allocUnit()
				}
				id := u<<2 | uint32(i%4)
				m.unit(u)[1+i%4] = k
				home, tag := m.hash(k)
				m.place(home, tag|id)
			}
			for i := 0; i < n; i += 3 { // holes, and filters that outlive their entries
				if m.find(keys[i]) != 0 {
					m.erase(keys[i])
				}
			}
			ask := append([]uint64{0, ^uint64(0)}, keys...)
			for range n {
				ask = append(ask, rng.Uint64())
			}
			want := make([]probe, len(ask))
			m.probeGo(ask, want)
			for _, k := range allKernels() {
				sc.kernel = k.kernel
				got := make([]probe, len(ask))
				m.probe(ask, got)
				for i := range got {
					if got[i] != want[i] {
						t.Fatalf("%s, %d id bits, %d keys: probe of %#x is %+v, want %+v", k.name, idBits, n, ask[i], got[i], want[i])
					}
					if s, g := m.scan(uint64(want[i].home), want[i].tag), want[i].found; s != g {
						t.Fatalf("%s: scan of bucket %d is %#x, want %#x", k.name, want[i].home, s, g)
					}
				}
			}
			m.reset()
		}
	}
}

// Doubling without keys gives the table that entering every key again would give.
func TestDoubling(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		var m blockMap
		m.init(nil, NewScratch())
		m.reserve(300)
		n := int(float64(m.buckets*bucketSlots) * 0.9) // overfull, so that many are displaced
		m.reserveUnits(n/4 + 1)
		var keys []uint64
		var u uint32
		for i := range n {
			if i%4 == 0 {
				u = m.allocUnit()
				m.unit(u)[0] = 0xf << maskShift
			}
			k := rng.Uint64()
			keys = append(keys, k)
			m.unit(u)[1+i%4] = k
			home, tag := m.hash(k)
			m.place(home, tag|u<<2|uint32(i%4))
		}
		before := m.buckets
		m.double(bits.TrailingZeros32(m.tagMask) + 1)
		if m.buckets != 2*before || m.count != n {
			t.Fatalf("%d buckets, %d entries, want %d %d", m.buckets, m.count, 2*before, n)
		}
		if err := m.auditTable(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i, k := range keys {
			if id := m.find(k); id == 0 || m.key(id) != k {
				t.Fatalf("seed %d: key %d is lost", seed, i)
			}
		}
	}
}

// Memory is given back to the system and handed out without overlap.
func TestMemory(t *testing.T) {
	m := NewMemory()
	a := allocator{m}
	rng := rand.New(rand.NewPCG(5, 5))
	held := map[int][]uint32{}
	for i := range 3000 {
		if len(held) > 60 || i > 2900 {
			for k, w := range held {
				for _, x := range w {
					if x != uint32(k) {
						t.Fatalf("piece %d was overwritten by %d", k, x)
					}
				}
				a.freeWords(w)
				delete(held, k)
				break
			}
			continue
		}
		n := 1 + rng.IntN(40_000)
		if i%500 == 0 {
			n = 1_500_000 // more than a slab
		}
		w := a.words(n)
		for j := range w {
			if w[j] != 0 {
				t.Fatal("words are not zero")
			}
			w[j] = uint32(i)
		}
		held[i] = w
	}
	for k, w := range held {
		a.freeWords(w)
		delete(held, k)
	}
	if reserved, used := m.Reserved(); used != 0 || reserved > 2<<20 {
		t.Errorf("%d bytes reserved, %d used after everything was freed", reserved, used)
	}
}

// A translator gives everything back when it is cleared, and when it is closed.
func TestMemoryFollowsBlocks(t *testing.T) {
	mem := NewMemory()
	sc := NewScratch()
	var ts []*Translator
	for i := range 10 {
		tr := New(Config{Memory: mem, Scratch: sc, Partition: one})
		ts = append(ts, tr)
		tr.Begin(1)
		tr.Store(chain(0, uint64(i+1)<<32, 20_000))
		must(t, tr)
	}
	_, full := mem.Reserved()
	if per := float64(full) / 200_000; per > 24 {
		t.Errorf("%.1f bytes a block while filling", per)
	}
	for i, tr := range ts {
		tr.Begin(2)
		if i%2 == 0 {
			tr.Clear(0xff)
		} else {
			for b := range uint64(20) {
				tr.Remove(0, chain(0, uint64(i+1)<<32+b*1000, 1000).Engines)
			}
		}
		must(t, tr)
	}
	if _, used := mem.Reserved(); used > 150_000 {
		t.Errorf("%d of %d bytes used by ten empty translators", used, full)
	}
	for _, tr := range ts {
		tr.Close()
	}
	if _, used := mem.Reserved(); used != 0 {
		t.Errorf("%d bytes used after Close", used)
	}
}

func ExampleTranslator() {
	t := New(Config{Partition: one})
	defer t.Close()
	t.Begin(1)
	t.Store(chain(0, 100, 3)) // three blocks from the root
	t.Store(chain(102, 103, 1))
	out := t.Remove(0, []uint64{103, 102})
	fmt.Println(out.Dropped, t.Lookup(101) == HashHeld, t.Lookup(103) == HashUnknown)
	// Output: 2 true true
}
