package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/mockengine"
)

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

// outage asks the remaining nodes for so long, and tells when the last answer came that
// was none, incomplete or not current: how long the cluster needed from the fault on.
func (x *clusterTraffic) outage(what string, watch time.Duration) {
	x.t.Helper()
	start := time.Now()
	n := len(x.fleet.Plan().Trace().Requests)
	select {
	case <-x.fleet.Done():
		x.t.Errorf("%s: the traffic was over before it", what)
	default:
	}
	last, bad, asked := time.Duration(0), 0, 0
	why := ""
	for i := 0; time.Since(start) < watch; i++ {
		for _, url := range x.c.urls() {
			asked++
			if _, marked := x.compareOne(url, (i*37)%n); marked != "" {
				bad++
				last, why = time.Since(start), marked
			}
		}
	}
	if last > watch-watch/10 {
		x.t.Errorf("%s: answers are still incomplete after %v: %s", what, watch, why)
	}
	x.t.Logf("%s: complete answers after %v (%d of %d answers before that were marked, at last: %s)", what, last.Round(10*time.Millisecond), bad, asked, why)
}

// Three nodes, sixteen mock workers: a node joins, one leaves, an owner, a reader of
// streams and the leader are killed, one of them comes back, while the workers go on.
// At the end every answer of every node is exact.
func TestClusterSurvives(t *testing.T) {
	c := startCluster(t, 3)
	x := startTraffic(t, c, requests(500), 2)
	c.awaitSources(16)

	c.start("n4")
	c.awaitBalanced(4)
	x.outage("join of n4", 8*time.Second)

	if status, body := call(t, "POST", c.anyURL()+"/members/n4/leave", nil, nil); status != 202 {
		t.Fatalf("leave: HTTP %d %s", status, body)
	}
	c.awaitGone("n4")
	c.awaitBalanced(3)
	x.outage("leave of n4", 8*time.Second)

	reader := c.holder(func(m memberView) bool { return m.Sources > 0 && m.Role != "leader" })
	c.kill(reader)
	x.outage("kill -9 of a reader of streams that is an owner", 8*time.Second)
	c.start(reader)
	c.awaitBalanced(3)

	leader := c.holder(func(m memberView) bool { return m.Role == "leader" })
	c.kill(leader)
	x.outage("kill -9 of the leader", 8*time.Second)
	c.start(leader)
	c.awaitBalanced(3)

	x.settle()
}

// awaitSources waits until every source has a reader.
func (c *processes) awaitSources(n int) {
	c.tb.Helper()
	await(c.tb, 30*time.Second, func() string {
		sources := 0
		ms := c.members()
		for _, m := range ms {
			sources += m.Sources
		}
		if sources != n {
			return fmt.Sprintf("%d of %d sources have a reader: %+v", sources, n, ms)
		}
		return ""
	})
}

// awaitGone waits until a node has left: no member any more, its process ended.
func (c *processes) awaitGone(name string) {
	c.tb.Helper()
	p := c.nodes[name]
	delete(c.nodes, name)
	await(c.tb, 60*time.Second, func() string {
		if m, is := c.members()[name]; is {
			return fmt.Sprintf("%s is still a member: %+v", name, m)
		}
		return ""
	})
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		c.tb.Errorf("the process of %s did not end after it left\n%s", name, lastLines(p.log, 20))
	}
}

// Promise 2 on a cluster whose nodes are killed, paused and started again: no answer that
// is not marked stale is above what was justified, none that is complete and current is
// below what every owner had applied.
func TestClusterNeverMore(t *testing.T) {
	c := startCluster(t, 3)
	var mu sync.Mutex // of c's nodes, which queries look at
	v := &envelopeCheck{tb: t, url: c.nodes["n1"].url}
	v.nodes = func() []string {
		mu.Lock()
		defer mu.Unlock()
		return c.urls()
	}
	kill := func(name string) {
		mu.Lock()
		p := c.nodes[name]
		delete(c.nodes, name)
		mu.Unlock()
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	start := func(name string) {
		p, err := c.launch(name)
		if err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		c.nodes[name] = p
	}
	round := 0
	v.faults = func() {
		name := []string{"n2", "n3"}[round/2%2]
		if round++; round%2 == 1 {
			kill(name)
			time.Sleep(4 * time.Second) // the fault itself: longer than its detection
			start(name)
		} else {
			c.signal(name, syscall.SIGSTOP)
			time.Sleep(5 * time.Second)
			c.signal(name, syscall.SIGCONT)
		}
		c.awaitBalanced(3)
	}
	v.run(max(30*time.Second, *soakTime))
}

// An owner that stands still for ten seconds costs no engine a gap, and is caught up
// afterwards without an operator.
func TestClusterPausedOwner(t *testing.T) {
	c := startCluster(t, 3)
	x := startTraffic(t, c, requests(300), 6)
	c.awaitSources(16)
	name := c.holder(func(m memberView) bool { return m.Role != "leader" })
	c.signal(name, syscall.SIGSTOP)
	time.Sleep(10 * time.Second) // the fault itself
	c.signal(name, syscall.SIGCONT)
	c.awaitBalanced(3)
	x.settle()
	var ws []struct {
		Listeners map[string]listener
	}
	call(t, "GET", c.anyURL()+"/workers", nil, &ws)
	for _, w := range ws {
		for rank, l := range w.Listeners {
			if l.Gaps > 0 {
				t.Errorf("rank %s at %s has %d gaps", rank, l.Endpoint, l.Gaps)
			}
		}
	}
}

// What an operator can do wrong costs nobody anything and is answered in words.
func TestClusterBadDays(t *testing.T) {
	c := startCluster(t, 2)
	readOnly := c.dir + "/readonly"
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	keyFile := c.dir + "/key"
	if err := os.WriteFile(keyFile, []byte(strings.Repeat("ab", 32)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []struct {
		what  string
		flags []string
		want  string
	}{
		{"another cluster's name", []string{"--cluster", "other"}, "label"},
		{"a key that nobody has", []string{"--key-file", keyFile}, "key"},
		{"the name of a member", []string{"--name", "n2"}, "n2"},
	} {
		_, err := c.tryStart("stranger-"+strconv.Itoa(len(bad.what)), bad.flags...)
		if err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v, want something about %q", bad.what, err, bad.want)
		} else {
			t.Logf("%s: %s", bad.what, err)
		}
	}
	seed := c.seed
	c.seed = "no-such-host.invalid:7946"
	if _, err := c.tryStart("lost"); err == nil || !strings.Contains(err.Error(), "no-such-host") {
		t.Errorf("a seed that resolves to nothing: %v", err)
	}
	c.seed = seed
	c.awaitBalanced(2)
}
