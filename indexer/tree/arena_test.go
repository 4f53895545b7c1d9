package tree

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func openArena(t *testing.T) *arena {
	var a arena
	if err := a.open(64 << 20); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.close() })
	return &a
}

// TestArena allocates and frees at random; no two pieces may overlap, and all pages
// come back.
func TestArena(t *testing.T) {
	a := openArena(t)
	rng := rand.New(rand.NewPCG(1, 1))
	type piece struct {
		r     ref
		units uint32
		mark  uint64
	}
	var live []piece
	fill := func(p piece) {
		w := a.words(p.r, int(p.units)*2)
		for i := range w {
			w[i] = p.mark
		}
	}
	whole := func(p piece) bool {
		return !slices.ContainsFunc(a.words(p.r, int(p.units)*2), func(w uint64) bool { return w != p.mark })
	}
	for i := range 20000 {
		if len(live) > 0 && (rng.IntN(2) == 0 || len(live) > 900) {
			k := rng.IntN(len(live))
			if !whole(live[k]) {
				t.Fatalf("step %d: a piece of %d units was overwritten", i, live[k].units)
			}
			a.release(live[k].r, live[k].units, forContent)
			live[k] = live[len(live)-1]
			live = live[:len(live)-1]
			continue
		}
		p := piece{units: 1 + rng.Uint32N(1<<rng.IntN(13)), mark: rng.Uint64()}
		if rng.IntN(200) == 0 {
			p.units = maxClass + rng.Uint32N(9000)
		}
		if !a.room(uint64(p.units) * unitBytes) {
			t.Fatalf("step %d: no room for %d units", i, p.units)
		}
		p.r = a.alloc(p.units, forContent)
		if p.r == 0 {
			t.Fatal("ref 0 was handed out")
		}
		fill(p)
		live = append(live, p)
	}
	for _, p := range live {
		if !whole(p) {
			t.Fatalf("a piece of %d units was overwritten", p.units)
		}
		a.release(p.r, p.units, forContent)
	}
	if a.live[forContent] != 0 || a.free != a.top-1 {
		t.Errorf("%d bytes live, %d of %d pages free", a.live[forContent], a.free, a.top-1)
	}
	for range 10000 {
		a.shrink(4)
	}
	if limit := uint64(2*keepPages) * pageBytes; a.reserved() > limit {
		t.Errorf("%d bytes are kept of an empty arena, want at most %d", a.reserved(), limit)
	}
}

func TestSizeClasses(t *testing.T) {
	for u := uint32(1); u <= maxClass; u++ {
		got := roundUp(u)
		if got < u || got > u+u/8+1 {
			t.Fatalf("%d units get %d", u, got)
		}
		if roundUp(got) != got {
			t.Fatalf("%d units get %d, which get %d", u, got, roundUp(got))
		}
	}
	for c, size := range classUnits {
		if size == 0 {
			break
		}
		n := uint32(classPages[c])
		if n == 0 || size > n*pageUnits || waste(size, n)*8 > n*pageUnits {
			t.Errorf("class of %d units: spans of %d pages waste %d units", size, n, waste(size, n))
		}
	}
}

func TestNoRoom(t *testing.T) {
	var a arena
	if err := a.open(commitPages * pageBytes * 2); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	n := 0
	for a.room(1 << 20) {
		a.alloc(1<<20/unitBytes, forContent)
		if n++; n > 64 {
			t.Fatalf("%d MiB fit into 32", n)
		}
	}
	if a.alloc(16, forContent) == 0 { // what room kept back is still there
		t.Error("no reserve left")
	}
}

func TestSlotIndex(t *testing.T) {
	l, err := OpenLane(LaneConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	rng := rand.New(rand.NewPCG(2, 2))
	entries := make([]uint64, 100)
	ix := l.newIndex(nil, uint32(len(entries)), forCoverage)
	where := map[uint32]int{}
	for i := range 20000 {
		s := rng.Uint32N(150) * 64
		if at, ok := where[s]; ok {
			if got := l.indexFind(ix, s, entries); got != at {
				t.Fatalf("step %d: slot %d found at %d, is at %d", i, s, got, at)
			}
			l.indexDelete(ix, uint32(at), entries)
			entries[at] = 0
			delete(where, s)
			continue
		}
		if got := l.indexFind(ix, s, entries); got >= 0 {
			t.Fatalf("step %d: slot %d found at %d, is not there", i, s, got)
		}
		if at := slices.Index(entries, 0); at >= 0 {
			entries[at] = pack(1, s)
			l.indexPut(ix, s, uint32(at))
			where[s] = at
		}
	}
}

func TestSpans(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		var spans []span
		var want [64]bool
		for range 40 {
			from := rng.Uint32N(63)
			to := from + 1 + rng.Uint32N(63-from)
			add := rng.IntN(2) == 0
			for i := from; i < to; i++ {
				want[i] = add
			}
			if add {
				spans = addSpan(spans, from, to)
			} else {
				spans = cutSpan(spans, from, to)
			}
			var got [64]bool
			end := uint32(0)
			for i, s := range spans {
				if s.from() >= s.to() || i > 0 && s.from() <= end {
					t.Fatalf("spans %v are not apart", spans)
				}
				end = s.to()
				for j := s.from(); j < s.to(); j++ {
					got[j] = true
				}
			}
			if got != want {
				t.Fatalf("spans %v, want %v", spans, want)
			}
		}
	}
}

// TestShrinkAtEveryEnd gives pages back with the end of the arena at every place
// within a word of the free set.
func TestShrinkAtEveryEnd(t *testing.T) {
	for extra := range uint32(130) {
		a := openArena(t)
		r := a.alloc((1000+extra)*pageUnits, forContent)
		if !a.room(0) {
			t.Fatal("no room")
		}
		a.release(r, (1000+extra)*pageUnits, forContent)
		for range 100 {
			a.shrink(4)
		}
		if a.reserved() > 2*keepPages*pageBytes {
			t.Errorf("%d pages: %d bytes kept", 1000+extra, a.reserved())
		}
		if err := a.close(); err != nil {
			t.Fatal(err)
		}
	}
}
