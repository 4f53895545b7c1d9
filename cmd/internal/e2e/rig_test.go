package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/mockengine"
	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

// clusterNodes is how many nodes stand where these tests speak of a node: with more than
// one they are a cluster in this process, and the one that is asked is the last to join,
// so that most of what it answers is elsewhere.
func clusterNodes(t testing.TB) int {
	text := os.Getenv("KVCLUSTER_TEST_NODES")
	if text == "" {
		return 1
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("KVCLUSTER_TEST_NODES=%s is no number of nodes", text)
	}
	return n
}

// startNode runs a node, or a cluster of them, on free ports until the test ends and
// returns the URL of one: of a cluster that of the node which joined last.
func startNode(t testing.TB, edit func(*node.Config)) string {
	t.Helper()
	urls := startNodes(t, clusterNodes(t), edit)
	return urls[len(urls)-1]
}

// isAsked reports whether a configuration is that of the node whose URL startNode returns.
func isAsked(t testing.TB, c *node.Config) bool {
	n := clusterNodes(t)
	return n == 1 || c.Name == fmt.Sprintf("n%d", n)
}

// clusters has, for every URL of a cluster in this process, those of all its nodes.
var clusters sync.Map

// nodesOf returns the URLs of all nodes of the cluster that a node belongs to.
func nodesOf(url string) []string {
	if all, ok := clusters.Load(url); ok {
		return all.([]string)
	}
	return []string{url}
}

// replicasOf is how many nodes have each partition.
func replicasOf(url string) int { return min(replicas, len(nodesOf(url))) }

const replicas = 2

// startNodes runs so many nodes, as one cluster if there are several, and returns when
// every partition has its owners.
func startNodes(t testing.TB, n int, edit func(*node.Config)) (urls []string) {
	t.Helper()
	if n == 1 {
		return []string{startOne(t, edit)}
	}
	seed := ""
	dir := t.TempDir()
	for i := range n {
		name := fmt.Sprintf("n%d", i+1)
		data := filepath.Join(dir, name)
		urls = append(urls, startOne(t, func(c *node.Config) {
			c.Name = name
			c.Cluster = &node.ClusterConfig{
				Data: data, Label: dir[max(0, len(dir)-60):], Host: "127.0.0.1", Gossip: "127.0.0.1:0", Raft: "127.0.0.1:0", Link: "127.0.0.1:0", Weight: 1, Replicas: replicas,
				QueryDeadline: time.Second, // several nodes share this process with the engines
			}
			if seed != "" {
				c.Cluster.Seeds = []string{seed}
			}
			if edit != nil {
				edit(c)
			}
		}))
		if seed == "" {
			var err error
			if seed, err = node.GossipAddress(data); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, url := range urls {
		clusters.Store(url, urls)
		await(t, 60*time.Second, func() string { return unbalanced(t, url, n, replicas) })
	}
	t.Cleanup(func() {
		for _, url := range urls {
			clusters.Delete(url)
		}
	})
	return urls
}

// unbalanced says what is missing until so many members have every partition with all its
// owners ready, as a node sees it.
func unbalanced(t testing.TB, url string, members, replicas int) string {
	var shards struct {
		Partitions []struct {
			Owners []struct {
				Name  string
				Ready bool
			}
		}
		Changes []json.RawMessage
	}
	if status, body := call(t, "GET", url+"/shards", nil, &shards); status != 200 {
		return fmt.Sprintf("%s: HTTP %d %s", url, status, body)
	}
	have := map[string]int{}
	for i, x := range shards.Partitions {
		if len(x.Owners) != min(replicas, members) {
			return fmt.Sprintf("%s: partition %d has %d owners", url, i, len(x.Owners))
		}
		for _, o := range x.Owners {
			if !o.Ready {
				return fmt.Sprintf("%s: %s is not ready for partition %d", url, o.Name, i)
			}
			have[o.Name]++
		}
	}
	if len(have) != members || len(shards.Changes) > 0 {
		return fmt.Sprintf("%s: partitions %v, %d changes under way", url, have, len(shards.Changes))
	}
	var st struct{ Ready bool }
	if status, body := call(t, "GET", url+"/status", nil, &st); status != 200 || !st.Ready {
		return fmt.Sprintf("%s is not ready: %s", url, body)
	}
	return ""
}

// startOne runs one node.
func startOne(t testing.TB, edit func(*node.Config)) string {
	t.Helper()
	cfg := node.Defaults()
	if kind := os.Getenv("KVCLUSTER_TEST_INDEX"); kind != "" {
		cfg.Index.Kind = kind
	}
	addr := make(chan net.Addr, 1)
	cfg.Router.Address = "127.0.0.1:0"
	cfg.Router.OnListen = func(a net.Addr) { addr <- a }
	cfg.Ingest.ProbeAfter, cfg.Ingest.ProbeMax = 300*time.Millisecond, time.Second
	if edit != nil {
		edit(&cfg)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx, cfg, testLogger(t)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("node: %v", err)
		}
	})
	select {
	case a := <-addr:
		return "http://" + a.String()
	case err := <-ended:
		ended <- nil
		t.Fatalf("node did not start: %v", err)
	case <-time.After(20 * time.Second):
		t.Fatal("node did not start in 20 s")
	}
	return ""
}

// testLogger writes warnings and errors of the node into the test's log.
func testLogger(t testing.TB) *slog.Logger {
	level := slog.LevelWarn
	if os.Getenv("KVCLUSTER_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: level}))
}

type testWriter struct{ t testing.TB }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}

// call sends a request and fills out from a 2xx answer; it returns the status and body.
func call(t testing.TB, method, url string, body, out any) (int, string) {
	t.Helper()
	raw, ok := body.([]byte)
	if !ok && body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			t.Fatal(err)
		}
	}
	req, err := http.NewRequest(method, url, bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	ans, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if out != nil && resp.StatusCode/100 == 2 {
		if err := json.Unmarshal(ans, out); err != nil {
			t.Fatalf("%s %s: %v in %s", method, url, err, ans)
		}
	}
	return resp.StatusCode, string(ans)
}

// await polls until done returns "", and fails with its last word after a time.
func await(t testing.TB, limit time.Duration, done func() string) {
	t.Helper()
	if _, ok := t.(*attempt); ok {
		limit = min(limit, 5*time.Second) // it is to fail
	}
	deadline := time.Now().Add(limit)
	for {
		last := done()
		if last == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %s", limit, last)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// workerID is (instance, rank) as answers name it.
type workerID struct{ instance, rank string }

// truth feeds a model from what mock engines say they publish.
type truth struct {
	at []mockengine.Endpoint
	mu struct {
		sync.Mutex
		model *model.Model[workerID]
	}
}

func newTruth() *truth {
	tr := &truth{}
	tr.mu.model = model.New[workerID](model.Config{})
	return tr
}

func (tr *truth) worker(publisher int) workerID {
	e := tr.at[publisher]
	return workerID{strconv.FormatUint(e.Instance, 10), strconv.FormatUint(uint64(e.Rank), 10)}
}

// Append implements mockengine.Sink.
func (tr *truth) Append(r mockengine.Record) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	h := tr.worker(r.Publisher)
	switch r.Kind {
	case mockengine.RecordLife:
		tr.mu.model.Remove(h)
	case mockengine.RecordCleared:
		tr.mu.model.Apply(h, model.Event{Kind: model.Cleared, Tier: model.AllTiers})
	case mockengine.RecordRemoved:
		tr.mu.model.Apply(h, model.Event{Kind: model.Removed, Tier: int(r.Tier), Engines: append([]uint64(nil), r.Engines...)})
	case mockengine.RecordStored:
		tr.mu.model.Apply(h, model.Event{
			Kind: model.Stored, Tier: int(r.Tier), HasParent: r.HasParent, Parent: r.Parent,
			Engines: append([]uint64(nil), r.Engines...), Locals: append([]uint64(nil), r.Locals...),
		})
	}
}

// fleet opens mock engines that register at a node and record into a truth.
func startFleet(t *testing.T, url string, cfg mockengine.Config) (*mockengine.Fleet, *truth, <-chan error) {
	t.Helper()
	tr := newTruth()
	cfg.Sink, cfg.Register, cfg.Model, cfg.Stay = tr, url, "parity", true
	f, err := mockengine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	network, err := zmq.New(zmq.Config{Logger: testLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Open(network); err != nil {
		t.Fatal(err)
	}
	tr.at = f.Endpoints()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("fleet: %v", err)
		}
		if err := network.Close(); err != nil {
			t.Errorf("network: %v", err)
		}
	})
	return f, tr, ended
}

// settle waits until the fleet has played its trace and the node, or all owners of a
// cluster together, hold what the engines hold.
func settle(t *testing.T, url string, f *mockengine.Fleet, limit time.Duration) {
	t.Helper()
	select {
	case <-f.Done():
	case <-time.After(limit):
		t.Fatalf("the fleet did not finish in %v:\n%s", limit, f.Stats())
	}
	await(t, 60*time.Second, func() string {
		held, want := statusOf(t, url).Index.Held, f.Stats().Held
		if held["device"] == want[indexer.Device] && held["host_pinned"] == want[indexer.Host] {
			return ""
		}
		_, workers := call(t, "GET", url+"/workers", nil, nil)
		return fmt.Sprintf("node holds %v, engines hold %v\n%s", held, want, workers)
	})
}

// answer is the part of a score response that is judged, in tokens.
type answer struct {
	Scores    map[string]map[string]int `json:"scores"`
	Instances map[string]struct {
		Longest int            `json:"longest_matched"`
		GPU     int            `json:"gpu"`
		CPU     int            `json:"cpu"`
		Disk    int            `json:"disk"`
		DP      map[string]int `json:"dp"`
	} `json:"instances"`
	Partial, Stale bool
	Missing        []string
}

// traceOf returns the first n requests of a public trace when it is there, and a
// generated one of the same shape otherwise.
func traceOf(t *testing.T, name string, n int) *trace.Trace {
	t.Helper()
	path := filepath.Join("..", "..", "..", "..", "shared", "traces", name)
	tr, err := trace.ReadFile(path)
	if os.IsNotExist(err) || err != nil {
		if _, statErr := os.Stat(path); statErr == nil {
			t.Fatal(err)
		}
		g, err := trace.Generate(trace.DefaultGenerate(n))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	if n < len(tr.Requests) {
		tr.Requests = tr.Requests[:n]
	}
	return tr
}
