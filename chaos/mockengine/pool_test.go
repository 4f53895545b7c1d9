package mockengine

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// plainPool restates the pool with slices and linear searches: cached holds the
// unpinned hashed copies, least recently released first.
type plainPool struct {
	capacity int
	cached   []plainCopy
	pinned   []plainCopy
	next     int // next copy id
}

type plainCopy struct {
	id, pins int
	key      uint64 // 0 = not computed
}

func (p *plainPool) copies(key uint64) (n int) {
	for _, c := range append(slices.Clone(p.cached), p.pinned...) {
		if c.key == key {
			n++
		}
	}
	return n
}

// newest returns the list and place of the newest copy of a key.
func (p *plainPool) newest(key uint64) (list *[]plainCopy, at int) {
	best := -1
	for _, l := range []*[]plainCopy{&p.cached, &p.pinned} {
		for i, c := range *l {
			if c.key == key && c.id > best {
				best, list, at = c.id, l, i
			}
		}
	}
	return list, at
}

func (p *plainPool) admit(keys []uint64, hit, total int) (ids []int, evicted []uint64, ok bool) {
	cached := slices.Clone(p.cached)
	pinned := slices.Clone(p.pinned)
	for _, k := range keys[:hit] {
		l, at := p.newest(k)
		c := (*l)[at]
		*l = slices.Delete(*l, at, at+1)
		c.pins++
		p.pinned = append(p.pinned, c)
		ids = append(ids, c.id)
	}
	for range total - hit {
		if len(p.cached)+len(p.pinned) == p.capacity {
			if len(p.cached) == 0 {
				p.cached, p.pinned = cached, pinned
				return nil, nil, false
			}
			key := p.cached[0].key
			p.cached = slices.Delete(p.cached, 0, 1)
			if p.copies(key) == 0 {
				evicted = append(evicted, key)
			}
		}
		p.next++
		p.pinned = append(p.pinned, plainCopy{id: p.next, pins: 1})
		ids = append(ids, p.next)
	}
	return ids, evicted, true
}

func (p *plainPool) find(id int) int {
	return slices.IndexFunc(p.pinned, func(c plainCopy) bool { return c.id == id })
}

func (p *plainPool) release(ids []int) {
	for _, id := range slices.Backward(ids) {
		at := p.find(id)
		p.pinned[at].pins--
		if p.pinned[at].pins > 0 {
			continue
		}
		c := p.pinned[at]
		p.pinned = slices.Delete(p.pinned, at, at+1)
		if c.key != 0 {
			p.cached = append(p.cached, c)
		}
	}
}

// A random load of overlapping prefixes must evict the same keys in the same order
// from the pool and from its plain restatement. Copies are numbered when they are
// computed, because the newest computed copy is the one that is used.
func TestPoolAgainstPlainRestatement(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 9))
		const capacity = 24
		p := newPool(capacity)
		q := &plainPool{capacity: capacity}
		type request struct {
			keys []uint64
			held []int32
			ids  []int
			done int
		}
		var running []*request
		evictions, duplicates := 0, 0
		for step := range 3000 {
			switch k := r.IntN(4); {
			case k == 0 || len(running) == 0:
				// Paths of a small tree: key = path of choices.
				n, key := 1+r.IntN(8), uint64(1)
				var keys []uint64
				for range n {
					key = key*4 + uint64(r.IntN(3)) + 1
					keys = append(keys, key)
				}
				hit := p.prefix(keys)
				want := 0
				for want < len(keys) && q.copies(keys[want]) > 0 {
					want++
				}
				if hit != want {
					t.Fatalf("seed %d step %d: prefix of %d, want %d", seed, step, hit, want)
				}
				hit = r.IntN(hit + 1) // a request may compute again what is there
				total := n + r.IntN(3)
				held, gone, ok := p.admit(keys, hit, total, nil, nil, false)
				ids, evicted, wantOK := q.admit(keys, hit, total)
				var got []uint64
				for _, b := range gone {
					if b.engine != ^b.key {
						t.Fatalf("seed %d step %d: key %d has engine hash %d", seed, step, b.key, b.engine)
					}
					got = append(got, b.key)
				}
				if ok != wantOK || !slices.Equal(got, evicted) {
					t.Fatalf("seed %d step %d: admitted %v evicting %v, want %v, %v", seed, step, ok, got, wantOK, evicted)
				}
				evictions += len(got)
				if ok {
					running = append(running, &request{keys: keys, held: held, ids: ids, done: hit})
				}
			case k == 1 || k == 2:
				x := running[r.IntN(len(running))]
				if x.done == len(x.keys) {
					continue
				}
				key := x.keys[x.done]
				fresh := p.commit(x.held[x.done], key, ^key)
				if want := q.copies(key) == 0; fresh != want {
					t.Fatalf("seed %d step %d: commit of %d is fresh: %v, want %v", seed, step, key, fresh, want)
				}
				if !fresh {
					duplicates++
				}
				at := q.find(x.ids[x.done])
				q.next++
				q.pinned[at].key, q.pinned[at].id = key, q.next
				x.ids[x.done] = q.next
				x.done++
			default:
				at := r.IntN(len(running))
				p.release(running[at].held)
				q.release(running[at].ids)
				running = slices.Delete(running, at, at+1)
			}
			resident := map[uint64]int32{}
			for _, c := range append(slices.Clone(q.cached), q.pinned...) {
				if c.key != 0 {
					resident[c.key]++
				}
			}
			got := map[uint64]int32{}
			for key, res := range p.resident {
				got[key] = res.copies
			}
			if d := diff(resident, got); d != "" {
				t.Fatalf("seed %d step %d: resident copies (-want +got):\n%s", seed, step, d)
			}
			if p.cached != len(q.cached) || p.numFree != capacity-len(q.cached)-len(q.pinned) {
				t.Fatalf("seed %d step %d: %d cached and %d free, want %d and %d", seed, step, p.cached, p.numFree,
					len(q.cached), capacity-len(q.cached)-len(q.pinned))
			}
		}
		if evictions < 50 || duplicates < 50 {
			t.Errorf("seed %d: only %d evictions and %d duplicates", seed, evictions, duplicates)
		}
	}
}

func TestHostPoolEvictsOnlyWhatTheDeviceHasLost(t *testing.T) {
	h := newHostPool(2)
	add := func(key uint64) (evictedBlock, bool, bool) { return h.add(key, key+100) }
	if _, _, ok := add(1); !ok {
		t.Fatal("no room in an empty pool")
	}
	add(2)
	if _, _, ok := add(2); ok {
		t.Error("a block was added twice")
	}
	if _, _, ok := add(3); ok {
		t.Error("a block was added although all others are on the device")
	}
	h.deviceGone(2)
	h.deviceGone(1)
	h.deviceGone(1) // twice is once
	h.deviceBack(2)
	got, any, ok := add(3)
	if want := (evictedBlock{key: 1, engine: 101}); !ok || !any || got != want {
		t.Errorf("evicted %v, %v, %v, want %v", got, any, ok, want)
	}
	if h.has(1) || !h.has(2) || !h.has(3) {
		t.Error("the pool does not hold 2 and 3")
	}
	h.deviceGone(2)
	if got, any, _ := add(4); !any || got.key != 2 {
		t.Errorf("evicted %v, %v, want 2", got, any)
	}
	if none, _, ok := newHostPool(0).add(1, 1); ok || none.key != 0 {
		t.Error("a pool without capacity takes a block")
	}
}
