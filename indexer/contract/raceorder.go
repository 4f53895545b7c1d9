package contract

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// raceClear: whoever asks after a flushed clear sees none of what was cleared, and
// whoever asks after a flushed store sees all of it.
func raceClear(t *testing.T, open Open) {
	b := newBench(t, open)
	defer b.close()
	var wg sync.WaitGroup
	failed := make(chan error, 4)
	path := seq(1, 64)
	for s := range indexer.Slot(4) {
		wg.Go(func() {
			failed <- func() error {
				w, r := b.x.NewWriter(), b.x.NewReader()
				defer w.Close()
				defer r.Close()
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				var builder indexer.FrameBuilder
				for round := range 400 {
					builder.Reset(indexer.Header{Group: group, Partition: partition, Slot: s})
					want := uint32(0)
					if round%2 == 0 {
						ops{&builder}.store(0, root(), path...)
						want = uint32(len(path))
					} else {
						builder.Clear(indexer.AllTiers)
					}
					if err := errors.Join(w.Write(builder.Frame()), w.Flush(ctx)); err != nil {
						return err
					}
					got, _, err := match(r, indexer.Query{Group: group, Partition: partition, Locals: path})
					if err != nil {
						return err
					}
					if got[s] != want {
						return fmt.Errorf("slot %d, round %d: depth %d after a flush, want %d", s, round, got[s], want)
					}
				}
				return nil
			}()
		})
	}
	wg.Wait()
	for range 4 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
}

// raceDump: each frame replaces all that a slot holds, so a dump between two frames
// has one run and one number in every block.
func raceDump(t *testing.T, open Open) {
	b := newBench(t, open)
	defer b.close()
	done := make(chan struct{})
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for {
			select {
			case <-done:
				return
			default:
			}
			got, err := dump(b.x, slot(1))
			if err != nil {
				failed <- err
				return
			}
			all := names(got)
			for i, n := range all {
				if n.engine>>32 != all[0].engine>>32 || n.run != all[0].run || len(all) != 50 || int(n.pos) != i {
					failed <- fmt.Errorf("a dump of two moments: %d names, name %d is %+v, the first %+v", len(all), i, n, all[0])
					return
				}
			}
		}
	}()
	for round := range 1500 {
		b.write(slot(1), func(o ops) {
			if round > 0 {
				o.drop(indexer.Run((round-1)%2), 0, 50)
			}
			l, e := o.Store(device, indexer.Run(round%2), 0, root(), 50)
			for i := range l {
				l[i], e[i] = uint64(i+round%3), uint64(round)<<32|uint64(i)
			}
		})
		// Another slot forks off, so that storage is divided and freed meanwhile.
		b.write(slot(2), func(o ops) {
			o.Clear(indexer.AllTiers)
			o.store(0, root(), append(seq(round%3, round%40), 7777)...)
		})
	}
	b.flush()
	close(done)
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// racePurge: after a purge has returned no reader sees anything of the slot, while
// other readers and a writer of the same path are at work.
func racePurge(t *testing.T, open Open) {
	b := newBench(t, open)
	defer b.close()
	path := seq(1, 40)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	failed := make(chan error, 3)
	for range 2 {
		wg.Go(func() {
			r := b.x.NewReader()
			defer r.Close()
			for ctx.Err() == nil {
				got, _, err := match(r, indexer.Query{Group: group, Partition: partition, Locals: path})
				for s, d := range got {
					if s == 1 && d > 30 || s == 2 && d > 40 || s > 2 {
						err = errors.Join(err, fmt.Errorf("slot %d: depth %d was never held", s, d))
					}
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Go(func() {
		w := b.x.NewWriter()
		defer w.Close()
		var builder indexer.FrameBuilder
		for round := 0; ctx.Err() == nil; round++ {
			builder.Reset(indexer.Header{Group: group, Partition: partition, Slot: 2})
			builder.Clear(indexer.AllTiers)
			ops{&builder}.store(0, root(), path[:1+round%40]...)
			if err := w.Write(builder.Frame()); err != nil {
				failed <- err
				return
			}
		}
	})
	for round := range 150 {
		b.write(slot(1), func(o ops) { o.store(0, root(), path[:1+round%30]...) })
		b.flush()
		got, _ := b.match("stored", indexer.Query{Group: group, Partition: partition, Locals: path})
		if got[1] != uint32(1+round%30) {
			t.Errorf("round %d: depth %d, want %d", round, got[1], 1+round%30)
		}
		b.purge(group, 1)
		if got, _ := b.match("purged", indexer.Query{Group: group, Partition: partition, Locals: path}); got[1] != 0 {
			t.Errorf("round %d: depth %d after a purge", round, got[1])
		}
	}
	cancel()
	wg.Wait()
	close(failed)
	for err := range failed {
		t.Error(err)
	}
}
