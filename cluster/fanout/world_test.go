package fanout

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/owner"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
	"github.com/kvcluster/kvcluster/transport/memory"
)

// world is some nodes on a network that lives in memory, the replicated state that
// they follow, and what is true. It lives in a synctest bubble.
type world struct {
	t          *testing.T
	net        *memory.Network
	partitions uint32
	broken     mutant
	tune       func(*Config)
	open       func(indexer.FaultHandler) indexer.Index // the index of a node
	truth      *reference.Index
	log        *slog.Logger
	// strict: reports are checked, in worlds without faults; injected faults are no
	// surprise.
	strict   bool
	injected int

	mu struct {
		sync.Mutex
		state     *state.State
		index     uint64
		boots     uint64
		nodes     map[string]*node
		histories map[copywire.SlotLife]*history
		feeds     map[copywire.SlotLife]*feed // that wrote it
		failures  []string
		lag       func(name string) time.Duration // of the log at a node
		read      struct{ all, complete, unreadable uint64 }
		reports   int
		renewals  int
	}
}

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

func newWorld(t *testing.T, partitions uint32, broken mutant, tune func(*Config)) *world {
	w := &world{t: t, net: memory.New(memory.Config{}), partitions: partitions, broken: broken, tune: tune, truth: reference.New(reference.Config{})}
	w.log = slog.New(slog.DiscardHandler)
	if os.Getenv("FANOUT_LOG") != "" {
		w.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	w.open = func(h indexer.FaultHandler) indexer.Index { return reference.New(reference.Config{OnFault: h}) }
	w.mu.state = state.New()
	w.mu.nodes = map[string]*node{}
	w.mu.histories, w.mu.feeds = map[copywire.SlotLife]*history{}, map[copywire.SlotLife]*feed{}
	w.must(state.Command{Found: &state.Founding{ClusterID: "c", Partitions: partitions, Replicas: 2}})
	return w
}

func (w *world) failf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.failures) < 10 {
		w.mu.failures = append(w.mu.failures, fmt.Sprintf(format, args...))
	}
}

func (w *world) failed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mu.failures)
}

// propose applies a command and tells the nodes, each of which hears of it later.
func (w *world) propose(c state.Command) (state.Result, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.index++
	r := w.mu.state.Apply(w.mu.index, c)
	v := w.mu.state.View()
	for _, n := range w.mu.nodes {
		select {
		case n.views <- v:
		default:
			panic("too many views wait")
		}
	}
	return r, r.Err()
}

func (w *world) must(c state.Command) state.Result {
	w.t.Helper()
	r, err := w.propose(c)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *world) view() *state.View {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.state.View()
}

// begin starts a layout change: partition, who gets it, who loses it.
func (w *world) begin(moves ...state.Move) state.Result {
	w.t.Helper()
	return w.must(state.Command{Begin: &state.Begin{Moves: moves}})
}

func (w *world) register(instance, node string) {
	w.t.Helper()
	w.must(state.Command{Register: &state.Registration{Node: node, Registration: catalog.Registration{
		Instance: instance, Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: "tcp://" + instance + ":1",
	}}})
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

func (w *world) stopAll() {
	for _, n := range w.all() {
		n.stop()
	}
}

func (w *world) all() (out []*node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.mu.nodes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b *node) int { return strings.Compare(a.name, b.name) })
	return out
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
			if not := to.owner.Unreadable(nil, to.owner.Mark(), 1, indexer.PartitionID(m.Partition), lives); len(not) > 0 {
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
	for _, s := range n.owner.Unreadable(nil, mark, group, indexer.PartitionID(p), func(yield func(indexer.Slot, uint64) bool) {
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

// settled waits until everything is open everywhere and acknowledged, or says what is
// not.
func (w *world) settled(within time.Duration) error {
	var why string
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if why = w.unsettled(); why == "" {
			return nil
		}
	}
	return fmt.Errorf("not settled after %v: %s", within, why)
}

func (w *world) unsettled() string {
	v := w.view()
	for _, n := range w.all() {
		if got := n.viewNow(); got == nil || got.Index != v.Index {
			return n.name + " has not applied the log"
		}
		st := n.fan.Stats()
		if st.Missing > 0 {
			return fmt.Sprintf("%s: %d of %d copies missing: %+v", n.name, st.Missing, st.Missing+st.Open, st)
		}
		if n.feed() != nil {
			if wr, ap := n.feed().w.Written(), n.feed().w.Applied(); wr != ap {
				return fmt.Sprintf("%s: %d of %d frames acknowledged", n.name, ap, wr)
			}
		}
	}
	if len(v.Jobs) > 0 {
		return fmt.Sprintf("layout changes under way: %+v", v.Jobs)
	}
	return ""
}

// stretch is what has to be equal of a dump.
type stretch struct {
	Run     indexer.Run
	Start   uint32
	Tiers   indexer.TierMask
	Path    []uint64
	Locals  []uint64
	Engines []uint64
}

func dumpOf(x indexer.Index, l copywire.SlotLife, p uint32) (out []stretch, err error) {
	err = x.Dump(context.Background(), l.Group, indexer.PartitionID(p), l.Slot, func(s indexer.Stretch) error {
		out = append(out, stretch{s.Run, s.Start, s.Tiers, slices.Clone(s.Path), slices.Clone(s.Locals), slices.Clone(s.Engines)})
		return nil
	})
	return out, err
}

// compare compares every copy of every owner with the truth.
func (w *world) compare() (copies int, errs []string) {
	v := w.view()
	for p := range w.partitions {
		for _, o := range v.Owners[p] {
			n := w.node(o.Name)
			if n == nil || n.boot != o.Boot {
				continue
			}
			for _, wk := range v.Catalog.Workers() {
				for _, r := range wk.Ranks {
					l := copywire.SlotLife{Group: indexer.GroupID(wk.Group.ID), Slot: indexer.Slot(r.Slot), Life: r.Life}
					got, err := dumpOf(n.index, l, p)
					if err != nil {
						errs = append(errs, err.Error())
					}
					want, _ := dumpOf(w.truth, l, p)
					copies++
					if d := cmp.Diff(want, got); d != "" {
						errs = append(errs, fmt.Sprintf("%v, partition %d at %s differs (-want +got):\n%s", l, p, n.name, d))
					}
				}
			}
			for _, path := range allPrompts {
				q := indexer.Query{Group: 1, Partition: indexer.PartitionID(p), Locals: path}
				if got, want := match(n.index, q), match(w.truth, q); !cmp.Equal(got, want) {
					errs = append(errs, fmt.Sprintf("partition %d at %s: scores %v, want %v", p, n.name, got, want))
				}
			}
		}
	}
	return copies, errs
}

func match(x indexer.Index, q indexer.Query) string {
	r := x.NewReader()
	defer r.Close()
	var out indexer.Scores
	r.Match(q, &out)
	slices.SortFunc(out.Rows, func(a, b indexer.Row) int { return int(a.Slot) - int(b.Slot) })
	slices.SortFunc(out.Tiers, func(a, b indexer.TierRow) int { return int(a.Slot) - int(b.Slot) })
	return fmt.Sprint(out)
}

// odd sums up what must not happen in a healthy system.
func (w *world) odd() (out []string) {
	for _, n := range w.all() {
		st := n.owner.Stats()
		for _, reason := range []string{"closed", "reopen", "malformed", "tenure"} {
			if st.Ignored[reason] > 0 {
				out = append(out, fmt.Sprintf("%s ignored %d messages: %s", n.name, st.Ignored[reason], reason))
			}
		}
		n.mu.Lock()
		if n.mu.faults > w.injected {
			out = append(out, fmt.Sprintf("%s refused %d frames", n.name, n.mu.faults))
		}
		n.mu.Unlock()
	}
	return out
}
