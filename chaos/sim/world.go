package sim

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

const clusterID = "simulated"

var groupKey = catalog.GroupKey{Model: "m"}

// Config is what a schedule begins with.
type Config struct {
	Seed       uint64
	Nodes      int
	Engines    int
	Partitions uint32
	Replicas   int
	Tree       bool // indexer/tree instead of the reference
	// Holes lets engines drop blocks that others lie below. Takeovers lose some of those
	// (docs/decisions/0007), so such a schedule must not have any.
	Holes bool
	// Broken are rules to switch off, see member.Config.
	Broken []string
	// Log, if set, gets what the nodes say.
	Log func(line string)
}

// world is one cluster. Its driver is one goroutine, which acts only while nothing else
// runs (see tick).
type world struct {
	cfg     Config
	layout  shard.Layout
	began   time.Time
	net     *network
	raft    *raftNet
	rumours *rumours
	rng     *rand.Rand // of the step under way
	nodes   []*node    // in the order in which they came
	engines []*engine
	prompts []*prompt
	servers int // server ids given out
	boots   uint64
	names   int
	indexes []seenIndex
	lastJob uint64               // the latest layout change that was seen
	tenures map[uint64]uint64    // by source, as seen last
	handed  map[uint64]time.Time // by source, when it was seen to be given to its present reader
	asks    sync.WaitGroup       // queries and operators' commands
	orders  atomic.Int64         // commands under way
	faults  atomic.Int64         // frames that an index refused
	counts  Counts
	tally   tally
	latest  processes

	mu struct {
		sync.Mutex
		failures []string
		lines    []string
	}
}

// seenIndex is when the driver first saw a map index.
type seenIndex struct {
	index uint64
	at    time.Time
}

func newWorld(cfg Config) *world {
	w := &world{cfg: cfg, layout: shard.Layout{Partitions: cfg.Partitions}, began: time.Now(), net: newNetwork(cfg.Seed), tenures: map[uint64]uint64{}, handed: map[uint64]time.Time{}}
	w.raft, w.rumours = newRaftNet(w.net), newRumours(w.net)
	w.rng = rand.New(rand.NewPCG(cfg.Seed, 1))
	w.prompts = prompts(w.layout)
	return w
}

const maxFailures = 5

func (w *world) fail(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.mu.failures) < maxFailures {
		w.mu.failures = append(w.mu.failures, fmt.Sprintf("[%v] ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
	}
}

func (w *world) failed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.mu.failures) > 0
}

// logf adds a line to the schedule.
func (w *world) logf(format string, args ...any) {
	line := fmt.Sprintf("[%v] ", time.Since(w.began).Round(time.Millisecond)) + fmt.Sprintf(format, args...)
	w.mu.Lock()
	w.mu.lines = append(w.mu.lines, line)
	w.mu.Unlock()
	if w.cfg.Log != nil {
		w.cfg.Log(line)
	}
}

// debugf gives a line to Config.Log alone.
func (w *world) debugf(format string, args ...any) {
	if w.cfg.Log != nil {
		w.cfg.Log(fmt.Sprintf("    [%v] ", time.Since(w.began).Round(time.Millisecond)) + fmt.Sprintf(format, args...))
	}
}

func (w *world) logger(name string) *slog.Logger {
	if w.cfg.Log == nil {
		return nil
	}
	began := w.began
	return slog.New(slog.NewTextHandler(lines{w}, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.String("t", fmt.Sprint(time.Since(began).Round(time.Millisecond)))
		}
		return a
	}})).With("at", name)
}

// lines gives the lines of a log to Config.Log.
type lines struct{ w *world }

func (l lines) Write(b []byte) (int, error) {
	l.w.cfg.Log("    " + strings.TrimSpace(string(b)))
	return len(b), nil
}

// changed is to be called when what can be reached has changed.
func (w *world) changed() {
	w.net.note(w.nodeNames())
	w.rumours.update()
}

func (w *world) nodeNames() (out []string) {
	for _, n := range w.nodes {
		out = append(out, n.name)
	}
	return out
}

// which returns the nodes that f accepts.
func (w *world) which(f func(*node) bool) (out []*node) {
	for _, n := range w.nodes {
		if f(n) {
			out = append(out, n)
		}
	}
	return out
}

func (w *world) up() []*node { return w.which(func(n *node) bool { return n.up() }) }

// view returns the latest view that any node has applied; nil when there is none.
func (w *world) view() (latest *state.View) {
	for _, n := range w.nodes {
		if n.answers() {
			if v := n.member.Node().View(); latest == nil || v.Index > latest.Index {
				latest = v
			}
		}
	}
	return latest
}

// background runs an operator's command.
func (w *world) background(timeout time.Duration, n *node, fn func(ctx context.Context, p *process) error, done func(error)) {
	p := n.process
	p.queries.Add(1)
	w.orders.Add(1)
	w.asks.Go(func() {
		defer w.orders.Add(-1)
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		err := fn(ctx, p)
		p.queries.Done()
		done(err)
	})
}

// tick lets time pass, waits until nothing runs, and looks at everything.
func (w *world) tick(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	for _, n := range w.nodes {
		n.reap()
	}
	w.net.note(w.nodeNames())
	w.observe()
}

// observe takes down map indexes and lives, and acknowledges what is seen everywhere.
func (w *world) observe() {
	v := w.view()
	if v == nil {
		return
	}
	now := time.Now()
	for _, j := range v.Jobs {
		if j.ID > w.lastJob {
			w.lastJob = j.ID
			w.counts.Jobs++
		}
	}
	for id, a := range v.Assignments {
		if old, ok := w.tenures[id]; ok && old != a.Tenure {
			w.counts.Takeovers++
			w.handed[id] = now
		}
		w.tenures[id] = a.Tenure
	}
	if n := len(w.indexes); n == 0 || w.indexes[n-1].index < v.Index {
		w.indexes = append(w.indexes, seenIndex{v.Index, now})
	}
	for _, e := range w.engines {
		if slot, id, ok := lifeIn(v, e.id); ok {
			if n := len(e.lives); n == 0 || e.lives[n-1].id < id {
				if n > 0 {
					w.counts.Lives++
				}
				e.lives = append(e.lives, life{slot: slot, id: id, seen: now})
			}
		}
		if e.mark != nil && e.mark.state > 0 && w.everywhere(v, e) {
			e.ack(e.mark.state, e.lives[len(e.lives)-1].id)
			e.mark = nil
			w.counts.Acknowledged++
		}
	}
}

func lifeIn(v *state.View, instance string) (slot uint32, id uint64, ok bool) {
	worker, ok := v.Catalog.Worker(instance)
	if !ok || len(worker.Ranks) == 0 {
		return 0, 0, false
	}
	return worker.Ranks[0].Slot, worker.Ranks[0].Life, true
}

// awaitAll ticks until problem returns "" or the time is over, and returns what is left.
func (w *world) awaitAll(limit time.Duration, problem func() string) string {
	last := ""
	for until := time.Now().Add(limit); time.Now().Before(until) && !w.failed(); {
		w.tick(50 * time.Millisecond)
		if last = problem(); last == "" {
			return ""
		}
	}
	return last
}

// begin founds the cluster, lets the others join, and registers the engines.
func (w *world) begin() {
	for i := range w.cfg.Nodes {
		w.addNode(i == 0)
	}
	all := func() string {
		if n := len(w.up()); n < w.cfg.Nodes {
			return fmt.Sprintf("%d of %d nodes are members", n, w.cfg.Nodes)
		}
		return ""
	}
	if problem := w.awaitAll(20*time.Second, all); problem != "" {
		w.fail("the cluster does not begin: %s", problem)
		return
	}
	for i := range w.cfg.Engines {
		e := w.newEngine(i)
		w.engines = append(w.engines, e)
		w.register(e)
	}
	registered := func() string {
		for _, e := range w.engines {
			if len(e.lives) == 0 {
				return fmt.Sprintf("engine %s is not registered", e.id)
			}
		}
		return ""
	}
	if problem := w.awaitAll(10*time.Second, registered); problem != "" {
		w.fail("the cluster does not begin: %s", problem)
	}
}

func (w *world) addNode(found bool) *node {
	n := w.newNode(fmt.Sprint("n", w.names))
	w.names++
	w.nodes = append(w.nodes, n)
	if err := n.start(found); err != nil {
		w.fail("start %s: %v", n.name, err)
	}
	return n
}

func (w *world) register(e *engine) {
	n := pick(w.up(), w.rng.IntN(1000))
	w.background(10*time.Second, n, func(ctx context.Context, p *process) error {
		return p.member.Node().Register(ctx, e.registration())
	}, func(err error) {
		if err != nil {
			w.logf("register %s at %s: %v", e.id, n.name, err)
		}
	})
}

// end stops everything. The bubble must not end before every goroutine has.
func (w *world) end() {
	w.asks.Wait()
	for _, n := range w.nodes {
		if n.process != nil && n.running() {
			n.shutDown()
		}
	}
	limit := time.NewTimer(2 * time.Minute)
	defer limit.Stop()
	for _, n := range w.nodes {
		if n.process == nil {
			continue
		}
		select {
		case <-n.ended:
		case <-limit.C:
			w.fail("node %s does not end", n.name)
			return
		}
		n.reap()
	}
	for _, e := range w.engines {
		e.check("close", e.pub.Close())
	}
	time.Sleep(10 * time.Second) // raft's last timers
}

// settled returns the names of members, sorted.
func settled(v *state.View) (out []string) {
	for _, m := range v.Members {
		out = append(out, m.Name)
	}
	slices.Sort(out)
	return out
}
