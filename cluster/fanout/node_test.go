package fanout

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/owner"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

// node is one process.
type node struct {
	w      *world
	name   string
	boot   uint64
	index  indexer.Index
	hub    *link.Hub
	owner  *owner.Owner
	fan    *Fanout
	cancel context.CancelFunc
	done   sync.WaitGroup
	views  chan *state.View
	fed    atomic.Pointer[feed] // nil = reads no sources

	mu struct {
		sync.Mutex
		view    *state.View
		retired map[catalog.Retired]bool
		faults  int
	}
}

func endpoint(name string) string { return "mem://" + name }

// start starts a node, or its next process. It is a member from then on.
func (w *world) start(name string) *node {
	w.t.Helper()
	w.mu.Lock()
	w.mu.boots++
	n := &node{w: w, name: name, boot: w.mu.boots, views: make(chan *state.View, 10_000)}
	peers := map[string]string{}
	for _, o := range w.mu.nodes {
		peers[o.name] = endpoint(o.name)
	}
	w.mu.Unlock()
	n.mu.retired = map[catalog.Retired]bool{}
	n.index = w.open(func(h indexer.Header, err error) {
		n.mu.Lock()
		n.mu.faults++
		n.mu.Unlock()
		w.log.Error("fault", "node", name, "header", fmt.Sprint(h), "error", err)
		n.owner.OnFault(h, err)
	})
	var err error
	fail := func() {
		if err != nil {
			w.t.Fatal(err)
		}
	}
	n.hub, err = link.New(link.Config{
		Name: name, Cluster: "c", Boot: n.boot, Bind: endpoint(name), Window: 32 << 10, Retention: 256 << 10, RetentionAge: 3 * time.Second,
		MaxPayload: 128 << 10, Heartbeat: 100 * time.Millisecond, Timeout: time.Second, Errors: owner.Errors(), Logger: w.log.With("node", name),
	}, w.net, handler{n})
	fail()
	n.owner, err = owner.New(owner.Config{
		Name: name, Index: n.index, Links: n.hub, Logger: w.log.With("node", name),
		Broken: func(ctx context.Context, peer string, h indexer.Header) error {
			if peer == name {
				n.fan.Refill(name, h)
				return nil
			}
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err := n.hub.Call(ctx, peer, copywire.MethodRefill, copywire.AppendRefill(nil, h))
			return err
		},
		FlushLocal: func(ctx context.Context, g indexer.GroupID, s indexer.Slot) error { return n.fan.FlushLocal(ctx, g, s) },
	})
	fail()
	cfg := Config{
		Name: name, Index: n.index, Owner: n.owner, Links: n.hub, Logger: w.log.With("node", name),
		Report: n.report, Renew: n.renew, FillWindow: 4 << 10, FillFrame: 1024, Linger: 2 * time.Second, CallTimeout: 2 * time.Second,
		broken: w.broken,
	}
	if w.tune != nil {
		w.tune(&cfg)
	}
	n.fan, err = New(cfg)
	fail()
	for method, fn := range n.owner.Methods() {
		n.hub.Handle(method, fn)
	}
	n.hub.Handle(copywire.MethodRefill, n.fan.ServeRefill)
	fail()
	ctx, cancel := context.WithCancel(context.Background())
	n.cancel = cancel
	_, err = n.hub.Listen()
	fail()
	w.mu.Lock()
	w.mu.nodes[name] = n
	all := map[string]string{}
	for _, o := range w.mu.nodes {
		all[o.name] = endpoint(o.name)
	}
	nodes := []*node{}
	for _, o := range w.mu.nodes {
		nodes = append(nodes, o)
	}
	w.mu.Unlock()
	for _, o := range nodes {
		if err = o.hub.SetPeers(all); err != nil && o == n {
			fail()
		}
	}
	n.done.Go(func() { _ = n.hub.Run(ctx) })
	n.done.Go(func() { _ = n.owner.Run(ctx) })
	n.done.Go(func() { _ = n.fan.Run(ctx) })
	n.done.Go(func() { n.follow(ctx) })
	w.must(state.Command{Introduce: &state.Member{Name: name, ServerID: "id-" + name, Boot: n.boot}})
	return n
}

// stop ends a process; nothing is left of it.
func (n *node) stop() {
	n.cancel()
	n.done.Wait()
	if n.feed() != nil {
		n.feed().stop()
	}
	_ = n.index.Close()
	n.w.mu.Lock()
	delete(n.w.mu.nodes, n.name)
	n.w.mu.Unlock()
}

func (w *world) node(name string) *node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.nodes[name]
}

// feed is what the node reads.
func (n *node) feed() *feed { return n.fed.Load() }

// handler deals out what a hub has to say.
type handler struct{ n *node }

func (h handler) OnSession(s link.Session)                   { h.n.owner.OnSession(s) }
func (h handler) OnFrame(s link.Session, n uint64, b []byte) { h.n.owner.OnFrame(s, n, b) }
func (h handler) OnSilence(s link.Session)                   { h.n.owner.OnSilence(s) }
func (h handler) OnResume(s link.Session)                    { h.n.owner.OnResume(s) }
func (h handler) OnPeer(s link.Session, up bool)             { h.n.fan.OnPeer(s, up) }
func (h handler) OnAck(s link.Session, n uint64)             { h.n.fan.OnAck(s, n) }
func (h handler) OnLapse(s link.Session, lapsed bool)        { h.n.fan.OnLapse(s, lapsed) }

// report proposes what a fan-out reports.
func (n *node) report(ctx context.Context, r state.Report) error {
	if n.w.strict {
		n.checkReport(r)
	}
	if err := sleep(ctx, 3*time.Millisecond); err != nil {
		return err
	}
	_, err := n.w.propose(state.Command{Report: &r})
	n.w.mu.Lock()
	n.w.mu.reports++
	n.w.mu.Unlock()
	return err
}

// checkReport looks whether the targets can be read.
func (n *node) checkReport(r state.Report) {
	v := n.w.view()
	for _, j := range v.Jobs {
		if j.ID != r.Job {
			continue
		}
		for _, m := range j.Moves {
			to := n.w.node(m.To)
			if to == nil {
				continue
			}
			lives := func(yield func(indexer.Slot, uint64) bool) {
				for _, src := range v.Catalog.Sources() {
					for _, k := range src.Ranks {
						if v.Assignments[src.ID].Node == n.name && !yield(indexer.Slot(k.Slot), k.Life) {
							return
						}
					}
				}
			}
			if not := to.owner.Unreadable(nil, to.owner.Mark(), v.Index, 1, indexer.PartitionID(m.Partition), lives); len(not) > 0 {
				n.w.failf("%s reports change %d, but slots %v of partition %d cannot be read at %s", n.name, j.ID, not, m.Partition, m.To)
			}
		}
	}
}

// renew ends a life, as ingest does.
func (n *node) renew(g indexer.GroupID, s indexer.Slot, life uint64) {
	n.done.Go(func() {
		for _, wk := range n.w.view().Catalog.Workers() {
			for _, r := range wk.Ranks {
				if r.Life == life {
					n.w.mu.Lock()
					n.w.mu.renewals++
					n.w.mu.Unlock()
					_, _ = n.w.propose(state.Command{NewLife: &state.NewLife{Instance: wk.Instance, Rank: r.Rank, Life: life}})
				}
			}
		}
	})
}

// follow takes the views of the log, some time after they are there.
func (n *node) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case v := <-n.views:
			n.w.mu.Lock()
			var lag time.Duration
			if n.w.mu.lag != nil {
				lag = n.w.mu.lag(n.name)
			}
			n.w.mu.Unlock()
			if lag > 0 && sleep(ctx, lag) != nil {
				return
			}
			n.fan.SetView(v)
			n.mu.Lock()
			n.mu.view = v
			n.mu.Unlock()
			for _, r := range v.ToPurge[n.name] {
				n.retire(r)
			}
			if n.feed() != nil {
				n.feed().changed()
			}
		}
	}
}

// retire has the owner purge what other nodes wrote.
func (n *node) retire(r catalog.Retired) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.retired[r] || n.feed() != nil && n.feed().reports(r) {
		return
	}
	n.mu.retired[r] = true
	n.owner.Retire(r, func(err error) {
		if err == nil {
			n.done.Go(func() { _, _ = n.w.propose(state.Command{Purged: &state.Purged{Member: n.name, Slot: r}}) })
		}
	})
}

func (n *node) viewNow() *state.View {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.view
}

// read asks for one path and judges the answer.
func (n *node) read(p uint32, path []uint64) {
	w := n.w
	v := n.viewNow()
	if v == nil || !v.Ready(p, n.name) {
		return
	}
	lives := map[indexer.Slot]copywire.SlotLife{}
	for _, wk := range v.Catalog.Workers() {
		for _, r := range wk.Ranks {
			lives[indexer.Slot(r.Slot)] = copywire.SlotLife{Group: indexer.GroupID(wk.Group.ID), Slot: indexer.Slot(r.Slot), Life: r.Life}
		}
	}
	if len(lives) == 0 {
		return
	}
	group := indexer.GroupID(1)
	acked := map[copywire.SlotLife]uint64{}
	w.mu.Lock()
	for _, l := range lives {
		if w.mu.histories[l] != nil {
			acked[l] = w.mu.feeds[l].w.Applied()
		}
	}
	w.mu.Unlock()
	mark := n.owner.Mark()
	r := n.index.NewReader()
	var out indexer.Scores
	r.Match(indexer.Query{Group: group, Partition: indexer.PartitionID(p), Locals: path}, &out)
	r.Close()
	unreadable := map[indexer.Slot]bool{}
	for _, s := range n.owner.Unreadable(nil, mark, ^uint64(0), group, indexer.PartitionID(p), func(yield func(indexer.Slot, uint64) bool) {
		for s, l := range lives {
			if !yield(s, l.Life) {
				return
			}
		}
	}) {
		unreadable[s] = true
	}
	if v2 := n.viewNow(); !v2.Ready(p, n.name) {
		return
	}
	score := map[indexer.Slot]int{}
	for _, row := range out.Rows {
		score[row.Slot] = int(row.Depth)
	}
	for s, l := range lives {
		w.mu.Lock()
		w.mu.read.all++
		if unreadable[s] {
			w.mu.read.unreadable++
		} else {
			w.mu.read.complete++
		}
		w.mu.Unlock()
		if unreadable[s] {
			continue
		}
		low, high := 0, 0
		w.mu.Lock()
		h := w.mu.histories[l]
		w.mu.Unlock()
		if h != nil {
			low, high = h.bounds(indexer.PartitionID(p), path, acked[l])
		}
		if got := score[s]; got < low || got > high {
			w.failf("%s reads %d blocks of %v in partition %d, between %d and %d are justified (%d frames acknowledged)", n.name, got, l, p, low, high, acked[l])
		}
	}
}

// reader asks a node again and again.
func (n *node) reader(ctx context.Context, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, n.boot))
	for sleep(ctx, time.Duration(1+rng.IntN(12_000))*time.Microsecond) == nil {
		n.read(uint32(rng.IntN(int(n.w.partitions))), allPrompts[rng.IntN(len(allPrompts))])
	}
}
