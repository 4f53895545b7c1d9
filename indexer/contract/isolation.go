package contract

import "github.com/kvcluster/kvcluster/indexer"

func isolationTests() []test {
	return []test{
		on("groups, partitions and anchors", isolatedTrees),
		on("one content under many anchors", isolatedAnchors),
		on("runs of different copies", isolatedRuns),
		on("parents keep their anchor", isolatedParents),
	}
}

// isolatedTrees stores one path at places that differ in one respect each.
func isolatedTrees(b *bench) {
	type place struct {
		g indexer.GroupID
		p indexer.PartitionID
		a uint64
	}
	places := []place{{1, 1, 0}, {2, 1, 0}, {1, 2, 0}, {1, 1, 8}, {1, 1, 1}, {0, 0, 0}, {1, 1, ^uint64(0)}, {2, 2, 8}}
	path := seq(1, 4)
	for i, at := range places {
		b.do(atPlace(at.g, at.p, indexer.Slot(i)), func(o ops) { o.store(0, anchor(at.a), path[:i%4+1]...) })
	}
	check := func(name string, gone int) {
		b.Helper()
		for i, at := range places {
			want := rows{indexer.Slot(i): uint32(i%4 + 1)}
			if i == gone {
				want = nil
			}
			b.wantAt(name, indexer.Query{Group: at.g, Partition: at.p, Anchor: at.a, Locals: path}, want, nil)
		}
	}
	check("stored", -1)
	for i, at := range places {
		a := atPlace(at.g, at.p, indexer.Slot(i))
		b.do(a, func(o ops) { o.drop(0, 0, 1) })
		check("one dropped", i)
		b.do(a, func(o ops) { o.Clear(indexer.AllTiers); o.store(1, anchor(at.a), path[:i%4+1]...) })
	}
	check("stored again", -1)
	for _, q := range []indexer.Query{{Group: 2, Partition: 2, Locals: path}, {Group: 2, Partition: 1, Anchor: 8, Locals: path}} {
		b.wantAt("a place in between", q, nil, nil)
	}
}

func atPlace(g indexer.GroupID, p indexer.PartitionID, s indexer.Slot) at { return at{g, p, s} }

// isolatedAnchors has the children of many split points in one partition.
func isolatedAnchors(b *bench) {
	const n = 200
	for i := range uint64(n) {
		b.write(slot(indexer.Slot(i%7)), func(o ops) { o.store(indexer.Run(i), anchor(i), 1, 2, 3, i) })
	}
	b.flush()
	for i := range uint64(n) {
		b.wantAt("one anchor", indexer.Query{Group: group, Partition: partition, Anchor: i, Locals: []uint64{1, 2, 3, i}},
			rows{indexer.Slot(i % 7): 4}, nil)
	}
	for i := range uint64(n) {
		if i%2 == 0 {
			b.write(slot(indexer.Slot(i%7)), func(o ops) { o.drop(indexer.Run(i), 1, 1) })
		}
	}
	b.flush()
	for i := range uint64(n) {
		want := uint32(4)
		if i%2 == 0 {
			want = 1
		}
		b.wantAt("every other one cut", indexer.Query{Group: group, Partition: partition, Anchor: i, Locals: []uint64{1, 2, 3, i}},
			rows{indexer.Slot(i % 7): want}, nil)
	}
}

// isolatedRuns: a run number means something within one copy only.
func isolatedRuns(b *bench) {
	places := []at{{1, 1, 1}, {1, 1, 2}, {1, 2, 1}, {2, 1, 1}}
	for i, a := range places {
		b.do(a, func(o ops) { o.store(0, root(), uint64(10*i), uint64(10*i+1)) })
	}
	b.do(places[0], func(o ops) { o.drop(0, 0, 2) })
	for i, a := range places {
		want := rows{a.s: 2}
		if i == 0 {
			want = nil
		}
		b.wantAt("one copy dropped its run 0", indexer.Query{Group: a.g, Partition: a.p, Locals: seq(10*i, 2)}, want, nil)
	}
	b.do(places[2], func(o ops) { o.Clear(indexer.AllTiers) })
	b.do(places[3], func(o ops) { o.extend(0, 2, 77) })
	b.wantAt("cleared", indexer.Query{Group: 1, Partition: 2, Locals: seq(20, 2)}, nil, nil)
	b.wantAt("extended", indexer.Query{Group: 2, Partition: 1, Locals: []uint64{30, 31, 77}}, rows{1: 3}, nil)
	b.wantAt("untouched", indexer.Query{Group: 1, Partition: 1, Locals: seq(10, 2)}, rows{2: 2}, nil)
}

// isolatedParents: a run below a run of a branch lies in that branch.
func isolatedParents(b *bench) {
	b.do(slot(1), func(o ops) {
		o.store(0, anchor(4), 1, 2)
		o.store(1, root(), 1, 2)
		o.store(2, under(0, 1), 3)
		o.extend(0, 2, 9)
	})
	in := func(a uint64, locals ...uint64) indexer.Query {
		return indexer.Query{Group: group, Partition: partition, Anchor: a, Locals: locals}
	}
	b.wantAt("the branch", in(4, 1, 2, 3), rows{1: 3}, nil)
	b.wantAt("the root", in(0, 1, 2, 3), rows{1: 2}, nil)
	b.wantAt("the branch, extended", in(4, 1, 2, 9), rows{1: 3}, nil)
	b.wantAt("the root, not extended", in(0, 1, 2, 9), rows{1: 2}, nil)
}
