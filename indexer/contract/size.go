package contract

import (
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
)

func sizeTests() []test {
	tests := []test{
		on("the longest run in one store", sizeLongest),
		on("the longest run in many extensions", sizeGrown),
		on("a chain of many runs", sizeDeep),
		on("many children of one position", sizeChildren),
		on("many operations in a frame", sizeFrame),
		on("high slot, run and group numbers", sizeNumbers),
	}
	for _, n := range []int{1, 64, 8192} {
		tests = append(tests, on(fmt.Sprintf("one path held by %d slots", n), func(b *bench) { sizeHolders(b, n) }))
	}
	return tests
}

// cutAt checks a path that slot 1 holds up to depth.
func (b *bench) cutAt(name string, path []uint64, depth int) {
	b.Helper()
	want := rows{}
	if depth > 0 {
		want[1] = uint32(depth)
	}
	b.want(name, path, want)
}

func sizeLongest(b *bench) {
	path := seq(1, indexer.MaxRunLength)
	b.do(slot(1), func(o ops) { o.store(0, root(), path...) })
	sizeCuts(b, path)
}

func sizeGrown(b *bench) {
	path := seq(1, indexer.MaxRunLength)
	b.do(slot(1), func(o ops) { o.store(0, root(), path[:1]...) })
	for from, n := 1, 1; from < len(path); from, n = from+n, min(2*n, 4999) {
		to := min(from+n, len(path))
		b.write(slot(1), func(o ops) { o.extend(0, uint32(from), path[from:to]...) })
	}
	b.flush()
	sizeCuts(b, path)
}

func sizeCuts(b *bench, path []uint64) {
	b.Helper()
	n := len(path)
	b.cutAt("whole", path, n)
	b.do(slot(1), func(o ops) { o.store(1, under(0, uint32(n-1)), 7, 8) })
	longer := append(append([]uint64{}, path...), 7, 8, 9)
	b.cutAt("below the last position", longer, n+2)
	b.do(slot(1), func(o ops) { o.drop(0, n-1, 1) })
	b.cutAt("last gone", longer, n-1)
	b.do(slot(1), func(o ops) { o.store(2, under(0, uint32(n-2)), path[n-1]) })
	b.cutAt("last back", longer, n+2)
	b.do(slot(1), func(o ops) { o.drop(0, 40000, 3) })
	b.cutAt("hole", longer, 40000)
	b.do(slot(1), func(o ops) { o.drop(0, 0, 40000) })
	b.cutAt("head gone", longer, 0)
	b.do(slot(1), func(o ops) { o.store(3, root(), path[:40003]...) })
	b.cutAt("head back", longer, n+2)
	b.do(slot(1), func(o ops) { o.Clear(indexer.AllTiers) })
	b.cutAt("cleared", longer, 0)
}

// sizeDeep hangs 3,000 runs of 5 one below the other.
func sizeDeep(b *bench) {
	const runs, n = 3000, 5
	path := seq(1, runs*n)
	for r := range runs {
		parent := root()
		if r > 0 {
			parent = under(indexer.Run(r-1), n-1)
		}
		b.write(slot(1), func(o ops) { o.store(indexer.Run(r), parent, path[r*n:r*n+n]...) })
	}
	b.write(slot(2), func(o ops) { o.store(0, root(), path...) })
	b.flush()
	b.want("whole", path, rows{1: runs * n, 2: runs * n})
	b.do(slot(1), func(o ops) { o.drop(1500, 2, 1) })
	b.want("hole", path, rows{1: 1500*n + 2, 2: runs * n})
	b.do(slot(2), func(o ops) { o.Clear(indexer.AllTiers) })
	b.want("the other gone", path, rows{1: 1500*n + 2})
	for r := range runs - 1 { // from the head down: the paths of the rest stay
		if r == 1500 {
			b.write(slot(1), func(o ops) { o.drop(1500, 0, 2); o.drop(1500, 3, 2) })
			continue
		}
		b.write(slot(1), func(o ops) { o.drop(indexer.Run(r), 0, n) })
	}
	b.flush()
	b.want("only the last run", path, nil)
	b.do(slot(1), func(o ops) { o.store(runs, root(), path[:runs*n-n]...) })
	b.want("refilled", path, rows{1: runs * n})
}

// sizeChildren: thousands of prompts that differ in one block.
func sizeChildren(b *bench) {
	const n = 5000
	trunk := seq(1, 3)
	b.write(slot(1), func(o ops) { o.store(0, root(), trunk...) })
	for i := range n {
		b.write(slot(1), func(o ops) { o.store(indexer.Run(i+1), under(0, 2), uint64(1000+i), 5) })
	}
	b.flush()
	for i := 0; i < n; i += 61 {
		b.want("child", append(append([]uint64{}, trunk...), uint64(1000+i), 5, 6), rows{1: 5})
	}
	for i := range n {
		if i%61 != 0 {
			b.write(slot(1), func(o ops) { o.drop(indexer.Run(i+1), 0, 2) })
		}
	}
	b.flush()
	for i := 0; i < n; i += 61 {
		b.want("child left", append(append([]uint64{}, trunk...), uint64(1000+i), 5, 6), rows{1: 5})
		b.want("child gone", append(append([]uint64{}, trunk...), uint64(1000+i+1), 5, 6), rows{1: 3})
	}
}

// sizeFrame is one frame with thousands of operations of all kinds.
func sizeFrame(b *bench) {
	const n = 4000
	b.do(slot(1), func(o ops) {
		for i := range n {
			o.store(indexer.Run(i), root(), uint64(i), 1, 2)
			if i%3 == 0 {
				o.claim(host, indexer.Run(i), 1, 2)
			}
		}
		for i := range n {
			if i%2 == 0 {
				o.drop(indexer.Run(i), 1, 2)
			}
		}
	})
	for i := range n {
		want, lower := rows{1: 3}, tiers{}
		if i%2 == 0 {
			want[1] = 1
			if i%3 == 0 {
				lower[1] = [indexer.NumTiers]uint32{1, 3, 3, 3}
			}
		}
		b.wantAt("run", indexer.Query{Group: group, Partition: partition, Locals: []uint64{uint64(i), 1, 2}}, want, lower)
	}
}

func sizeNumbers(b *bench) {
	a := at{1 << 20, 1023, 65535}
	b.do(a, func(o ops) { o.store(100_000, root(), 1, 2); o.store(7, under(100_000, 0), 3) })
	in := func(locals ...uint64) indexer.Query {
		return indexer.Query{Group: a.g, Partition: a.p, Locals: locals}
	}
	b.wantAt("stored", in(1, 2), rows{65535: 2}, nil)
	b.wantAt("below", in(1, 3), rows{65535: 2}, nil)
	b.do(a, func(o ops) { o.drop(100_000, 0, 2) })
	b.wantAt("dropped", in(1, 3), nil, nil)
}

// sizeHolders: n slots hold one path, many of them in part.
func sizeHolders(b *bench, n int) {
	path := seq(1, 30)
	held := make([]int, n)
	for s := range n {
		held[s] = len(path)
		if s%5 == 4 {
			held[s] = s%len(path) + 1
		}
		b.write(slot(indexer.Slot(s)), func(o ops) { o.store(0, root(), path[:held[s]]...) })
	}
	b.flush()
	check := func(name string) {
		b.Helper()
		want := rows{}
		for s, d := range held {
			if d > 0 {
				want[indexer.Slot(s)] = uint32(d)
			}
		}
		b.want(name, path, want)
	}
	check("stored")
	if s := b.x.Stats(); s.Distinct != uint64(len(path)) || s.Slots != uint64(n) {
		b.Errorf("distinct %d and %d slots, want %d and %d", s.Distinct, s.Slots, len(path), n)
	}
	for s := range n {
		if s%7 == 0 {
			cut := s % held[s]
			b.write(slot(indexer.Slot(s)), func(o ops) { o.drop(0, cut, held[s]-cut) })
			held[s] = cut
		}
	}
	b.flush()
	check("cut")
	for s := range n {
		if s%7 == 0 && held[s] > 0 {
			b.write(slot(indexer.Slot(s)), func(o ops) { o.store(1, under(0, uint32(held[s]-1)), path[held[s]:]...) })
			held[s] = len(path)
		}
	}
	b.flush()
	check("refilled")
	for s := range n {
		if s%3 == 1 {
			b.write(slot(indexer.Slot(s)), func(o ops) { o.Clear(indexer.AllTiers) })
			held[s] = 0
		}
	}
	b.flush()
	check("a third cleared")
	for s := range n {
		if s%3 == 2 {
			b.purge(group, indexer.Slot(s))
			held[s] = 0
		}
	}
	check("a third purged")
	for s := range n {
		if s%3 == 2 {
			b.write(slot(indexer.Slot(s)), func(o ops) { o.store(0, root(), path[:2]...) })
			held[s] = 2
		}
	}
	b.flush()
	check("slots used again")
}
