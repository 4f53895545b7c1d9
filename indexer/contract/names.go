package contract

import (
	"errors"

	"github.com/kvcluster/kvcluster/indexer"
)

func nameTests() []test {
	return []test{
		on("two names on one position", nameAlias),
		on("aliases by tier", nameAliasTiers),
		on("many names on one position", nameAliasMany),
		on("alias across an extension", nameAliasExtension),
		on("extension", nameExtension),
		on("extension around other slots", nameExtensionShared),
		on("parent with a dead name", nameDeadParent),
		on("run number used again", nameReuse),
		on("store and drop in one frame", nameOneFrame),
		on("unknown run", func(b *bench) { nameUnknown(b, func(o ops) { o.drop(9, 0, 1) }) }),
		on("unknown run of a claim", func(b *bench) { nameUnknown(b, func(o ops) { o.claim(host, 9, 0, 1) }) }),
		on("position beyond the run", func(b *bench) { nameUnknown(b, func(o ops) { o.drop(0, 2, 2) }) }),
		on("dead position", func(b *bench) { nameUnknown(b, func(o ops) { o.drop(0, 1, 1); o.drop(0, 0, 3) }) }),
		on("claim of a dead position", func(b *bench) { nameUnknown(b, func(o ops) { o.drop(0, 1, 1); o.claim(host, 0, 1, 1) }) }),
		on("unknown parent", func(b *bench) { nameUnknown(b, func(o ops) { o.store(1, under(9, 0), 9) }) }),
		on("parent beyond the run", func(b *bench) { nameUnknown(b, func(o ops) { o.store(1, under(0, 3), 9) }) }),
		on("extension of an unknown run", func(b *bench) { nameUnknown(b, func(o ops) { o.extend(9, 3, 9) }) }),
		on("extension with a gap", func(b *bench) { nameUnknown(b, func(o ops) { o.extend(0, 4, 9) }) }),
		on("fault after good operations", func(b *bench) {
			nameUnknown(b, func(o ops) { o.store(1, under(0, 2), 4, 5); o.claim(host, 0, 0, 3); o.drop(1, 0, 9) })
		}),
		on("name from before a clear", func(b *bench) {
			nameUnknown(b, func(o ops) { o.Clear(indexer.AllTiers); o.store(1, root(), 1); o.drop(0, 0, 1) })
		}),
		on("closed copy", nameClosed),
		on("malformed frame", nameMalformed),
	}
}

// nameAlias: a position is covered while one name is left on it.
func nameAlias(b *bench) {
	q := []uint64{1, 2, 3}
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3) })
	b.do(slot(1), func(o ops) { o.store(1, root(), 1, 2) })
	b.want("two names", q, rows{1: 3})
	b.do(slot(1), func(o ops) { o.drop(0, 0, 2) })
	b.want("first names gone", q, rows{1: 3})
	b.do(slot(1), func(o ops) { o.drop(1, 1, 1) })
	b.want("both of 2 gone", q, rows{1: 1})
	b.do(slot(1), func(o ops) { o.drop(1, 0, 1) })
	b.want("both of 1 gone", q, nil)
	b.do(slot(1), func(o ops) { o.store(2, root(), 1, 2) })
	b.want("one name each", q, rows{1: 3})
	b.do(slot(1), func(o ops) { o.drop(2, 0, 2) })
	b.want("gone with one drop", q, nil)
	if n := b.faults(); n != 0 {
		b.Errorf("%d faults", n)
	}
}

func nameAliasTiers(b *bench) {
	q := indexer.Query{Group: group, Partition: partition, Locals: []uint64{1, 2}}
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2) })
	b.do(slot(1), func(o ops) { o.storeIn(host, 1, 0, root(), 1, 2) })
	b.do(slot(1), func(o ops) { o.claim(host, 0, 0, 2) })
	b.do(slot(1), func(o ops) { o.drop(0, 0, 2) })
	b.wantAt("device gone, two names on the host", q, nil, tiers{1: {0, 2, 2, 2}})
	b.do(slot(1), func(o ops) { o.Drop(host, indexer.MakeRange(1, 0, 2)) })
	b.wantAt("one name on the host", q, nil, tiers{1: {0, 2, 2, 2}})
	b.do(slot(1), func(o ops) { o.claim(disk, 0, 0, 2) })
	b.do(slot(1), func(o ops) { o.storeIn(disk, 2, 0, root(), 1) })
	b.do(slot(1), func(o ops) { o.Clear(host) })
	b.wantAt("disk", q, nil, tiers{1: {0, 0, 2, 2}})
	b.do(slot(1), func(o ops) { o.Drop(disk, indexer.MakeRange(0, 0, 2)) })
	b.wantAt("the alias alone", q, nil, tiers{1: {0, 0, 1, 1}})
	if s := b.x.Stats(); s.Held != [indexer.NumTiers]uint64{disk: 1} || s.Distinct != 1 || s.Faults != 0 {
		b.Errorf("statistics %+v", s)
	}
}

func nameAliasMany(b *bench) {
	const n = 700
	q := []uint64{1, 2, 3}
	for r := range indexer.Run(n) {
		b.write(slot(1), func(o ops) { o.store(r, root(), 1, 2) })
	}
	b.flush()
	if s := b.x.Stats(); s.Held[device] != 2 || s.Distinct != 2 {
		b.Errorf("%d names on 2 positions: held %d, distinct %d", n, s.Held[device], s.Distinct)
	}
	for r := range indexer.Run(n - 1) {
		b.write(slot(1), func(o ops) { o.drop((r*389)%n, 0, 2) })
	}
	b.flush()
	b.want("one name left", q, rows{1: 2})
	last := indexer.Run((n - 1) * 389 % n)
	b.do(slot(1), func(o ops) { o.drop(last, 1, 1) })
	b.want("one name of the first", q, rows{1: 1})
	b.do(slot(1), func(o ops) { o.drop(last, 0, 1) })
	b.want("none", q, nil)
}

func nameAliasExtension(b *bench) {
	q := seq(1, 6)
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3) })
	b.do(slot(1), func(o ops) { o.store(1, under(0, 1), 3, 4) })
	b.do(slot(1), func(o ops) { o.extend(0, 3, 4, 5) })
	b.do(slot(1), func(o ops) { o.extend(1, 2, 5, 6) })
	b.want("both", q, rows{1: 6})
	b.do(slot(1), func(o ops) { o.drop(0, 2, 3) })
	b.want("second run alone", q, rows{1: 6})
	b.do(slot(1), func(o ops) { o.drop(1, 1, 1) })
	b.want("4 gone", q, rows{1: 3})
}

func nameExtension(b *bench) {
	const n = 300
	b.do(slot(1), func(o ops) { o.store(0, root(), 1) })
	for i := 1; i < n; i++ {
		b.write(slot(1), func(o ops) { o.extend(0, uint32(i), uint64(i+1)) })
	}
	b.flush()
	b.want("extended", seq(1, n), rows{1: n})
	b.do(slot(1), func(o ops) { o.drop(0, 100, 1) })
	b.do(slot(1), func(o ops) { o.extend(0, n, seq(n+1, 50)...) })
	b.want("hole", seq(1, n+50), rows{1: 100})
	b.do(slot(1), func(o ops) { o.store(1, under(0, 99), 101) })
	b.want("refilled", seq(1, n+50), rows{1: n + 50})
}

// nameExtensionShared extends one run while others end at the same tail, hold more,
// or go on differently.
func nameExtensionShared(b *bench) {
	for s := indexer.Slot(1); s <= 4; s++ {
		b.do(slot(s), func(o ops) { o.store(0, root(), 1, 2) })
	}
	b.do(slot(1), func(o ops) { o.extend(0, 2, 3) })
	b.want("one extended", seq(1, 5), rows{1: 3, 2: 2, 3: 2, 4: 2})
	b.do(slot(2), func(o ops) { o.extend(0, 2, 3, 4) })
	b.do(slot(3), func(o ops) { o.extend(0, 2, 7) })
	b.want("others extended", seq(1, 5), rows{1: 3, 2: 4, 3: 2, 4: 2})
	b.do(slot(1), func(o ops) { o.extend(0, 3, 4, 5) })
	b.want("first again", seq(1, 5), rows{1: 5, 2: 4, 3: 2, 4: 2})
	b.do(slot(2), func(o ops) { o.drop(0, 1, 1) })
	b.do(slot(4), func(o ops) { o.Clear(indexer.AllTiers) })
	b.want("one with a hole, one gone", seq(1, 5), rows{1: 5, 2: 1, 3: 2})
	b.want("the other way", []uint64{1, 2, 7}, rows{1: 2, 2: 1, 3: 3})
}

// nameDeadParent: the name of a parent may be dead, its position is not, as long as
// the run has a live name at or below it.
func nameDeadParent(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3, 4) })
	b.do(slot(1), func(o ops) { o.drop(0, 1, 1) })
	b.do(slot(1), func(o ops) { o.store(1, under(0, 1), 9) })
	b.want("below the hole", []uint64{1, 2, 9}, rows{1: 1})
	b.do(slot(1), func(o ops) { o.store(2, under(0, 0), 2) })
	b.want("hole refilled", []uint64{1, 2, 9}, rows{1: 3})
	b.want("the run itself", seq(1, 4), rows{1: 4})
	// Nobody else holds the path, and the run loses all but its last block.
	b.do(slot(2), func(o ops) { o.store(0, root(), 21, 22, 23, 24) })
	b.do(slot(2), func(o ops) { o.drop(0, 0, 3) })
	b.do(slot(2), func(o ops) { o.store(1, under(0, 0), 30); o.store(2, under(0, 2), 31) })
	b.want("under a dead head", []uint64{21, 30}, nil)
	b.do(slot(2), func(o ops) { o.store(3, root(), 21, 22, 23) })
	b.want("first branch", []uint64{21, 30}, rows{2: 2})
	b.want("second branch", []uint64{21, 22, 23, 31}, rows{2: 4})
	b.want("the run", seq(21, 4), rows{2: 4})
	if n := b.faults(); n != 0 {
		b.Errorf("%d faults", n)
	}
}

// nameReuse: a run number whose names are all dead stands for something else.
func nameReuse(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2); o.store(1, under(0, 1), 3) })
	b.do(slot(1), func(o ops) { o.drop(0, 0, 2) })
	b.do(slot(1), func(o ops) { o.store(0, root(), 7, 8) })
	b.want("the new run", []uint64{7, 8, 3}, rows{1: 2})
	b.want("the old one", []uint64{1, 2, 3}, nil)
	b.do(slot(1), func(o ops) { o.store(2, root(), 1, 2) })
	b.want("what hung below the old one", []uint64{1, 2, 3}, rows{1: 3})
	b.do(slot(1), func(o ops) { o.Clear(indexer.AllTiers) })
	b.do(slot(1), func(o ops) { o.store(0, root(), 1); o.store(1, under(0, 0), 9) })
	b.want("after a clear", []uint64{1, 9}, rows{1: 2})
	b.want("after a clear, the old path", []uint64{1, 2, 3}, rows{1: 1})
	if n := b.faults(); n != 0 {
		b.Errorf("%d faults", n)
	}
}

func nameOneFrame(b *bench) {
	b.do(slot(1), func(o ops) {
		o.store(0, root(), 1, 2, 3)
		o.drop(0, 2, 1)
		o.store(1, under(0, 1), 4, 5)
		o.claim(host, 1, 0, 2)
		o.drop(1, 1, 1)
		o.extend(1, 2, 6)
		o.drop(1, 2, 1)
		o.drop(0, 0, 1)
		o.store(2, root(), 1)
	})
	b.wantAt("one path", indexer.Query{Group: group, Partition: partition, Locals: []uint64{1, 2, 4, 5, 6}},
		rows{1: 3}, tiers{1: {3, 4, 4, 4}})
	b.want("the other", []uint64{1, 2, 3}, rows{1: 2})
	b.do(slot(1), func(o ops) { o.store(3, root(), 50); o.drop(3, 0, 1) })
	b.want("stored and dropped at once", []uint64{50}, nil)
	if n := b.faults(); n != 0 {
		b.Errorf("%d faults", n)
	}
}

// nameUnknown writes a frame that names what does not exist: the copy is closed and
// credited with nothing, all others go on.
func nameUnknown(b *bench, build func(o ops)) {
	q := seq(1, 3)
	other := at{group, partition + 1, 1}
	for _, a := range []at{slot(1), slot(2), other} {
		b.do(a, func(o ops) { o.store(0, root(), 1, 2, 3) })
	}
	b.do(slot(1), build)
	if n := b.faults(); n != 1 {
		b.Errorf("%d faults, want 1", n)
	}
	b.want("after the fault", q, rows{2: 3})
	b.want("what the frame stored", []uint64{1, 2, 3, 4, 5}, rows{2: 3})
	b.wantAt("the slot's other copy", indexer.Query{Group: group, Partition: partition + 1, Locals: q}, rows{1: 3}, nil)
	b.do(slot(2), func(o ops) { o.extend(0, 3, 4) })
	b.do(other, func(o ops) { o.drop(0, 2, 1) })
	b.want("another slot goes on", seq(1, 4), rows{2: 4})
	b.wantAt("another copy goes on", indexer.Query{Group: group, Partition: partition + 1, Locals: q}, rows{1: 2}, nil)
}

// nameClosed: a closed copy ignores frames until one begins with a clear of all
// tiers; then it is as good as new.
func nameClosed(b *bench) {
	q := seq(1, 3)
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3) })
	b.do(slot(2), func(o ops) { o.store(0, root(), 1, 2) })
	b.do(slot(1), func(o ops) { o.drop(7, 0, 1) })
	b.do(slot(1), func(o ops) { o.store(1, root(), 1, 2) })
	b.do(slot(1), func(o ops) { o.store(2, root(), 1, 2); o.Clear(indexer.AllTiers); o.store(3, root(), 1, 2) })
	b.do(slot(1), func(o ops) { o.Clear(device) })
	b.want("closed", q, rows{2: 2})
	if s := b.x.Stats(); s.Held[device] != 2 {
		b.Errorf("a closed copy still holds: %+v", s)
	}
	before := b.faults()
	b.do(slot(1), func(o ops) { o.Clear(indexer.AllTiers); o.store(0, root(), 1) })
	b.want("open again", q, rows{1: 1, 2: 2})
	b.do(slot(1), func(o ops) { o.extend(0, 1, 2, 3) })
	b.want("and going on", q, rows{1: 3, 2: 2})
	b.do(slot(1), func(o ops) { o.drop(0, 1, 1) })
	b.want("and dropping", q, rows{1: 1, 2: 2})
	if n := b.faults(); n != before {
		b.Errorf("%d faults of an open copy", n-before)
	}
	b.do(slot(1), func(o ops) { o.drop(7, 0, 1) })
	b.want("closed again", q, rows{2: 2})
	b.purge(group, 1)
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3) })
	b.want("a purge forgets it", q, rows{1: 3, 2: 2})
}

// nameMalformed: such a frame is refused at once or late, and changes nothing.
func nameMalformed(b *bench) {
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3) })
	var good indexer.FrameBuilder
	good.Reset(indexer.Header{Group: group, Partition: partition, Slot: 2})
	ops{&good}.store(0, root(), 1, 2, 3)
	frame := good.Frame()
	for i, spoil := range []func(f indexer.Frame) indexer.Frame{
		func(f indexer.Frame) indexer.Frame { return f[:len(f)-1] },
		func(f indexer.Frame) indexer.Frame { return f[:3] },
		func(f indexer.Frame) indexer.Frame { return nil },
		func(f indexer.Frame) indexer.Frame { f[6] |= 0xff; return f },
		func(f indexer.Frame) indexer.Frame { f[6] |= 0x7 << 8; return f },
		func(f indexer.Frame) indexer.Frame { f[6] += 1 << 32; return f },
		func(f indexer.Frame) indexer.Frame { f[7] |= 0xffff << 32; return f },
	} {
		before := b.faults()
		f := spoil(append(indexer.Frame{}, frame...))
		err := b.w.Write(f)
		b.flush()
		if err != nil && !errors.Is(err, indexer.ErrFrame) {
			b.Errorf("frame %d: %v, want %v", i, err, indexer.ErrFrame)
		}
		if n := b.faults() - before; n != 1 {
			b.Errorf("frame %d: %d faults (write said %v)", i, n, err)
		}
	}
	b.want("after malformed frames", seq(1, 3), rows{1: 3})
	b.do(slot(1), func(o ops) { o.extend(0, 3, 4) })
	b.want("the stream goes on", seq(1, 4), rows{1: 4})
}
