package tree

import (
	"strings"
	"sync"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

func evictedOf(r *Reader, s indexer.Slot, path []uint64) string {
	var out strings.Builder
	for _, b := range r.Explain(indexer.Query{Locals: path}, s, nil) {
		switch {
		case b.Evicted:
			out.WriteByte('e')
		case b.Tiers != 0:
			out.WriteByte('h')
		default:
			out.WriteByte('-')
		}
	}
	return out.String()
}

// TestDeadChainsAreBounded churns through more than is remembered: the bounds hold, the
// last paths are known, the first are not, and all memory comes back.
func TestDeadChainsAreBounded(t *testing.T) {
	l := openTest(t, LaneConfig{})
	r := l.NewReader()
	defer r.Close()
	s := sender{l: l, slot: 7}
	const rounds = 3000
	length := func(i int) int { return 1 + i*37%300 }
	for i := range rounds {
		s.store(0, 0, indexer.Parent{}, sequence(uint64(i), length(i)))
		s.drop(0, 0, length(i))
		if d := &l.dead; d.bytes > l.deadLimit() || d.count > len(d.ring) || l.arena.live[forDead] < d.bytes {
			t.Fatalf("round %d: %d bytes in %d crypts, limit %d; accounted %d", i, d.bytes, d.count, l.deadLimit(), l.arena.live[forDead])
		}
	}
	for i := rounds - 1; i > rounds-10; i-- {
		if got, want := evictedOf(r, 7, sequence(uint64(i), length(i))), strings.Repeat("e", length(i)); got != want {
			t.Errorf("path %d: %s", i, got)
		}
	}
	if got := evictedOf(r, 7, sequence(1, length(1))); strings.Contains(got, "e") {
		t.Errorf("the second of %d paths is still known: %s", rounds, got)
	}
	// The longest chain there can be takes a crypt of its own.
	long := sequence(1, maxChain)
	s.store(0, 0, indexer.Parent{}, long)
	s.drop(0, 0, maxChain)
	if got := evictedOf(r, 7, long); got != strings.Repeat("e", maxChain) {
		t.Errorf("longest chain: %s", got)
	}
	if !l.makeRoom(1) || l.dead.count != 0 || l.dead.bytes != 0 || l.makeRoom(1) {
		t.Errorf("memory is needed, but %d crypts are kept", l.dead.count)
	}
	l.reclaim(reclaimBudget)
	if n := l.arena.live[forDead]; n != 0 {
		t.Errorf("%d bytes are left", n)
	}
	if got := evictedOf(r, 7, long); strings.Contains(got, "e") {
		t.Errorf("known without memory: %s", got)
	}
	s.store(0, 0, indexer.Parent{}, long[:9])
	s.drop(0, 0, 9)
	if got := evictedOf(r, 7, long[:9]); got != "eeeeeeeee" {
		t.Errorf("after everything was given up: %s", got)
	}
}

// TestNoEvictionLog: without a log nothing is kept.
func TestNoEvictionLog(t *testing.T) {
	l := openTest(t, LaneConfig{EvictionLog: -1})
	r := l.NewReader()
	defer r.Close()
	s := sender{l: l, slot: 7}
	path := sequence(1, 50)
	for range 3 {
		s.store(0, 0, indexer.Parent{}, path)
		s.drop(0, 20, 30)
		s.drop(0, 0, 20)
	}
	if got := evictedOf(r, 7, path); got != strings.Repeat("-", 50) || l.arena.live[forDead] != 0 {
		t.Errorf("%s, %d bytes", got, l.arena.live[forDead])
	}
}

// TestPlacesUsedAgain gives the memory of a dropped path to another path, by a slot that
// drops nothing and to one that does: neither is told what was on the first.
func TestPlacesUsedAgain(t *testing.T) {
	l := openTest(t, LaneConfig{})
	r := l.NewReader()
	defer r.Close()
	one, two := sender{l: l, slot: 1}, sender{l: l, slot: 2}
	used := map[ref]bool{}
	again := 0
	for i := range uint64(200) {
		path := sequence(i, 20)
		one.store(0, 0, indexer.Parent{}, path)
		c := l.pieces(l.findRun(l.copyOf(l.treeList[0], 1), 0))[0].chain()
		if used[c] {
			again++
		}
		used[c] = true
		if got := evictedOf(r, 1, path); got != strings.Repeat("h", 20) {
			t.Fatalf("round %d: %s", i, got)
		}
		one.drop(0, 0, 20)
		for range 4 {
			l.reclaim(reclaimBudget)
		}
		two.store(0, 0, indexer.Parent{}, sequence(1000+i, 20))
		if got := evictedOf(r, 1, sequence(1000+i, 20)); got != strings.Repeat("-", 20) {
			t.Fatalf("round %d, what another slot holds in that place: %s", i, got)
		}
		two.clear()
		for range 4 {
			l.reclaim(reclaimBudget)
		}
	}
	if again < 100 {
		t.Fatalf("only %d places were used again", again)
	}
}

// TestExplainDuringChurn asks while the lane drops and cuts: a path that the slot never
// held is never evicted, whatever is half written.
func TestExplainDuringChurn(t *testing.T) {
	l := openTest(t, LaneConfig{EvictionLog: 32})
	const rounds = 4000
	head := sequence(1, 10)
	never := append(append([]uint64{}, head...), sequence(99, 40)...)
	var group sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		r := l.NewReader()
		group.Go(func() {
			defer r.Close()
			for {
				select {
				case <-stop:
					return
				default:
				}
				// Slot 2 holds and drops below the head, slot 3 never does.
				if got := evictedOf(r, 3, never); strings.Contains(got, "e") {
					t.Errorf("a slot that dropped nothing: %s", got)
					return
				}
				if got := evictedOf(r, 2, never); strings.Contains(got[10:], "e") {
					t.Errorf("a path that the slot never held: %s", got)
					return
				}
			}
		})
	}
	two, three := sender{l: l, slot: 2}, sender{l: l, slot: 3}
	three.store(0, 0, indexer.Parent{}, head)
	for i := range rounds {
		n := 5 + i%35
		path := append(append([]uint64{}, head...), sequence(uint64(100+i), n)...)
		two.store(0, 0, indexer.Parent{}, path)
		two.drop(0, 10+n/2, n-n/2)
		three.store(1, 0, indexer.Parent{}, never)
		two.drop(0, 0, 10+n/2)
		three.clear()
		three.store(0, 0, indexer.Parent{}, head)
	}
	close(stop)
	group.Wait()
}

// TestHalfWrittenEntry stops a drop between the two words of its entry: the old place
// with the new slot is nobody's.
func TestHalfWrittenEntry(t *testing.T) {
	l := openTest(t, LaneConfig{})
	s := sender{l: l, slot: 2}
	s.store(0, 0, indexer.Parent{}, sequence(1, 10))
	s.drop(0, 4, 6)
	found := func(slot uint32) (n int) {
		l.stretches(slot, func(ref, uint32, uint32, uint32) { n++ })
		return n
	}
	if found(2) != 1 || found(3) != 0 {
		t.Fatalf("%d entries of the slot that dropped, %d of another", found(2), found(3))
	}
	l.drops.begin(l.treeList[0], 3)
	old := l.evicted.ring[0].Load()
	l.evicted.ring[0].Store(old&^0xffffffff | 3)
	if found(3) != 0 {
		t.Error("half an entry was taken for a whole one")
	}
	l.evicted.ring[0].Store(old)
	l.drops.end()
	if found(2) != 1 {
		t.Error("the entry is gone")
	}
}
