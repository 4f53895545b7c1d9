package contract

import (
	"fmt"

	"github.com/kvcluster/kvcluster/indexer"
)

const (
	device   = indexer.Device
	host     = indexer.Host
	disk     = indexer.Disk
	external = indexer.External
)

func tierTests() []test {
	return []test{
		on("every pattern of device, host, disk", func(b *bench) { tierPatterns(b, device, host, disk) }),
		on("every pattern of host, disk, external", func(b *bench) { tierPatterns(b, host, disk, external) }),
		on("every pattern of device, disk, external", func(b *bench) { tierPatterns(b, device, disk, external) }),
		on("published example", tierExample),
		on("life of a block", tierLife),
		on("demotion keeps the host copy", tierDemotion),
		on("stores into lower tiers", tierLowerStores),
		on("clear of one tier", tierClear),
		on("clear of all tiers", tierClearAll),
		on("no walk back", tierNoWalkBack),
	}
}

// walk is the tier walk over the masks of consecutive blocks, from the text of the
// rule: each tier continues where the one before ended.
func walk(blocks []indexer.TierMask) (depth [indexer.NumTiers]uint32) {
	pos := uint32(0)
	for t := range depth {
		for int(pos) < len(blocks) && blocks[pos].Has(indexer.Tier(t)) {
			pos++
		}
		depth[t] = pos
	}
	return depth
}

// tierPatterns gives each of 4,096 slots one of the patterns that three tiers and
// four blocks can have, all on one path, and asks for all of them at once.
func tierPatterns(b *bench, three ...indexer.Tier) {
	path := seq(11, 4)
	masks := func(s int) [4]indexer.TierMask {
		var m [4]indexer.TierMask
		for i := range m {
			for j, t := range three {
				if s>>(3*i+j)&1 == 1 {
					m[i] |= t.Mask()
				}
			}
		}
		return m
	}
	for s := range 1 << 12 {
		m := masks(s)
		b.write(slot(indexer.Slot(s)), func(o ops) {
			first := three[0]
			o.storeIn(first, 0, 0, root(), path...)
			for i := range path {
				for _, t := range three[1:] {
					if m[i].Has(t) {
						o.claim(t, 0, i, 1)
					}
				}
				if !m[i].Has(first) {
					o.Drop(first, indexer.MakeRange(0, i, 1))
				}
			}
		})
	}
	b.flush()
	for n := range len(path) + 1 {
		want, lower := rows{}, tiers{}
		for s := range 1 << 12 {
			m := masks(s)
			d := walk(m[:n])
			if d[device] > 0 {
				want[indexer.Slot(s)] = d[device]
			}
			if d[external] > d[device] {
				lower[indexer.Slot(s)] = d
			}
		}
		b.wantAt(fmt.Sprintf("query of %d", n), indexer.Query{Group: group, Partition: partition, Locals: path[:n]}, want, lower)
	}
	for s := range 1 << 12 {
		m := masks(s)
		states := b.r.Explain(indexer.Query{Group: group, Partition: partition, Locals: path}, indexer.Slot(s), nil)
		for i, state := range states {
			if state.Tiers != m[i] {
				b.Fatalf("slot %d: block %d is explained as %04b, want %04b", s, i, state.Tiers, m[i])
			}
		}
		if len(states) != len(path) {
			b.Fatalf("slot %d: %d states", s, len(states))
		}
	}
}

// tierExample: rank 0 holds two blocks, one more on the host and two more on disk;
// rank 1 holds one, and one more on disk.
func tierExample(b *bench) {
	path := seq(1, 6)
	b.do(slot(0), func(o ops) {
		o.store(0, root(), path[:2]...)
		o.storeIn(host, 1, 0, under(0, 1), path[2])
		o.storeIn(disk, 2, 0, under(1, 0), path[3:5]...)
	})
	b.do(slot(1), func(o ops) {
		o.store(0, root(), path[0])
		o.storeIn(disk, 1, 0, under(0, 0), path[1])
	})
	b.wantAt("walk", indexer.Query{Group: group, Partition: partition, Locals: path},
		rows{0: 2, 1: 1}, tiers{0: {2, 3, 5, 5}, 1: {1, 1, 2, 2}})
}

func tierLife(b *bench) {
	q := indexer.Query{Group: group, Partition: partition, Locals: seq(1, 3)}
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3) })
	b.wantAt("device", q, rows{1: 3}, nil)
	b.do(slot(1), func(o ops) { o.claim(host, 0, 0, 3) })
	b.wantAt("both", q, rows{1: 3}, nil)
	b.do(slot(1), func(o ops) { o.Drop(device, indexer.MakeRange(0, 1, 2)) })
	b.wantAt("demoted", q, rows{1: 1}, tiers{1: {1, 3, 3, 3}})
	b.do(slot(1), func(o ops) { o.claim(device, 0, 1, 1) })
	b.wantAt("loaded back", q, rows{1: 2}, tiers{1: {2, 3, 3, 3}})
	b.do(slot(1), func(o ops) { o.Drop(host, indexer.MakeRange(0, 0, 3)) })
	b.wantAt("host gone", q, rows{1: 2}, nil)
	b.do(slot(1), func(o ops) { o.Drop(device, indexer.MakeRange(0, 0, 2)) })
	b.wantAt("all gone", q, nil, nil)
	if s := b.x.Stats(); s.Distinct != 0 || s.Held != [indexer.NumTiers]uint64{} {
		b.Errorf("something is left: %+v", s)
	}
}

// tierDemotion: store in device, store in host, remove from device: the host hit
// stays.
func tierDemotion(b *bench) {
	q := indexer.Query{Group: group, Partition: partition, Locals: seq(1, 4)}
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3, 4) })
	b.do(slot(2), func(o ops) { o.store(0, root(), 1, 2, 3, 4) })
	b.do(slot(1), func(o ops) { o.claim(host, 0, 0, 4) })
	b.do(slot(1), func(o ops) { o.drop(0, 0, 4) })
	b.wantAt("demoted", q, rows{2: 4}, tiers{1: {0, 4, 4, 4}})
	b.do(slot(1), func(o ops) { o.store(1, root(), 1) })
	// A name was live there already, in another tier: two names, each with its own.
	b.wantAt("head back on the device", q, rows{1: 1, 2: 4}, tiers{1: {1, 4, 4, 4}})
}

func tierLowerStores(b *bench) {
	q := indexer.Query{Group: group, Partition: partition, Locals: seq(1, 4)}
	b.do(slot(1), func(o ops) { o.storeIn(host, 0, 0, root(), 1, 2) })
	b.wantAt("host alone", q, nil, tiers{1: {0, 2, 2, 2}})
	b.do(slot(1), func(o ops) { o.storeIn(external, 1, 0, under(0, 1), 3, 4) })
	b.wantAt("external below host", q, nil, tiers{1: {0, 2, 2, 4}})
	b.do(slot(1), func(o ops) { o.claim(device, 0, 0, 1) })
	b.wantAt("device above both", q, rows{1: 1}, tiers{1: {1, 2, 2, 4}})
	b.do(slot(1), func(o ops) { o.claim(disk, 0, 1, 1); o.Drop(host, indexer.MakeRange(0, 1, 1)) })
	b.wantAt("disk for host", q, rows{1: 1}, tiers{1: {1, 1, 2, 4}})
	b.do(slot(1), func(o ops) { o.storeIn(host, 0, 2, root(), 9) })
	b.wantAt("an extension in another tier", indexer.Query{Group: group, Partition: partition, Locals: []uint64{1, 2, 9}},
		rows{1: 1}, tiers{1: {1, 1, 2, 2}})
}

func tierClear(b *bench) {
	q := indexer.Query{Group: group, Partition: partition, Locals: seq(1, 4)}
	build := func(o ops) {
		o.store(0, root(), 1, 2, 3)
		o.claim(host, 0, 1, 2)
		o.claim(disk, 0, 2, 1)
		o.storeIn(host, 1, 0, under(0, 2), 4)
	}
	for s, tier := range []indexer.Tier{device, host, disk, external} {
		b.do(slot(indexer.Slot(s)), build)
		b.do(slot(indexer.Slot(s)), func(o ops) { o.Clear(tier) })
	}
	b.do(slot(9), build)
	b.wantAt("after one clear each", q,
		rows{1: 3, 2: 3, 3: 3, 9: 3},
		tiers{2: {3, 4, 4, 4}, 3: {3, 4, 4, 4}, 9: {3, 4, 4, 4}})
	// Slot 0 has lost the device only: from the second block on it is on the host.
	b.do(slot(0), func(o ops) { o.store(2, root(), 1) })
	b.wantAt("head of slot 0 refilled", q,
		rows{0: 1, 1: 3, 2: 3, 3: 3, 9: 3},
		tiers{0: {1, 4, 4, 4}, 2: {3, 4, 4, 4}, 3: {3, 4, 4, 4}, 9: {3, 4, 4, 4}})
	b.do(slot(0), func(o ops) { o.Clear(host); o.Clear(disk) })
	b.wantAt("slot 0 cleared but for the device", q,
		rows{0: 1, 1: 3, 2: 3, 3: 3, 9: 3},
		tiers{2: {3, 4, 4, 4}, 3: {3, 4, 4, 4}, 9: {3, 4, 4, 4}})
	b.do(slot(0), func(o ops) { o.drop(2, 0, 1) })
	if n := b.faults(); n != 0 {
		b.Errorf("%d faults", n)
	}
}

func tierClearAll(b *bench) {
	q := indexer.Query{Group: group, Partition: partition, Locals: seq(1, 3)}
	for s := indexer.Slot(1); s <= 2; s++ {
		b.do(slot(s), func(o ops) {
			o.store(0, root(), 1, 2, 3)
			o.claim(host, 0, 0, 3)
			o.claim(external, 0, 1, 1)
		})
	}
	b.do(slot(1), func(o ops) { o.Clear(indexer.AllTiers) })
	b.wantAt("cleared", q, rows{2: 3}, nil)
	// What follows a clear in its own frame belongs to the new, empty cache.
	b.do(slot(2), func(o ops) { o.Clear(indexer.AllTiers); o.store(1, root(), 1) })
	b.wantAt("cleared and stored", q, rows{2: 1}, nil)
	b.do(slot(1), func(o ops) { o.Clear(indexer.AllTiers); o.Clear(host) })
	b.wantAt("cleared twice", q, rows{2: 1}, nil)
	b.do(slot(3), func(o ops) { o.Clear(indexer.AllTiers) })
	b.wantAt("a slot that has nothing", q, rows{2: 1}, nil)
	if n := b.faults(); n != 0 {
		b.Errorf("%d faults", n)
	}
}

// tierNoWalkBack: a block that is only in a tier already left ends the walk.
func tierNoWalkBack(b *bench) {
	b.do(slot(1), func(o ops) {
		o.store(0, root(), 1)
		o.storeIn(disk, 1, 0, under(0, 0), 2)
		o.storeIn(host, 2, 0, under(1, 0), 3)
		o.storeIn(external, 3, 0, under(2, 0), 4)
	})
	b.wantAt("host after disk", indexer.Query{Group: group, Partition: partition, Locals: seq(1, 4)},
		rows{1: 1}, tiers{1: {1, 1, 2, 2}})
	b.do(slot(1), func(o ops) { o.claim(disk, 2, 0, 1) })
	b.wantAt("disk again", indexer.Query{Group: group, Partition: partition, Locals: seq(1, 4)},
		rows{1: 1}, tiers{1: {1, 1, 3, 4}})
}
