package contract

import (
	"fmt"
	"strings"

	"github.com/kvcluster/kvcluster/indexer"
)

// wantEvicted checks what Explain says of a path at the usual place: one letter for each
// block, h held, e evicted, - neither, and in capitals where somebody holds it.
func (b *bench) wantEvicted(name string, s indexer.Slot, locals []uint64, want string) {
	b.Helper()
	b.wantEvictedAt(name, s, indexer.Query{Group: group, Partition: partition, Locals: locals}, want)
}

func (b *bench) wantEvictedAt(name string, s indexer.Slot, q indexer.Query, want string) {
	b.Helper()
	var got strings.Builder
	for _, state := range b.r.Explain(q, s, nil) {
		c := "-"
		switch {
		case state.Tiers != 0 && state.Evicted:
			c = "?"
		case state.Tiers != 0:
			c = "h"
		case state.Evicted:
			c = "e"
		}
		// A position that nobody covers may still be in the tree, above others.
		if state.Known && b.covered(q, got.Len()) {
			c = strings.ToUpper(strings.ReplaceAll(c, "-", "_"))
		}
		got.WriteString(c)
	}
	if got.String() != want {
		b.Errorf("%s: slot %d, path %d: %s, want %s", name, s, q.Locals, got.String(), want)
	}
}

// covered reports whether any of the slots of these tests holds a block of a query.
func (b *bench) covered(q indexer.Query, block int) bool {
	for s := range indexer.Slot(8) {
		if b.r.Explain(q, s, nil)[block].Tiers != 0 {
			return true
		}
	}
	return false
}

func of(parts ...string) string { return strings.Join(parts, "") }

func times(c string, n int) string { return strings.Repeat(c, n) }

func lifeEvicted(b *bench) {
	// The sole holder drops a path at once, from the leaf up, from the head down.
	for i, drop := range []func(s indexer.Slot){
		func(s indexer.Slot) { b.do(slot(s), func(o ops) { o.drop(0, 0, 40) }) },
		func(s indexer.Slot) {
			for pos := 39; pos >= 0; pos-- {
				b.do(slot(s), func(o ops) { o.drop(0, pos, 1) })
			}
		},
		func(s indexer.Slot) {
			for pos := range 40 {
				b.do(slot(s), func(o ops) { o.drop(0, pos, 1) })
			}
		},
	} {
		s, first := indexer.Slot(i), 1000*(i+1)
		path := seq(first, 40)
		b.do(slot(s), func(o ops) { o.store(0, root(), path...) })
		b.wantEvicted("held", s, path, times("H", 40))
		drop(s)
		b.wantEvicted("dropped by the only holder", s, path, times("e", 40))
		b.wantEvicted("another slot", s+1, path, times("-", 40))
		b.wantEvicted("a path that leaves it", s, append(seq(first, 15), seq(1, 5)...), of(times("e", 15), times("-", 5)))
		b.wantEvicted("a path that goes on", s, append(seq(first, 40), 1), of(times("e", 40), "-"))
		b.wantEvicted("the same blocks lower down", s, append([]uint64{1}, path...), times("-", 41))
		b.wantEvicted("without the first block", s, path[1:], times("-", 39))
		for name, q := range map[string]indexer.Query{
			"another partition": {Group: group, Partition: partition + 1, Locals: path},
			"another group":     {Group: group + 1, Partition: partition, Locals: path},
			"another anchor":    {Group: group, Partition: partition, Anchor: 4, Locals: path},
		} {
			b.wantEvictedAt(name, s, q, times("-", 40))
		}
	}
	lifeEvictedTails(b)
	lifeEvictedBranches(b)
	lifeEvictedTiers(b)
}

// lifeEvictedTails: a tail goes and other blocks come in its place.
func lifeEvictedTails(b *bench) {
	head, old := seq(5000, 20), seq(5100, 20)
	b.do(slot(1), func(o ops) { o.store(0, root(), append(head, old...)...) })
	for round := range 6 {
		b.do(slot(1), func(o ops) { o.drop(indexer.Run(round), 20, 20) })
		b.wantEvicted("tail", 1, append(head, old...), of(times("H", 20), times("e", 20)))
		next := seq(5200+100*round, 20)
		b.do(slot(1), func(o ops) {
			o.store(indexer.Run(round+1), root(), append(head, next...)...)
			o.drop(indexer.Run(round), 0, 20)
		})
		b.wantEvicted("in its place", 1, append(head, next...), times("H", 40))
		b.wantEvicted("not in its place", 1, append(head, old...), of(times("H", 20), times("e", 20)))
		b.wantEvicted("of both", 1, append(append(head, next[:7]...), old...), of(times("H", 27), times("-", 20)))
		old = next
	}
	b.do(slot(1), func(o ops) { o.drop(6, 0, 40) })
	for round := range 6 {
		b.wantEvicted(fmt.Sprint("all gone, tail ", round), 1, append(head, seq(5200+100*round, 20)...), times("e", 40))
	}
	b.do(slot(1), func(o ops) { o.store(6, root(), append(head, old...)...) })
	b.wantEvicted("back", 1, append(head, old...), times("H", 40))
	b.wantEvicted("another tail", 1, append(head, seq(5200, 20)...), of(times("H", 20), times("e", 20)))
	b.purge(group, 1)
	b.wantEvicted("purged", 1, append(head, old...), times("-", 40))
	b.do(slot(1), func(o ops) { o.store(0, root(), head...); o.drop(0, 0, 1) })
	b.wantEvicted("the next life", 1, append(head, old...), of("e", times("H", 19), times("-", 20)))
	b.purge(group, 1)
}

// lifeEvictedBranches: what hung below goes before and after what it hung below, and
// two holders go one after the other.
func lifeEvictedBranches(b *bench) {
	trunk, one, two := seq(7000, 10), seq(7100, 10), seq(7200, 10)
	tree := func(s indexer.Slot) {
		b.do(slot(s), func(o ops) {
			o.store(0, root(), trunk...)
			o.store(1, under(0, 9), one...)
			o.store(2, under(0, 4), two...)
		})
	}
	left, right := append(append([]uint64{}, trunk...), one...), append(append([]uint64{}, trunk[:5]...), two...)
	tree(2)
	tree(3)
	b.do(slot(2), func(o ops) { o.drop(1, 0, 10); o.drop(2, 0, 10); o.drop(0, 0, 10) })
	b.wantEvicted("one of two holders", 2, left, times("E", 20))
	b.do(slot(3), func(o ops) { o.drop(0, 0, 10); o.drop(1, 0, 10); o.drop(2, 0, 10) })
	for s := indexer.Slot(2); s <= 3; s++ {
		b.wantEvicted("both holders, below the end", s, left, times("e", 20))
		b.wantEvicted("both holders, below the middle", s, right, times("e", 15))
	}
	tree(4)
	b.wantEvicted("held by another now", 2, left, times("E", 20))
	b.do(slot(4), func(o ops) { o.drop(1, 3, 7) })
	b.do(slot(4), func(o ops) { o.drop(0, 5, 5) })
	b.wantEvicted("the trunk ends above", 4, left, of(times("H", 5), times("e", 5), times("H", 3), times("e", 7)))
	b.do(slot(4), func(o ops) { o.drop(1, 0, 3) })
	b.do(slot(4), func(o ops) { o.store(1, under(2, 0), 7300) })
	b.wantEvicted("the trunk was cut", 4, left, of(times("H", 5), times("e", 15)))
	b.wantEvicted("the trunk was cut, of another", 2, left, of(times("E", 5), times("e", 15)))
	for s := indexer.Slot(2); s <= 4; s++ {
		b.purge(group, s)
	}
}

// lifeEvictedTiers: a block is evicted when its last tier is.
func lifeEvictedTiers(b *bench) {
	path := seq(8000, 6)
	b.do(slot(5), func(o ops) { o.store(0, root(), path...); o.claim(host, 0, 0, 4) })
	b.do(slot(5), func(o ops) { o.drop(0, 0, 6) })
	b.wantEvicted("held in a lower tier", 5, path, "HHHHee")
	b.do(slot(5), func(o ops) { o.Drop(host, indexer.MakeRange(0, 1, 3)) })
	b.wantEvicted("not there either", 5, path, "Heeeee")
	b.do(slot(5), func(o ops) { o.Drop(host, indexer.MakeRange(0, 0, 1)) })
	b.wantEvicted("nowhere", 5, path, "eeeeee")
	b.do(slot(5), func(o ops) { o.storeIn(disk, 1, 0, root(), path[:2]...) })
	b.wantEvicted("stored again in a lower tier", 5, path, "HHeeee")
	// Under two names a block goes with the second.
	b.do(slot(5), func(o ops) { o.store(2, root(), path[:3]...); o.store(3, root(), path[:3]...) })
	b.do(slot(5), func(o ops) { o.drop(2, 0, 3) })
	b.wantEvicted("one name of two", 5, path, "HHHeee")
	b.do(slot(5), func(o ops) { o.drop(3, 0, 3) })
	b.wantEvicted("both names", 5, path, "HHeeee")
}
