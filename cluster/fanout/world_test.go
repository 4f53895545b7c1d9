package fanout

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/shard/catalog"
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
