package contract

import (
	"github.com/kvcluster/kvcluster/indexer"
)

func heldTests() []test {
	return []test{
		on("table", heldTable),
		on("nothing", heldNothing),
		on("fork at every offset", heldForks),
		on("equal sizes, other members", heldEqualSizes),
		on("every claim stays removable", heldRemovable),
		on("every claim stays removable, six events", heldRemovableSix),
		on("hole in the middle leaves no ghost", heldMiddle),
		on("drop after a split by another slot", heldAfterSplit),
		on("tail becomes interior", heldStaleTail),
		on("eviction from the leaf up", heldLeafUp),
		on("eviction from the head down", heldHeadDown),
		on("every block alone", heldEveryHole),
		on("storage reused", heldReuse),
	}
}

// heldTable is the worked table of the held score: a hole ends the prefix, a refill
// brings back everything that is still held below it.
func heldTable(b *bench) {
	q := []uint64{1, 2, 3, 4, 5}
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3, 4) })
	b.want("store 1 2 3 4", q, rows{1: 4})
	b.do(slot(1), func(o ops) { o.drop(0, 1, 1) })
	b.want("remove 2", q, rows{1: 1})
	b.do(slot(1), func(o ops) { o.store(1, under(0, 0), 2) })
	b.want("store 2 under 1", q, rows{1: 4})
	b.do(slot(1), func(o ops) { o.extend(0, 4, 5) })
	b.want("store 5 under 4", q, rows{1: 5})
	b.want("a shorter query", q[:3], rows{1: 3})
	b.want("a longer query", []uint64{1, 2, 3, 4, 5, 6}, rows{1: 5})
	b.want("another continuation", []uint64{1, 2, 9}, rows{1: 2})
}

func heldNothing(b *bench) {
	b.want("empty index", []uint64{1, 2}, nil)
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2) })
	b.want("no blocks", nil, nil)
	b.want("another first block", []uint64{2, 1}, nil)
	b.want("a block of the middle first", []uint64{2}, nil)
	b.wantAt("unknown group", indexer.Query{Group: 77, Partition: partition, Locals: []uint64{1}}, nil, nil)
	b.wantAt("unknown partition", indexer.Query{Group: group, Partition: 77, Locals: []uint64{1}}, nil, nil)
	b.wantAt("unknown anchor", indexer.Query{Group: group, Partition: partition, Anchor: 77, Locals: []uint64{1}}, nil, nil)
	b.want("the hash 0", []uint64{0}, nil)
	b.do(slot(2), func(o ops) { o.store(0, root(), 0, ^uint64(0)) })
	b.want("the hashes 0 and all ones", []uint64{0, ^uint64(0)}, rows{2: 2})
}

// heldForks has one long chain and a slot that leaves it at every offset.
func heldForks(b *bench) {
	const n = 40
	trunk := seq(100, n)
	b.do(slot(0), func(o ops) { o.store(0, root(), trunk...) })
	for k := 0; k < n; k++ {
		path := append(append([]uint64{}, trunk[:k]...), 7, uint64(1000+k), 7)
		b.do(slot(indexer.Slot(k+1)), func(o ops) { o.store(0, root(), path...) })
	}
	want := rows{0: n}
	for k := 1; k < n; k++ {
		want[indexer.Slot(k+1)] = uint32(k)
	}
	b.want("trunk", trunk, want)
	for k := 0; k < n; k++ {
		want := rows{}
		if k > 0 {
			want[0] = uint32(k)
		}
		for j := 1; j < n; j++ {
			want[indexer.Slot(j+1)] = uint32(min(j, k))
		}
		if k == 0 {
			want = rows{}
		} else {
			for j := range want {
				if want[j] == 0 {
					delete(want, j)
				}
			}
		}
		want[indexer.Slot(k+1)] = uint32(k + 3)
		b.want("branch", append(append([]uint64{}, trunk[:k]...), 7, uint64(1000+k), 7), want)
	}
}

// heldEqualSizes hides different members behind equal sizes: slots 1 and 2 hold the
// chain, 2 and 3 its child, so both sets have two members and only 2 is in both.
func heldEqualSizes(b *bench) {
	for s := indexer.Slot(1); s <= 3; s++ {
		b.do(slot(s), func(o ops) { o.store(0, root(), 1, 2, 3, 4) })
	}
	b.do(slot(9), func(o ops) { o.store(0, root(), 1, 2, 7) }) // divides [1 2] from [3 4]
	b.do(slot(1), func(o ops) { o.drop(0, 2, 2) })
	b.do(slot(3), func(o ops) { o.drop(0, 0, 1) })
	b.want("one missing at each end", []uint64{1, 2, 3, 4}, rows{1: 2, 2: 4, 9: 2})
	b.do(slot(3), func(o ops) { o.drop(0, 1, 1) })
	b.want("child without parent", []uint64{1, 2, 3, 4}, rows{1: 2, 2: 4, 9: 2})
	b.do(slot(3), func(o ops) { o.store(1, root(), 1) })
	b.want("half a refill", []uint64{1, 2, 3, 4}, rows{1: 2, 2: 4, 3: 1, 9: 2})
	b.do(slot(3), func(o ops) { o.extend(1, 1, 2) })
	b.want("a whole refill", []uint64{1, 2, 3, 4}, rows{1: 2, 2: 4, 3: 4, 9: 2})
}

// heldRemovable: store [1 2 3]; [4] under 1; remove 1; store [1 2], of which 2 is
// held already; remove 3 and 2; the query [1 2] gives 1.
func heldRemovable(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3) })
	b.do(slot(1), func(o ops) { o.store(1, under(0, 0), 4) })
	b.do(slot(1), func(o ops) { o.drop(0, 0, 1) })
	b.want("head gone", []uint64{1, 2, 3}, nil)
	b.do(slot(1), func(o ops) { o.store(2, root(), 1) })
	b.want("head back", []uint64{1, 2, 3}, rows{1: 3})
	b.do(slot(1), func(o ops) { o.drop(0, 2, 1); o.drop(0, 1, 1) })
	b.want("tail gone", []uint64{1, 2}, rows{1: 1})
	b.want("the other branch", []uint64{1, 4}, rows{1: 2})
}

// heldRemovableSix: store [1 30]; [2 20 21] under 1; remove 1; store 1; the store of
// [2 20] under 1 says nothing new; remove 21 and 20; the query [1 2 20] gives 2.
func heldRemovableSix(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 30) })
	b.do(slot(1), func(o ops) { o.store(1, under(0, 0), 2, 20, 21) })
	b.do(slot(1), func(o ops) { o.drop(0, 0, 1) })
	b.do(slot(1), func(o ops) { o.store(2, root(), 1) })
	b.want("before the removal", []uint64{1, 2, 20, 21}, rows{1: 4})
	b.do(slot(1), func(o ops) { o.drop(1, 2, 1); o.drop(1, 1, 1) })
	b.want("after the removal", []uint64{1, 2, 20}, rows{1: 2})
	b.want("the other branch", []uint64{1, 30}, rows{1: 2})
}

// heldMiddle: a block gone from the middle of an edge leaves nothing behind once
// the rest goes as well.
func heldMiddle(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3, 4, 5, 6) })
	b.do(slot(2), func(o ops) { o.store(0, root(), 1, 2, 3, 4, 5, 6) })
	b.do(slot(1), func(o ops) { o.drop(0, 2, 1) })
	b.want("hole", []uint64{1, 2, 3, 4, 5, 6}, rows{1: 2, 2: 6})
	b.do(slot(1), func(o ops) { o.drop(0, 0, 2); o.drop(0, 3, 3) })
	b.want("rest gone", []uint64{1, 2, 3, 4, 5, 6}, rows{2: 6})
	b.do(slot(2), func(o ops) { o.drop(0, 5, 1); o.drop(0, 3, 2); o.drop(0, 0, 3) })
	b.want("all gone", []uint64{1, 2, 3, 4, 5, 6}, nil)
	if s := b.x.Stats(); s.Distinct != 0 || s.Held[indexer.Device] != 0 || s.Slots != 0 {
		b.Errorf("something is left: %+v", s)
	}
	b.do(slot(1), func(o ops) { o.store(3, root(), 1, 2) })
	b.want("stored anew", []uint64{1, 2, 3, 4}, rows{1: 2})
}

// heldAfterSplit: names stay what they were when another slot forks the chain.
func heldAfterSplit(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3, 4, 5, 6) })
	b.do(slot(2), func(o ops) { o.store(0, root(), 1, 2, 3, 7, 8) })
	b.do(slot(1), func(o ops) { o.drop(0, 4, 1) })
	b.want("below the fork", []uint64{1, 2, 3, 4, 5, 6}, rows{1: 4, 2: 3})
	b.do(slot(3), func(o ops) { o.store(0, root(), 1, 9) })
	b.do(slot(1), func(o ops) { o.drop(0, 1, 1) })
	b.want("above the fork", []uint64{1, 2, 3, 4, 5, 6}, rows{1: 1, 2: 3, 3: 1})
	b.do(slot(1), func(o ops) { o.store(1, under(0, 0), 2) })
	b.want("one refilled", []uint64{1, 2, 3, 4, 5, 6}, rows{1: 4, 2: 3, 3: 1})
	b.do(slot(1), func(o ops) { o.store(2, under(0, 3), 5) })
	b.want("both refilled", []uint64{1, 2, 3, 4, 5, 6}, rows{1: 6, 2: 3, 3: 1})
	b.want("the other branch", []uint64{1, 2, 3, 7, 8}, rows{1: 3, 2: 5, 3: 1})
	b.do(slot(2), func(o ops) { o.Clear(indexer.AllTiers) })
	b.want("a removed branch", []uint64{1, 2, 3, 7, 8}, rows{1: 3, 3: 1})
}

// heldStaleTail: the block after a run's end is stored by another slot first, with
// the same hash and with another one, and the hash repeats further down.
func heldStaleTail(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2) })
	b.do(slot(2), func(o ops) { o.store(0, root(), 1, 2, 3, 4, 3, 5) })
	b.do(slot(1), func(o ops) { o.extend(0, 2, 3) })
	b.want("same hash", []uint64{1, 2, 3, 4, 3, 5}, rows{1: 3, 2: 6})
	b.do(slot(1), func(o ops) { o.extend(0, 3, 5) })
	b.want("the other path", []uint64{1, 2, 3, 5}, rows{1: 4, 2: 3})
	b.want("the first path", []uint64{1, 2, 3, 4, 3, 5}, rows{1: 3, 2: 6})
	b.do(slot(1), func(o ops) { o.store(1, under(0, 1), 9); o.store(2, under(1, 0), 3) })
	b.want("under an inner position", []uint64{1, 2, 9, 3}, rows{1: 4, 2: 2})
}

func heldLeafUp(b *bench) {
	const n = 1500
	path := seq(1, n)
	for s := indexer.Slot(1); s <= 2; s++ {
		b.do(slot(s), func(o ops) { o.store(0, root(), path...) })
	}
	for pos := n - 1; pos >= 0; pos-- {
		b.do(slot(1), func(o ops) { o.drop(0, pos, 1) })
		if pos%97 == 0 || pos < 3 {
			want := rows{2: n}
			if pos > 0 {
				want[1] = uint32(pos)
			}
			b.want("after a drop", path, want)
		}
	}
}

func heldHeadDown(b *bench) {
	const n = 600
	path := seq(1, n)
	b.do(slot(2), func(o ops) { o.store(0, root(), path...) })
	b.do(slot(1), func(o ops) { o.store(0, root(), path...) })
	for pos := 0; pos < n-1; pos++ {
		b.do(slot(1), func(o ops) { o.drop(0, pos, 1) })
		if pos%97 == 0 {
			b.want("after a drop", path, rows{2: n})
		}
	}
	b.do(slot(1), func(o ops) { o.store(1, root(), path[:n-1]...) })
	b.want("refilled", path, rows{1: n, 2: n})
}

// heldEveryHole makes each hole of a short chain, alone and with each second one.
func heldEveryHole(b *bench) {
	const n = 9
	path := seq(1, n)
	s := indexer.Slot(0)
	want := rows{}
	for i := 0; i < n; i++ {
		for j := i; j < n; j++ {
			s++
			b.write(slot(s), func(o ops) {
				o.store(0, root(), path...)
				o.drop(0, j, 1)
				if i != j {
					o.drop(0, i, 1)
				}
			})
			if i > 0 {
				want[s] = uint32(i)
			}
		}
	}
	b.flush()
	b.want("holes", path, want)
	// The outer hole is filled: the depth is then the inner one.
	s, want = 0, rows{}
	for i := 0; i < n; i++ {
		for j := i; j < n; j++ {
			s++
			want[s] = uint32(j)
			parent := root()
			if i > 0 {
				parent = under(0, uint32(i-1))
			}
			if i == j {
				want[s] = n
			}
			b.write(slot(s), func(o ops) { o.store(1, parent, path[i]) })
		}
	}
	b.flush()
	b.want("refilled", path, want)
}

// heldReuse goes through stores and clears of changing shapes, so that freed storage
// comes back as something else.
func heldReuse(b *bench) {
	for round := range 60 {
		base := round * 1000
		path := seq(base, 10+round%23)
		other := append(append([]uint64{}, path[:5]...), seq(base+500, 3+round%7)...)
		b.do(slot(1), func(o ops) { o.store(0, root(), path...) })
		b.do(slot(2), func(o ops) { o.store(0, root(), other...) })
		b.want("path", path, rows{1: uint32(len(path)), 2: 5})
		b.want("other", other, rows{1: 5, 2: uint32(len(other))})
		if round > 0 {
			b.want("path of the last round", seq(base-1000, 10), nil)
		}
		b.do(slot(1), func(o ops) { o.Clear(indexer.AllTiers) })
		b.want("path after the clear", path, rows{2: 5})
		b.do(slot(2), func(o ops) { o.drop(0, 0, len(other)) })
		b.want("path after the drop", path, nil)
	}
}
