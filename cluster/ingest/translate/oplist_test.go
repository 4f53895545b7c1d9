package translate

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// opEvent is one stored or removed event of the common op list.
type opEvent struct {
	worker    int
	removed   bool
	hasParent bool
	parent    uint64
	keys      []uint64
	contents  []uint64
}

type opList struct {
	events                  []opEvent
	storedBlocks, remBlocks int
	checksum                uint64
	known                   bool // made from the public conversation trace
}

func mix64(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}

// lru is a worker's cache: insertion and touching in order of recency.
type lru struct {
	at         map[uint64]int32
	key        []uint64
	prev, next []int32
	free       []int32
}

func newLRU() *lru {
	return &lru{at: map[uint64]int32{}, key: []uint64{0}, prev: []int32{0}, next: []int32{0}}
}

func (l *lru) unlink(i int32) {
	l.next[l.prev[i]], l.prev[l.next[i]] = l.next[i], l.prev[i]
}

func (l *lru) touch(k uint64) {
	i, ok := l.at[k]
	if ok {
		l.unlink(i)
	} else {
		if n := len(l.free); n > 0 {
			i, l.free = l.free[n-1], l.free[:n-1]
		} else {
			i = int32(len(l.key))
			l.key, l.prev, l.next = append(l.key, 0), append(l.prev, 0), append(l.next, 0)
		}
		l.key[i] = k
		l.at[k] = i
	}
	l.prev[i], l.next[i] = l.prev[0], 0
	l.next[l.prev[0]], l.prev[0] = i, i
}

func (l *lru) evict() uint64 {
	i := l.next[0]
	k := l.key[i]
	l.unlink(i)
	delete(l.at, k)
	l.free = append(l.free, i)
	return k
}

// loadTrace returns the hash ids of every request: of the public conversation
// trace when it lies beside the repository, else of a made one of that shape.
func loadTrace(tb testing.TB) (trace [][]uint64, known bool) {
	f, err := os.Open("../../../../shared/traces/conversation_trace.jsonl")
	if err != nil {
		return makeTrace(4000), false
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		var line struct {
			IDs []uint64 `json:"hash_ids"`
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			tb.Fatal(err)
		}
		trace = append(trace, line.IDs)
	}
	return trace, true
}

// makeTrace makes conversations of several turns that share their first block.
func makeTrace(requests int) [][]uint64 {
	rng := uint64(1)
	next := func(n uint64) uint64 {
		rng++
		return mix64(rng) % n
	}
	var trace, open [][]uint64
	fresh := uint64(1)
	for len(trace) < requests {
		req := []uint64{0}
		if len(open) > 0 && next(3) > 0 {
			at := next(uint64(len(open)))
			req = append(req[:0], open[at]...)
			open[at] = open[len(open)-1]
			open = open[:len(open)-1]
		}
		for range 2 + next(30) {
			req = append(req, fresh)
			fresh++
		}
		trace = append(trace, req)
		if len(req) < 200 {
			open = append(open, append([]uint64(nil), req...))
		}
	}
	return trace
}

// buildOpList makes the stored and removed events of the common op list.
func buildOpList(tb testing.TB, d, w, capacity int) *opList {
	trace, known := loadTrace(tb)
	caches := make([]*lru, w)
	for i := range caches {
		caches[i] = newLRU()
	}
	l := &opList{known: known}
	add := func(x uint64) { l.checksum = mix64(l.checksum ^ x) }
	var raw []uint64
	for line, ids := range trace {
		for s := range d {
			cp := uint64((s + line) % d)
			worker := (line*d + s) % w
			cache := caches[worker]
			raw = raw[:0]
			for _, id := range ids {
				for j := range uint64(4) {
					raw = append(raw, (id+cp*10_000_000)*4+j)
				}
			}
			k := 0
			for k < len(raw) {
				if _, ok := cache.at[raw[k]]; !ok {
					break
				}
				k++
			}
			for _, x := range []uint64{0, uint64(worker), 0, 0, uint64(len(raw))} {
				add(x)
			}
			for _, r := range raw {
				add(mix64(r))
			}
			if k < len(raw) {
				e := opEvent{worker: worker, hasParent: k > 0}
				if k > 0 {
					e.parent = mix64(mix64(raw[k-1]))
				}
				has := uint64(0)
				if e.hasParent {
					has = 1
				}
				for _, x := range []uint64{1, uint64(worker), has, e.parent, uint64(len(raw) - k)} {
					add(x)
				}
				for _, r := range raw[k:] {
					c := mix64(r)
					e.keys, e.contents = append(e.keys, mix64(c)), append(e.contents, c)
					add(mix64(c))
					add(c)
				}
				l.storedBlocks += len(e.keys)
				l.events = append(l.events, e)
			}
			for i := len(raw) - 1; i >= 0; i-- {
				cache.touch(raw[i])
			}
			if len(cache.at) > capacity {
				e := opEvent{worker: worker, removed: true}
				for len(cache.at) > capacity {
					e.keys = append(e.keys, mix64(mix64(cache.evict())))
				}
				for _, x := range []uint64{2, uint64(worker), 0, 0, uint64(len(e.keys))} {
					add(x)
				}
				for _, k := range e.keys {
					add(k)
				}
				l.remBlocks += len(e.keys)
				l.events = append(l.events, e)
			}
		}
	}
	// One piece of memory in the order of use, as a receive buffer would be.
	total := 0
	for i := range l.events {
		total += len(l.events[i].keys) + len(l.events[i].contents)
	}
	flat := make([]uint64, 0, total)
	for i := range l.events {
		e := &l.events[i]
		n := len(flat)
		flat = append(flat, e.keys...)
		e.keys = flat[n:len(flat):len(flat)]
		if n = len(flat); e.contents != nil {
			flat = append(flat, e.contents...)
			e.contents = flat[n:len(flat):len(flat)]
		}
	}
	return l
}

// run plays the list into translators, each event a batch of its own.
func (l *opList) run(ts []*Translator, emit func(indexer.Frame) error) {
	for i := range l.events {
		e := &l.events[i]
		t := ts[e.worker]
		t.Begin(uint64(i))
		if e.removed {
			t.Remove(indexer.Device, e.keys)
		} else {
			t.Store(Store{HasParent: e.hasParent, Parent: e.parent, Engines: e.keys,
				Content: blockhash.Content{Locals: e.contents}})
		}
		if err := t.End(emit); err != nil {
			panic(err)
		}
	}
}

func newFleet(n int, mem *Memory, k kernel) []*Translator {
	s := NewScratch()
	s.kernel = k
	ts := make([]*Translator, n)
	for i := range ts {
		ts[i] = New(Config{Slot: indexer.Slot(i), BlockSize: 16, Memory: mem, Scratch: s,
			Partition: func(first uint64) indexer.PartitionID { return indexer.PartitionID(first >> 56) }})
	}
	return ts
}

// The list is the one that other indexes were measured on.
func TestOpListIsTheCommonOne(t *testing.T) {
	l := buildOpList(t, 1, 16, 2048)
	if !l.known {
		t.Log("public trace not present: using a made one")
		return
	}
	if l.checksum != 0x8d1a00e9a331b372 || l.storedBlocks != 1_093_852 || l.remBlocks != 1_061_084 {
		t.Fatalf("checksum %#x, %d stored, %d removed", l.checksum, l.storedBlocks, l.remBlocks)
	}
}

// Every block that the list stores and removes is applied, and the owner of the
// frames agrees with what the caches hold at the end.
func TestOpListFrames(t *testing.T) {
	l := buildOpList(t, 1, 16, 2048)
	if !*long {
		l.events = l.events[:len(l.events)/5]
	}
	ts := newFleet(16, NewMemory(), bestKernel())
	owners := make([]*owner, len(ts))
	for i := range owners {
		owners[i] = newOwner()
	}
	l.run(ts, func(f indexer.Frame) error { return owners[f.Header().Slot].apply(f) })
	want := make([]map[uint64]bool, len(ts))
	for i := range want {
		want[i] = map[uint64]bool{}
	}
	for _, e := range l.events {
		for _, k := range e.keys {
			if e.removed {
				delete(want[e.worker], k)
			} else {
				want[e.worker][k] = true
			}
		}
	}
	for i, tr := range ts {
		if err := tr.audit(); err != nil {
			t.Fatalf("worker %d: %v", i, err)
		}
		s := tr.Stats()
		if int(s.Mapped) != len(want[i]) || owners[i].names() != len(want[i]) || len(owners[i].covered()) != len(want[i]) {
			t.Fatalf("worker %d: %d mapped, %d names, want %d", i, s.Mapped, owners[i].names(), len(want[i]))
		}
		for k := range want[i] {
			if tr.Lookup(k) != HashHeld {
				t.Fatalf("worker %d: hash %#x is lost", i, k)
			}
		}
		if s.Unknown != 0 || s.Rejected != 0 {
			t.Fatalf("worker %d: %+v", i, s)
		}
	}
}
