package contract

import (
	"context"
	"errors"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

func lifecycleTests() []test {
	return []test{
		on("written and applied", lifeCounts),
		on("several writers", lifeWriters),
		on("purge", lifePurge),
		on("purge of all partitions of a slot", lifePurgeAll),
		on("a slot used again inherits nothing", lifeReuse),
		on("statistics", lifeStats),
		on("explain", lifeExplain),
		on("explain what nobody holds any more", lifeEvicted),
		on("memory follows what is held", lifeMemory),
		{"close", lifeClose},
	}
}

func lifeCounts(b *bench) {
	if b.w.Written() != 0 || b.w.Applied() != 0 {
		b.Errorf("a new writer has written %d, applied %d", b.w.Written(), b.w.Applied())
	}
	b.flush()
	const n = 1000
	for i := range n {
		b.write(slot(1), func(o ops) { o.store(indexer.Run(i), root(), uint64(i)) })
		if a, w := b.w.Applied(), b.w.Written(); a > w || w != uint64(i+1) {
			b.Fatalf("after %d frames: written %d, applied %d", i+1, w, a)
		}
	}
	b.flush()
	if a, w := b.w.Applied(), b.w.Written(); a != n || w != n {
		b.Errorf("flushed: written %d, applied %d, want %d", w, a, n)
	}
	// A frame that is refused late is done with as well: a flush must not wait for it.
	b.do(slot(1), func(o ops) { o.drop(n+1, 0, 1) })
	if a, w := b.w.Applied(), b.w.Written(); a != w || w != n+1 {
		b.Errorf("after a fault: written %d, applied %d, want %d", w, a, n+1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.w.Flush(ctx); err != nil && !errors.Is(err, context.Canceled) {
		b.Errorf("flush with a cancelled context: %v", err)
	}
}

func lifeWriters(b *bench) {
	const n = 5
	var all []indexer.Writer
	for range n {
		all = append(all, b.x.NewWriter())
	}
	first := b.w
	for round := range 50 {
		for i, w := range all {
			b.w = w
			b.write(slot(indexer.Slot(i)), func(o ops) { o.store(indexer.Run(round), root(), uint64(round), 1) })
		}
	}
	for _, w := range all {
		b.w = w
		b.flush()
	}
	want := rows{}
	for i := range n {
		want[indexer.Slot(i)] = 2
	}
	for round := range uint64(50) {
		b.want("all writers", []uint64{round, 1}, want)
	}
	// A slot moves to another writer after a flush.
	b.w = all[1]
	b.do(slot(0), func(o ops) { o.drop(3, 1, 1) })
	want[0] = 1
	b.want("moved", []uint64{3, 1}, want)
	for i, w := range all {
		b.w = w
		b.write(slot(indexer.Slot(10+i)), func(o ops) { o.store(0, root(), 900) })
		w.Close()
	}
	b.w = first
	b.await("frames written before a close", func() (bool, any) {
		got, _ := b.match("after close", indexer.Query{Group: group, Partition: partition, Locals: []uint64{900}})
		return len(got) == n, got
	})
}

func lifePurge(b *bench) {
	q := seq(1, 3)
	for s := indexer.Slot(1); s <= 3; s++ {
		b.do(slot(s), func(o ops) { o.store(0, root(), 1, 2, 3); o.claim(host, 0, 0, 3) })
	}
	b.purge(group, 2)
	b.wantAt("purged", indexer.Query{Group: group, Partition: partition, Locals: q}, rows{1: 3, 3: 3}, nil)
	b.purge(group, 2)
	b.purge(group, 99)
	b.purge(99, 1)
	b.want("purged what is not there", q, rows{1: 3, 3: 3})
	b.do(slot(2), func(o ops) { o.store(0, root(), 1) })
	b.want("used again", q, rows{1: 3, 2: 1, 3: 3})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.x.Purge(ctx, group, 3); err != nil && !errors.Is(err, context.Canceled) {
		b.Errorf("purge with a cancelled context: %v", err)
	}
}

func lifePurgeAll(b *bench) {
	for p := range indexer.PartitionID(20) {
		b.write(at{group, p, 1}, func(o ops) { o.store(0, root(), 1, 2); o.store(1, anchor(9), 1, 2) })
		b.write(at{group, p, 2}, func(o ops) { o.store(0, root(), 1, 2) })
		b.write(at{group + 1, p, 1}, func(o ops) { o.store(0, root(), 1, 2) })
	}
	b.flush()
	b.purge(group, 1)
	for p := range indexer.PartitionID(20) {
		b.wantAt("partition", indexer.Query{Group: group, Partition: p, Locals: seq(1, 2)}, rows{2: 2}, nil)
		b.wantAt("anchor", indexer.Query{Group: group, Partition: p, Anchor: 9, Locals: seq(1, 2)}, nil, nil)
		b.wantAt("the same slot number of another group", indexer.Query{Group: group + 1, Partition: p, Locals: seq(1, 2)}, rows{1: 2}, nil)
	}
}

// lifeReuse: whoever gets a number after a purge has none of its former names,
// claims, tiers or faults.
func lifeReuse(b *bench) {
	path := seq(1, 8)
	for round := range 30 {
		b.do(slot(2), func(o ops) { o.store(indexer.Run(round), root(), path...) })
		b.do(slot(1), func(o ops) {
			o.store(0, root(), path[:4+round%4]...)
			o.claim(disk, 0, 1, 2)
			o.store(1, under(0, 0), 77)
			o.drop(0, 2, 1)
		})
		if round%3 == 0 {
			b.do(slot(1), func(o ops) { o.drop(55, 0, 1) })
		}
		b.purge(group, 1)
		b.do(slot(1), func(o ops) { o.store(1, root(), path[0]) })
		b.wantAt("second life", indexer.Query{Group: group, Partition: partition, Locals: path}, rows{1: 1, 2: 8}, nil)
		b.want("second life, other branch", []uint64{1, 77}, rows{1: 1, 2: 1})
		b.do(slot(1), func(o ops) { o.store(0, under(1, 0), path[1]) })
		b.wantAt("second life goes on", indexer.Query{Group: group, Partition: partition, Locals: path}, rows{1: 2, 2: 8}, nil)
		b.purge(group, 1)
	}
}

func lifeStats(b *bench) {
	held := func(name string, want [indexer.NumTiers]uint64, distinct, copies uint64) {
		b.Helper()
		s := b.x.Stats()
		if s.Held != want || s.Distinct != distinct || s.Slots != copies || s.Stored < distinct || s.Faults != 0 {
			b.Errorf("%s: %+v, want held %v, distinct %d, slots %d", name, s, want, distinct, copies)
		}
	}
	held("empty", [4]uint64{}, 0, 0)
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3) })
	held("stored", [4]uint64{3}, 3, 1)
	for r := range indexer.Run(10) {
		b.do(slot(1), func(o ops) { o.store(r+1, root(), 1, 2) })
	}
	held("stored again under other names", [4]uint64{3}, 3, 1)
	b.do(slot(2), func(o ops) { o.store(0, root(), 1, 2, 4) })
	held("another slot", [4]uint64{6}, 4, 2)
	b.do(slot(1), func(o ops) { o.claim(host, 0, 0, 3); o.claim(external, 0, 2, 1) })
	held("claims", [4]uint64{6, 3, 0, 1}, 4, 2)
	b.do(at{group, partition + 1, 1}, func(o ops) { o.store(0, root(), 1) })
	held("another partition", [4]uint64{7, 3, 0, 1}, 5, 3)
	b.do(slot(1), func(o ops) { o.drop(0, 0, 3) })
	held("device dropped under one name", [4]uint64{6, 3, 0, 1}, 5, 3)
	b.do(slot(2), func(o ops) { o.drop(0, 1, 1) })
	held("dropped by one holder", [4]uint64{5, 3, 0, 1}, 5, 3)
	b.do(slot(1), func(o ops) { o.Clear(indexer.AllTiers) })
	held("cleared", [4]uint64{3}, 3, 2)
	b.purge(group, 2)
	held("purged", [4]uint64{1}, 1, 1)
	if s := b.x.Stats(); s.Frames != 17 {
		b.Errorf("%d frames applied, want 17", s.Frames)
	}
}

func lifeExplain(b *bench) {
	q := indexer.Query{Group: group, Partition: partition, Locals: seq(1, 5)}
	b.do(slot(1), func(o ops) { o.store(0, root(), 1, 2, 3); o.claim(host, 0, 1, 1) })
	b.do(slot(2), func(o ops) { o.store(0, root(), 1, 2, 3, 4) })
	b.do(slot(1), func(o ops) { o.drop(0, 1, 2) })
	prefix := []indexer.BlockState{{Tiers: 99}}
	states := b.r.Explain(q, 1, prefix)
	if len(states) != 6 || states[0] != prefix[0] {
		b.Fatalf("explain does not append one state for each block: %+v", states)
	}
	for i, want := range []struct {
		tiers indexer.TierMask
		known bool
		gone  bool
	}{{1, true, false}, {2, true, false}, {0, true, true}, {0, true, false}, {0, false, false}} {
		got := states[i+1]
		if got.Tiers != want.tiers || got.Known != want.known || got.Evicted != want.gone {
			b.Errorf("block %d: %+v, want %+v", i, got, want)
		}
	}
	b.do(slot(1), func(o ops) { o.store(1, under(0, 1), 3) })
	if got := b.r.Explain(q, 1, nil)[2]; got.Tiers != 1 || got.Evicted {
		b.Errorf("refilled block: %+v", got)
	}
	if got := b.r.Explain(indexer.Query{Group: 99, Locals: seq(1, 2)}, 1, nil); len(got) != 2 || got[0] != (indexer.BlockState{}) {
		b.Errorf("unknown group: %+v", got)
	}
}

// lifeMemory fills and empties an index by every way there is, several times, and
// wants the storage back each time.
func lifeMemory(b *bench) {
	const slots, chains, n = 20, 30, 60
	total := func() (sum uint64) {
		for purpose, v := range b.x.Stats().Bytes {
			if purpose != "evicted" { // for Explain: bounded, whatever is held
				sum += v
			}
		}
		return sum
	}
	fill := func() {
		for s := range indexer.Slot(slots) {
			for c := range chains {
				path := append(seq(c*1000, n/2), seq(c*1000+int(s)*100+500, n/2)...)
				b.write(slot(s), func(o ops) { o.store(indexer.Run(c), root(), path...) })
			}
		}
		b.flush()
	}
	var peak uint64
	for name, empty := range map[string]func(s indexer.Slot){
		"clears": func(s indexer.Slot) { b.write(slot(s), func(o ops) { o.Clear(indexer.AllTiers) }) },
		"purges": func(s indexer.Slot) { b.purge(group, s) },
		"drops of runs": func(s indexer.Slot) {
			for c := range chains {
				b.write(slot(s), func(o ops) { o.drop(indexer.Run(c), 0, n) })
			}
		},
		"drops from the leaf up": func(s indexer.Slot) {
			for c := range chains {
				for pos := n - 1; pos >= 0; pos-- {
					b.write(slot(s), func(o ops) { o.drop(indexer.Run(c), pos, 1) })
				}
			}
		},
		"drops from the head down": func(s indexer.Slot) {
			for c := range chains {
				for pos := range n {
					b.write(slot(s), func(o ops) { o.drop(indexer.Run(c), pos, 1) })
				}
			}
		},
	} {
		fill()
		if s := b.x.Stats(); s.Held[device] != slots*chains*n || s.Distinct != chains*n/2*(slots+1) {
			b.Fatalf("%s: filled to %+v", name, s)
		}
		peak = max(peak, total())
		for s := range indexer.Slot(slots) {
			empty(s)
		}
		b.flush()
		b.await(name+": storage given back", func() (bool, any) {
			// Limbo may need a further frame to move on.
			b.do(slot(0), func(o ops) { o.Clear(indexer.AllTiers) })
			s := b.x.Stats()
			return s.Held == [4]uint64{} && s.Distinct == 0 && s.Slots == 0 && s.Stored == 0 && s.Chains == 0 &&
				s.Limbo == 0 && total() <= peak/10, s
		})
	}
}

func lifeClose(t *testing.T, open Open) {
	b := newBench(t, open)
	b.do(slot(1), func(o ops) { o.store(0, root(), seq(1, 5000)...) })
	b.close()
	if s := b.x.Stats(); s.Reserved != 0 {
		t.Errorf("closed, but %d bytes are reserved: %+v", s.Reserved, s)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.x.Purge(ctx, group, 1); !errors.Is(err, indexer.ErrClosed) {
		t.Errorf("purge of a closed index: %v, want %v", err, indexer.ErrClosed)
	}
	if err := b.x.Dump(ctx, group, partition, 1, func(indexer.Stretch) error { return nil }); !errors.Is(err, indexer.ErrClosed) {
		t.Errorf("dump of a closed index: %v, want %v", err, indexer.ErrClosed)
	}
	if err := b.x.Close(); err != nil && !errors.Is(err, indexer.ErrClosed) {
		t.Errorf("second close: %v", err)
	}
}
