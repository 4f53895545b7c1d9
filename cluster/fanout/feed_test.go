package fanout

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// feed stands for one loop of ingest: it makes frames for the lives that the log gives
// to its node.
type feed struct {
	n      *node
	w      indexer.Writer
	truth  indexer.Writer
	rng    *rand.Rand
	build  indexer.FrameBuilder
	cancel context.CancelFunc
	done   sync.WaitGroup
	wake   chan struct{}
	lives  map[copywire.SlotLife]*history
	left   map[catalog.Retired]bool // given away
	asked  map[copywire.SlotLife]bool
	purges []purge

	batches sync.Mutex // held during one
	mu      struct {
		sync.Mutex
		mine   map[catalog.Retired]bool // to be reported by this feed
		quiet  bool
		pause  time.Duration // between batches, at most
		frames int
	}
}

type purge struct {
	r    catalog.Retired
	mark uint64
}

// startFeed makes the node read sources.
func (n *node) startFeed(seed uint64, pause time.Duration) *feed {
	f := &feed{
		n: n, w: n.fan.NewWriter(), truth: n.w.truth.NewWriter(), rng: rand.New(rand.NewPCG(seed, 77)),
		wake: make(chan struct{}, 1), lives: map[copywire.SlotLife]*history{},
		left: map[catalog.Retired]bool{}, asked: map[copywire.SlotLife]bool{},
	}
	f.mu.mine, f.mu.pause = map[catalog.Retired]bool{}, pause
	n.fed.Store(f)
	ctx, cancel := context.WithCancel(context.Background())
	f.cancel = cancel
	f.done.Go(func() { f.run(ctx) })
	return f
}

func (f *feed) stop() {
	f.cancel()
	f.done.Wait()
	f.w.Close()
}

// setQuiet stops batches, or lets them go on. None is under way when it returns.
func (f *feed) setQuiet(q bool) {
	f.batches.Lock()
	defer f.batches.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.quiet = q
}

// slow sets how long batches are apart at most.
func (f *feed) slow(pause time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.pause = pause
}

func (f *feed) changed() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// reports says whether the feed reports the slot itself.
func (f *feed) reports(r catalog.Retired) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.mine[r]
}

func (f *feed) run(ctx context.Context) {
	for {
		f.mu.Lock()
		pause := f.mu.pause
		f.mu.Unlock()
		timer := time.NewTimer(time.Duration(1 + f.rng.Int64N(int64(pause))))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-f.wake:
			timer.Stop()
		case <-timer.C:
		}
		f.follow(f.n.viewNow())
		f.settle(ctx)
		f.batches.Lock()
		f.mu.Lock()
		quiet := f.mu.quiet
		f.mu.Unlock()
		if !quiet {
			f.batch()
		}
		f.batches.Unlock()
	}
}

// follow begins and ends lives.
func (f *feed) follow(v *state.View) {
	if v == nil {
		return
	}
	now := map[copywire.SlotLife]bool{}
	for _, src := range v.Catalog.Sources() {
		a := v.Assignments[src.ID]
		if a.Node != f.n.name {
			continue
		}
		for _, r := range src.Ranks {
			l := copywire.SlotLife{Group: indexer.GroupID(src.Group.ID), Slot: indexer.Slot(r.Slot), Life: r.Life}
			if r.Life < a.Tenure {
				f.ask(l, src.Instance, r.Rank)
				continue
			}
			now[l] = true
			if f.lives[l] != nil {
				continue
			}
			h := newHistory(l, a.Tenure, int(f.n.w.partitions), f.rng.Uint64())
			f.lives[l] = h
			f.mu.Lock()
			f.mu.mine[retiredOf(l)] = true
			f.mu.Unlock()
			f.n.w.mu.Lock()
			f.n.w.mu.histories[l], f.n.w.mu.feeds[l] = h, f
			f.n.w.mu.Unlock()
		}
	}
	for l, h := range f.lives {
		if now[l] {
			continue
		}
		delete(f.lives, l)
		if g, ok := v.Catalog.GroupByID(uint32(l.Group)); ok {
			if h, _ := g.Holder(uint32(l.Slot)); h.Life == l.Life {
				f.left[retiredOf(l)] = true // somebody else ends it
				continue
			}
		}
		for p := range f.n.w.partitions {
			f.write(h, h.wipe(&f.build, indexer.PartitionID(p), f.w.Written()+1))
		}
		f.purges = append(f.purges, purge{retiredOf(l), f.w.Written()})
	}
	for _, r := range v.ToPurge[f.n.name] {
		if f.left[r] {
			delete(f.left, r)
			f.purges = append(f.purges, purge{r, f.w.Written()})
		}
	}
}

// ask has a life ended that somebody else may have written to.
func (f *feed) ask(l copywire.SlotLife, instance string, rank uint32) {
	if !f.asked[l] {
		f.asked[l] = true
		_, _ = f.n.w.propose(state.Command{NewLife: &state.NewLife{Instance: instance, Rank: rank, Life: l.Life}})
	}
}

func retiredOf(l copywire.SlotLife) catalog.Retired {
	return catalog.Retired{Group: uint32(l.Group), Slot: uint32(l.Slot), Life: l.Life}
}

// settle reports retired slots whose last frame is acknowledged.
func (f *feed) settle(ctx context.Context) {
	for len(f.purges) > 0 && f.purges[0].mark <= f.w.Applied() {
		r := f.purges[0].r
		f.purges = f.purges[1:]
		if err := f.n.index.Purge(ctx, indexer.GroupID(r.Group), indexer.Slot(r.Slot)); err != nil {
			return
		}
		// What is wiped is empty in the truth as well; its number may come back.
		_ = f.n.w.truth.Purge(ctx, indexer.GroupID(r.Group), indexer.Slot(r.Slot))
		_, _ = f.n.w.propose(state.Command{Purged: &state.Purged{Member: f.n.name, Slot: r}})
	}
}

func (f *feed) batch() {
	var all []copywire.SlotLife
	for l := range f.lives {
		all = append(all, l)
	}
	if len(all) == 0 {
		return
	}
	h := f.lives[all[f.rng.IntN(len(all))]]
	for range 1 + f.rng.IntN(3) {
		p := indexer.PartitionID(f.rng.IntN(int(f.n.w.partitions)))
		f.write(h, h.next(&f.build, p, f.w.Written()+1))
	}
}

func (f *feed) write(h *history, fr indexer.Frame) {
	strayed := f.n.fan.Stats().Strayed
	defer func() {
		if f.n.fan.Stats().Strayed != strayed {
			h.stray(indexer.PartitionID(fr[1] >> 32)) // the log gave the slot away meanwhile
		}
	}()
	if err := f.truth.Write(fr); err != nil {
		f.n.w.failf("truth: %v", err)
	}
	if err := f.w.Write(fr); err != nil {
		f.n.w.failf("write: %v", err)
	}
	f.mu.Lock()
	f.mu.frames++
	f.mu.Unlock()
}
