package e2e

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/envelope"
	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

var soakTime = flag.Duration("soak", 4*time.Second, "how long promise 2 is watched under traffic")

// Promise 2: at no time does an answer exceed what acknowledged events justify, claim
// by claim. Engines store, remove, clear, lose batches, restart and are registered anew
// while queries run; every answer must lie between what its worker held during the
// whole query and what it held at some moment of it.
func TestPromise2NeverMore(t *testing.T) {
	neverMore(t, nil)
	mustFail(t, "removals are applied late", breakIndex(broken{write: lateDrops(12)}), neverMore)
	mustFail(t, "a score never falls", breakIndex(broken{match: neverFalling()}), neverMore)
	mustFail(t, "lost batches are not noticed", lossy, neverMore)
}

const (
	envelopePrompts = 12 // of 12 blocks each, in four families
	branches        = envelopePrompts / 4
	sharedBlocks    = 5 // of the branches of a family
)

// held has, for every prompt, a bit for each block in the device and the host tier.
type held [envelopePrompts][2]uint64

// history is what one engine held, state by state. Its engine appends a state before
// it publishes what brings it about.
type history struct {
	mu struct {
		sync.Mutex
		states []held
		acked  int // last state that is surely applied
	}
}

func (h *history) begin(s held) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.states = append(h.mu.states, s)
}

// ack says that everything up to state n has been seen to be applied.
func (h *history) ack(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.acked = n
}

func (h *history) acked() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.acked
}

// last returns the number of the newest state.
func (h *history) last() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.mu.states) - 1
}

// bounds returns the tier walk (device, then host) of a prompt at least and at most,
// for a query that began when `from` was the last state surely applied and has ended.
func (h *history) bounds(from, prompt int) (least, most [2]int, moving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	least, most = envelope.Bounds(func(yield func(envelope.Moment) bool) {
		for _, s := range h.mu.states[from:] {
			if !yield(s[prompt]) {
				return
			}
		}
	})
	return least, most, len(h.mu.states)-from > 1
}

type envelopeCheck struct {
	tb      testing.TB
	url     string          // where engines register
	nodes   func() []string // that are asked
	prompts [][]uint32
	engines []*envelopeEngine
	faults  func() // what is done to the nodes meanwhile, again and again; nil = nothing
	counts  struct {
		marked                                                       atomic.Int64
		batches, restarts, clears, lost, anew, answers, moving, rows atomic.Int64
	}
}

type envelopeEngine struct {
	*handDriven
	v   *envelopeCheck
	rng *rand.Rand
	history
	did struct { // latest, for who reads a failure
		sync.Mutex
		list []string
	}
}

// note keeps what the engine did, before which state.
func (e *envelopeEngine) note(format string, args ...any) {
	e.did.Lock()
	defer e.did.Unlock()
	e.did.list = append(e.did.list, fmt.Sprintf("%s %d: ", time.Now().Format("05.000"), e.last()+1)+fmt.Sprintf(format, args...))
	e.did.list = e.did.list[max(0, len(e.did.list)-40):]
}

func (e *envelopeEngine) latest() []string {
	e.did.Lock()
	defer e.did.Unlock()
	return slices.Clone(e.did.list)
}

func neverMore(tb testing.TB, edit func(*node.Config)) {
	v := &envelopeCheck{tb: tb}
	v.url = startNode(tb, func(c *node.Config) {
		c.Ingest.RestartBackoff, c.Ingest.RestartBackoffMax = 5*time.Millisecond, 20*time.Millisecond
		if edit != nil {
			edit(c)
		}
	})
	v.nodes = func() []string { return []string{v.url} }
	v.run(*soakTime)
}

// run watches for so long.
func (v *envelopeCheck) run(soak time.Duration) {
	const name = "envelope"
	tb := v.tb
	for family := range 4 {
		for branch := range branches {
			v.prompts = append(v.prompts, makePrompt(family+1, branch, 12, sharedBlocks))
		}
	}
	net := newSockets(tb)
	for i, format := range []encode.Format{encode.VLLMMap, encode.SGLangMap, encode.VLLMArray, encode.SGLangArray} {
		e := &envelopeEngine{v: v, rng: rand.New(rand.NewPCG(11, uint64(i)))}
		e.handDriven = newHandDriven(tb, net, v.url, name, 21+i, func(d *handDriven) {
			d.format, d.told = format, model.New[string](model.Config{})
			d.owners = v.nodes
		})
		e.before = func() { e.begin(e.state()) }
		e.begin(held{})
		v.engines = append(v.engines, e)
	}
	deadline := time.Now().Add(soak)
	running := func() bool { return time.Now().Before(deadline) && !tb.Failed() }
	var wg sync.WaitGroup
	for _, e := range v.engines {
		wg.Go(func() {
			for running() {
				e.burst()
			}
		})
	}
	for i := range 3 {
		wg.Go(func() {
			for rng := rand.New(rand.NewPCG(12, uint64(i))); running(); {
				v.query(rng.IntN(len(v.prompts)))
			}
		})
	}
	for v.faults != nil && running() {
		v.faults()
	}
	wg.Wait()
	if tb.Failed() {
		return
	}
	c := &v.counts
	tb.Logf("%d answers were none, partial or stale and said so", c.marked.Load())
	tb.Logf("%d batches, %d restarts, %d clears, %d lost batches, %d registered anew; %d answers, %d of them while batches were under way, %d scores of those above 0",
		c.batches.Load(), c.restarts.Load(), c.clears.Load(), c.lost.Load(), c.anew.Load(), c.answers.Load(), c.moving.Load(), c.rows.Load())
	for what, n := range map[string]int64{
		"batches": c.batches.Load() / 20, "restarts": c.restarts.Load(), "clears": c.clears.Load(), "lost batches": c.lost.Load(),
		"registrations": c.anew.Load(), "answers": c.answers.Load() / 50, "answers under way": c.moving.Load() / 10, "scores under way": c.rows.Load() / 10,
	} {
		if n == 0 {
			tb.Errorf("too few %s: the check saw nothing", what)
		}
	}
}

// state is what the engine has said that it holds.
func (e *envelopeEngine) state() (s held) {
	for i, p := range e.v.prompts {
		for b, tiers := range e.told.Tiers(e.id, localsOf(p)) {
			s[i][0] |= uint64(tiers>>indexer.Device&1) << b
			s[i][1] |= uint64(tiers>>indexer.Host&1) << b
		}
	}
	return s
}

// burst publishes a few batches and waits until they are seen to be applied.
func (e *envelopeEngine) burst() {
	c := &e.v.counts
	for range 1 + e.rng.IntN(6) {
		switch n := e.rng.IntN(100); {
		case n < 3:
			c.restarts.Add(1)
			if e.rng.IntN(2) == 0 {
				e.note("restart in place")
				e.restartInPlace()
			} else {
				e.note("restart")
				endpoint, replay := e.die()
				e.open(endpoint, replay)
			}
		case n < 6:
			c.anew.Add(1)
			e.note("registered anew")
			e.registerAnew()
			e.note("was registered anew")
		case n < 9:
			c.clears.Add(1)
			e.note("clear, batch %d", e.seq)
			e.clear()
			e.send()
		}
		steps := 1
		if e.v.faults == nil {
			steps += e.rng.IntN(4)
		}
		for range steps {
			if i := e.rng.IntN(len(e.v.prompts)); e.v.faults == nil {
				randomStep(e.rng, e.handDriven, e.v.prompts[i])
			} else {
				e.orderlyStep(i)
			}
		}
		c.batches.Add(1)
		// The first batch of a run is not lost: after a restart that no connection shows, and
		// whose first number nobody saw, the next one continues the run before.
		if e.rng.IntN(20) == 0 && e.seq > 0 {
			c.lost.Add(1)
			e.note("lost batch %d", e.seq)
			e.withhold()
		} else {
			e.note("batch %d", e.seq)
			e.send()
		}
	}
	missing := e.mark(e.v.prompts...)
	e.send()
	last := e.last()
	e.v.await(missing)
	if e.v.faults != nil {
		e.v.await(e.unacknowledged)
	}
	if !e.v.tb.Failed() {
		e.note("acknowledged to state %d", last)
		e.ack(last)
	}
}

// orderlyStep does what engines do: a block is stored behind a block that is held, and
// removed when nothing behind it is. With others a takeover may lower a score for good
// (docs/decisions, on what a dump carries), which the judge of this test cannot tell. The
// batch at hand must be empty.
func (e *envelopeEngine) orderlyStep(i int) {
	tier := indexer.Device
	if e.rng.IntN(4) == 0 {
		tier = indexer.Host
	}
	s := e.state()
	any := func(i int) uint64 { return s[i][0] | s[i][1] }
	p, length := e.v.prompts[i], bits.TrailingZeros64(^any(i))
	last := length - 1
	family := i / branches * branches
	for k := family; last >= 0 && last < sharedBlocks && k < family+branches; k++ {
		if any(k)>>(last+1) != 0 {
			last = -1 // another branch goes on from there
		}
	}
	switch blocks := len(p) / blockTokens; {
	case e.rng.IntN(100) < 55 && length < blocks, last < 0:
		from := min(e.rng.IntN(length+1), blocks-1)
		e.store(p, from, from+1+e.rng.IntN(blocks-from), tier)
	default:
		e.remove(p, tier, last)
	}
}

// registerAnew takes the worker out; when that returns nothing of it may be credited.
// Then a new engine comes under the same name.
func (e *envelopeEngine) registerAnew() {
	e.restartInPlace()
	last := e.last()
	if status, ans := call(e.tb, "POST", e.url+"/unregister", map[string]any{"instance_id": e.id, "model_name": e.model}, nil); status != 200 {
		e.tb.Errorf("unregister %s: HTTP %d %s", e.id, status, ans)
		return
	}
	e.v.await(e.listedAnywhere) // the log is ahead of nodes that follow it (rule G3)
	e.ack(last)
	e.register()
}

// unacknowledged says what the last batch waits for: that one owner shows it does not mean
// that another one has it, which may be the one that is left.
func (e *envelopeEngine) unacknowledged() string {
	l := listenerOf(e.v.tb, e.url, e.id)
	if l.Acknowledged == nil || *l.Acknowledged != e.seq-1 {
		return fmt.Sprintf("batch %d of engine %s is not acknowledged: %+v", e.seq-1, e.id, l)
	}
	return ""
}

// listedAnywhere says which living node still lists the worker.
func (e *envelopeEngine) listedAnywhere() string {
	for _, url := range e.everywhere() {
		resp, err := http.Get(url + "/workers")
		if err != nil {
			return err.Error()
		}
		var ws []struct {
			InstanceID any `json:"instance_id"`
		}
		err = json.NewDecoder(resp.Body).Decode(&ws)
		resp.Body.Close()
		if err != nil {
			return err.Error()
		}
		for _, w := range ws {
			if fmt.Sprint(w.InstanceID) == e.id {
				return fmt.Sprintf("worker %s is still listed at %s", e.id, url)
			}
		}
	}
	return ""
}

// await is like the function of that name, but gives up as soon as the check failed.
func (v *envelopeCheck) await(done func() string) {
	deadline := time.Now().Add(30 * time.Second)
	for !v.tb.Failed() {
		last := done()
		if last == "" {
			return
		}
		if time.Now().After(deadline) {
			_, workers := call(v.tb, "GET", v.url+"/workers", nil, nil)
			v.tb.Errorf("after 30 s: %s\n%s", last, workers)
		}
		time.Sleep(time.Millisecond)
	}
}

// query asks for a prompt and judges the answer.
func (v *envelopeCheck) query(i int) {
	from := make([]int, len(v.engines))
	for k, e := range v.engines {
		from[k] = e.acked()
	}
	nodes := v.nodes()
	at := nodes[rand.IntN(len(nodes))]
	ans, err := tryAsk(at, v.engines[0].model, v.prompts[i])
	if err != nil {
		if v.faults == nil {
			v.tb.Errorf("query: %v", err)
		}
		v.counts.marked.Add(1)
		return
	}
	v.counts.answers.Add(1)
	if ans.Partial || ans.Stale {
		v.counts.marked.Add(1)
	}
	anyMoving := false
	for k, e := range v.engines {
		least, most, moving := e.bounds(from[k], i)
		got := [2]int{ans.Scores[e.id]["0"] / blockTokens, ans.Instances[e.id].CPU / blockTokens}
		for t, tier := range []string{"device", "host"} {
			if got[t] < least[t] && !ans.Partial && !ans.Stale || got[t] > most[t] && !ans.Stale {
				v.tb.Errorf("%s: prompt %d, engine %s: %s score is %d blocks, justified are %d to %d by its states %d to %d; partial %t, stale %t; stream: %+v; it did: %q", at, i, e.id, tier, got[t], least[t], most[t], from[k], e.last(), ans.Partial, ans.Stale, listenerOf(v.tb, v.url, e.id), e.latest())
			}
		}
		if moving {
			anyMoving = true
			if got[0] > 0 {
				v.counts.rows.Add(1)
			}
		}
	}
	if anyMoving {
		v.counts.moving.Add(1)
	}
}
