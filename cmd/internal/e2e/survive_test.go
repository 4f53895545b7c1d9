package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/mockengine"
)

var surviveNodes = flag.Int("survive.nodes", 3, "nodes of the cluster in TestClusterSurvives")

// clusterTraffic is a fleet of mock workers that plays a trace against a cluster, and
// queries beside it.
type clusterTraffic struct {
	t     *testing.T
	c     *processes
	cfg   mockengine.Config
	fleet *mockengine.Fleet
	truth *truth
}

func startTraffic(t *testing.T, c *processes, requests int, speedup float64) *clusterTraffic {
	x := &clusterTraffic{t: t, c: c}
	x.cfg = mockengine.Config{
		Workers: 16, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.SGLangMap, mockengine.VLLMArray, mockengine.SGLangArray},
		BlockSize: 16, Capacity: 4096, Trace: traceOf(t, "conversation_trace.jsonl", requests), Speedup: speedup,
	}
	x.fleet, x.truth, _ = startFleet(t, c.anyURL(), x.cfg)
	return x
}

// settle waits until the traffic has been applied, and then asks every node for every
// prompt: answers that are complete and current must be exact, and all must become so.
func (x *clusterTraffic) settle() {
	x.t.Helper()
	select {
	case <-x.fleet.Done():
	case <-time.After(5 * time.Minute):
		x.t.Fatalf("the fleet did not finish:\n%s", x.fleet.Stats())
	}
	n := len(x.fleet.Plan().Trace().Requests)
	for _, url := range x.c.urls() {
		await(x.t, 60*time.Second, func() string {
			for i := 0; i < n; i += 1 + n/40 {
				if diff, marked := x.compareOne(url, i); diff != "" || marked != "" {
					return fmt.Sprintf("%s, request %d: %s%s", url, i, diff, marked)
				}
			}
			return ""
		})
		x.compareAll(url, n)
	}
}

func (x *clusterTraffic) compareAll(url string, n int) {
	x.t.Helper()
	wrong, marks := 0, 0
	for i := range n {
		await(x.t, 30*time.Second, func() string {
			diff, marked := x.compareOne(url, i)
			if marked != "" {
				marks++
				return marked
			}
			if diff != "" {
				if wrong++; wrong < 5 {
					x.t.Errorf("%s, request %d, complete and current: %s", url, i, diff)
				}
			}
			return ""
		})
	}
	x.t.Logf("%s: %d prompts compared, %d wrong; %d answers were marked and asked again", url, n, wrong, marks)
}

// compareOne asks for a prompt. marked says how the answer calls itself incomplete or not
// current; otherwise diff is how it differs from the truth.
func (x *clusterTraffic) compareOne(url string, i int) (diff, marked string) {
	plan := x.fleet.Plan()
	p := plan.Prompt(i)
	var got answer
	status, body := call(x.t, "POST", url+"/query", queryBody("parity", p), &got)
	if status != 200 {
		return "", fmt.Sprintf("HTTP %d %s", status, body)
	}
	if got.Partial || got.Stale {
		return "", fmt.Sprintf("partial %v, stale %v: %s", got.Partial, got.Stale, body[max(0, len(body)-300):])
	}
	locals := plan.AppendLocals(nil, i, x.cfg.BlockSize)
	x.truth.mu.Lock()
	defer x.truth.mu.Unlock()
	diff, _ = compare(x.truth, got, locals, appendWindowLocals(nil, p, x.cfg.BlockSize), map[string]bool{}, x.cfg.BlockSize)
	return diff, ""
}

// watcher asks all nodes that should answer, all the time from its start to its end,
// and remembers when an answer was none, incomplete or not current.
type watcher struct {
	x      *clusterTraffic
	bodies [][]byte
	mu     struct {
		sync.Mutex
		urls  []string
		asked int
		bad   int
		last  time.Time // of the latest such answer
		why   string
	}
}

// watch begins to ask.
func (x *clusterTraffic) watch() *watcher {
	w := &watcher{x: x}
	plan := x.fleet.Plan()
	for i := 0; i < len(plan.Trace().Requests); i += 7 {
		w.bodies = append(w.bodies, queryBody("parity", plan.Prompt(i)))
	}
	w.see()
	ctx, stop := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	for k := range 2 {
		asking.Go(func() {
			for i := k; ctx.Err() == nil; i++ {
				time.Sleep(pace)
				w.ask(ctx, w.bodies[(i*37)%len(w.bodies)], i)
			}
		})
	}
	x.t.Cleanup(func() { stop(); asking.Wait() })
	return w
}

// see makes the nodes that run now those that are asked.
func (w *watcher) see() { w.set(w.x.c.urls()) }

func (w *watcher) set(urls []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.urls = urls
}

// ask sends one query. What was asked of a node that is no longer one that should answer
// does not count.
func (w *watcher) ask(ctx context.Context, body []byte, i int) {
	w.mu.Lock()
	url := w.mu.urls[i%len(w.mu.urls)]
	w.mu.Unlock()
	problem := askOnce(ctx, url, body)
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Contains(w.mu.urls, url) {
		return
	}
	w.mu.asked++
	if problem != "" {
		w.mu.bad++
		w.mu.last, w.mu.why = time.Now(), url+": "+problem
	}
}

// askOnce returns in what an answer is no complete and current one.
func askOnce(ctx context.Context, url string, body []byte) string {
	req, err := http.NewRequestWithContext(ctx, "POST", url+"/query", bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	var ans struct {
		Partial, Stale bool
		Missing        []string
	}
	if err == nil && resp.StatusCode != 200 {
		err = fmt.Errorf("HTTP %d %s", resp.StatusCode, raw)
	}
	if err == nil {
		err = json.Unmarshal(raw, &ans)
	}
	if err == nil && (ans.Partial || ans.Stale) {
		err = errors.New(strings.Join(append(ans.Missing[:min(2, len(ans.Missing))], fmt.Sprintf("stale %v, %d things missing", ans.Stale, len(ans.Missing))), "; "))
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

// pace leaves the machine, which has all nodes and all engines, time for something else.
const pace = 2 * time.Millisecond

// quiet is for how long every answer must have been complete and current for a fault to
// be over; recovery bounds how long that may take to begin. All nodes, engines and clients
// share one machine here, which may have other things to do: what it took is logged.
const (
	quiet    = 3 * time.Second
	recovery = 20 * time.Second
)

// fault does something to the cluster, and tells after what time the last answer came that
// was none, incomplete or not current.
func (w *watcher) fault(what string, do func()) {
	t := w.x.t
	t.Helper()
	select {
	case <-w.x.fleet.Done():
		t.Errorf("%s: the traffic was over before it", what)
	default:
	}
	start := time.Now()
	w.mu.Lock()
	asked, bad := w.mu.asked, w.mu.bad
	w.mu.last, w.mu.why = start, "no answer was bad"
	w.mu.Unlock()
	do()
	done := time.Now()
	for {
		time.Sleep(20 * time.Millisecond)
		w.mu.Lock()
		last, why := w.mu.last, w.mu.why
		asked, bad := w.mu.asked-asked, w.mu.bad-bad
		w.mu.Unlock()
		if last.Sub(done) > recovery {
			t.Errorf("%s: answers are still incomplete after %v: %s", what, recovery, why)
			return
		}
		if now := time.Now(); now.Sub(last) > quiet && now.Sub(done) > quiet {
			t.Logf("%s: complete answers after %v (%d of %d answers until then were marked; the last: %s)",
				what, last.Sub(start).Round(10*time.Millisecond), bad, asked, why)
			return
		}
	}
}

// kill is a fault: the node ends without a word.
func (w *watcher) kill(what, name string) {
	c := w.x.c
	w.fault("kill -9 of "+what+" ("+name+")", func() {
		urls := c.urls()
		w.set(slices.DeleteFunc(urls, func(u string) bool { return u == c.nodes[name].url }))
		c.kill(name)
	})
	w.start(name, len(c.nodes)+1)
}

// start starts a node and waits until it has its part.
func (w *watcher) start(name string, members int) {
	c := w.x.c
	w.fault("start of "+name, func() {
		c.start(name)
		c.awaitBalanced(members)
		w.see()
	})
}

// Three nodes (-survive.nodes=5: five), sixteen mock workers that play the conversation
// trace, and queries all the time: a node joins, one leaves, a reader of streams, an owner
// that reads none or fewest, and the leader are killed and come back. At the end every
// answer of every node is exact.
func TestClusterSurvives(t *testing.T) {
	n := *surviveNodes
	c := startCluster(t, n)
	x := startTraffic(t, c, requests(700), 2)
	c.awaitSources(16)
	w, start := x.watch(), time.Now()

	newcomer := fmt.Sprintf("n%d", n+1)
	w.start(newcomer, n+1)
	w.fault("leave of "+newcomer, func() {
		urls := slices.DeleteFunc(c.urls(), func(u string) bool { return u == c.nodes[newcomer].url })
		if status, body := call(t, "POST", urls[0]+"/members/"+newcomer+"/leave", nil, nil); status != 202 {
			t.Fatalf("leave: HTTP %d %s", status, body)
		}
		w.set(urls)
		c.awaitGone(newcomer)
		c.awaitBalanced(n)
	})
	w.kill("a reader of streams", c.most(func(m memberView) int { return m.Sources }))
	w.kill("an owner", c.most(func(m memberView) int { return -m.Sources }))
	w.kill("the leader", c.holder(func(m memberView) bool { return m.Role == "leader" }))
	t.Logf("%.0f s of faults; the fleet: %s", time.Since(start).Seconds(), x.fleet.Stats())
	x.settle()
}

// most returns the running member that is not the leader for which n is largest.
func (c *processes) most(n func(memberView) int) string {
	ms := c.members()
	best := ""
	for _, name := range sortedNames(ms) {
		if _, running := c.nodes[name]; running && ms[name].Role != "leader" && (best == "" || n(ms[name]) > n(ms[best])) {
			best = name
		}
	}
	if best == "" {
		c.tb.Fatalf("all members are leaders: %+v", ms)
	}
	return best
}
