package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// expectedMetrics are names with labels that have to be there after traffic: those of
// Dynamo's indexer, so that its dashboards work, and ours for what it lacks.
var expectedMetrics = []struct {
	name, kind string
	labels     []string
	above      float64 // at least, -1 = any value
}{
	{"dynamo_kvindexer_request_duration_seconds_bucket", "", []string{`endpoint="/query"`, `le="0.0001"`}, 0},
	{"dynamo_kvindexer_request_duration_seconds_bucket", "", []string{`endpoint="/query"`, `le="52.4288"`}, 1},
	{"dynamo_kvindexer_request_duration_seconds_count", "", []string{`endpoint="/query"`}, 1},
	{"dynamo_kvindexer_requests_total", "counter", []string{`endpoint="/query"`, `method="POST"`}, 1},
	{"dynamo_kvindexer_requests_total", "counter", []string{`endpoint="/workers"`, `method="GET"`}, 1},
	{"dynamo_kvindexer_requests_total", "counter", []string{`endpoint="/query_by_hash"`, `method="POST"`}, 1},
	{"dynamo_kvindexer_requests_total", "counter", []string{`endpoint="unknown"`}, 1},
	{"dynamo_kvindexer_errors_total", "counter", []string{`endpoint="/query"`, `status_class="4xx"`}, 1},
	{"dynamo_kvindexer_errors_total", "counter", []string{`endpoint="/query"`, `status_class="5xx"`}, 0},
	{"dynamo_kvindexer_models", "gauge", nil, 1},
	{"dynamo_kvindexer_workers", "gauge", nil, 2},
	{"dynamo_kvindexer_listeners", "gauge", []string{`status="active"`}, 1},
	{"dynamo_kvindexer_listeners", "gauge", []string{`status="failed"`}, 0},
	{"dynamo_kvrouter_kv_cache_events_applied", "counter", []string{`event_type="stored"`, `status="ok"`}, 1},
	{"dynamo_kvrouter_kv_cache_events_applied", "counter", []string{`event_type="removed"`, `status="ok"`}, 1},
	{"dynamo_kvrouter_kv_cache_events_applied", "counter", []string{`event_type="cleared"`, `status="ok"`}, 1},
	{"dynamo_kvrouter_kv_cache_events_applied", "counter", []string{`event_type="stored"`, `status="parent_block_not_found"`}, 1},
	{"dynamo_kvrouter_kv_cache_event_warnings", "counter", []string{`warning_kind="duplicate_store"`}, 1},
	{"dynamo_kvrouter_ckf_mutation_total", "counter", []string{`outcome="unknown_remove"`}, 1},
	{"dynamo_kvrouter_ckf_mutation_total", "counter", []string{`outcome="capacity_exhausted"`}, 0},
	{"dynamo_kvrouter_lower_tier_removal_total", "counter", []string{`outcome="removals_fanout_chunks"`}, 0},
	{"dynamo_kvrouter_lower_tier_removal_total", "counter", []string{`outcome="removal_hashes_member_covered"`}, 0},
	{"dynamo_kvrouter_lower_tier_removal_total", "counter", []string{`outcome="removal_hashes_legacy_deleted"`}, 0},
	{"dynamo_kvrouter_lower_tier_removal_total", "counter", []string{`outcome="removal_hashes_owner_protected"`}, 0},
	{"dynamo_kvrouter_lower_tier_removal_total", "counter", []string{`outcome="removal_hashes_unknown"`}, 0},
	{"dynamo_kvrouter_lower_tier_removal_total", "counter", []string{`outcome="entries_kept_shared_owner"`}, 0},

	{"kvcluster_stream_last_event_age_seconds", "gauge", []string{`instance_id="95"`, `dp_rank="0"`, `model="metrics"`, `routing_group="default"`}, 0},
	{"kvcluster_stream_batches_total", "counter", []string{`instance_id="95"`}, 4},
	{"kvcluster_stream_events_total", "counter", []string{`instance_id="95"`}, 5},
	{"kvcluster_stream_sequence_gaps_total", "counter", []string{`instance_id="95"`}, 1},
	{"kvcluster_stream_replays_total", "counter", []string{`instance_id="95"`}, 1},
	{"kvcluster_stream_losses_total", "counter", []string{`instance_id="95"`}, 0},
	{"kvcluster_stream_lives_total", "counter", []string{`instance_id="95"`}, 1},
	{"kvcluster_stream_inherited_blocks_total", "counter", []string{`instance_id="95"`, `kind="checked"`}, 0},
	{"kvcluster_stream_inherited_blocks_total", "counter", []string{`instance_id="95"`, `kind="loose"`}, 0},
	{"kvcluster_stream_filling", "gauge", []string{`instance_id="95"`}, 0},
	{"kvcluster_stream_unacknowledged_batches", "gauge", []string{`instance_id="95"`}, 0},
	{"kvcluster_stream_rejected_events_total", "counter", []string{`instance_id="95"`, `reason="malformed"`}, 1},
	{"kvcluster_stream_rejected_blocks_total", "counter", []string{`instance_id="95"`, `reason="block_size_mismatch"`}, 2},
	{"kvcluster_stream_block_size_mismatches_total", "counter", []string{`instance_id="95"`}, 1},
	{"kvcluster_stream_orphan_blocks", "gauge", []string{`instance_id="95"`}, 1},
	{"kvcluster_stream_held_blocks", "gauge", []string{`instance_id="95"`, `tier="device"`}, 1},
	{"kvcluster_stream_held_blocks", "gauge", []string{`instance_id="95"`, `tier="host_pinned"`}, 1},
	{"kvcluster_stream_degraded", "gauge", []string{`instance_id="95"`}, 0},
	{"kvcluster_stream_lag_seconds", "gauge", []string{`instance_id="95"`}, 0},
	{"kvcluster_stream_warnings", "gauge", []string{`kind="block_size"`}, 1},
	{"kvcluster_degraded_streams", "gauge", nil, 0},
	{"kvcluster_lag_seconds_bucket", "", []string{`le="+Inf"`}, 1},
	{"kvcluster_lag_seconds_count", "", nil, 1},
	{"kvcluster_ready", "gauge", nil, 1},
	{"kvcluster_index_held_blocks", "gauge", []string{`tier="device"`}, 1},
	{"kvcluster_index_held_blocks", "gauge", []string{`tier="host_pinned"`}, 1},
	{"kvcluster_index_distinct_blocks", "gauge", nil, 1},
	{"kvcluster_index_bytes", "gauge", []string{`purpose=`}, 1},
	{"kvcluster_index_reserved_bytes", "gauge", nil, 1},
	{"kvcluster_index_frames_total", "counter", nil, 1},
	{"kvcluster_index_faults_total", "counter", nil, 0},
	{"kvcluster_lane_queued_frames", "gauge", []string{`lane="0"`}, 0},
	{"kvcluster_lane_frames_total", "counter", nil, 1},
	{"go_goroutines", "gauge", nil, 1},
	{"process_resident_memory_bytes", "gauge", nil, 1},
}

// Every metric of the HTTP contract, and ours, is there after traffic and has counted
// it. pprof answers on a port of its own, the access log has a line for each request.
func TestMetricsAfterTraffic(t *testing.T) {
	debug, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	debug.Close()
	log := filepath.Join(t.TempDir(), "access.log")
	url := startNode(t, func(c *node.Config) {
		if isAsked(t, c) {
			c.Router.DebugAddress, c.Router.AccessLog = debug.Addr().String(), log
		}
	})
	network := newSockets(t)
	e := newHandDriven(t, network, url, "metrics", 95, nil)
	newHandDriven(t, network, url, "metrics", 96, nil)
	p, orphan := makePrompt(1, 0, 8, 0), makePrompt(2, 0, 4, 0)
	e.store(p, 0, 8, indexer.Device)
	e.settle(p)
	e.store(p, 0, 8, indexer.Device) // nothing new
	e.store(p, 0, 4, indexer.Host)
	e.remove(p, indexer.Device, 7)
	e.remove(orphan, indexer.Device, 1) // nobody has it
	e.store(orphan, 2, 4, indexer.Device)
	e.pending = append(e.pending, encode.Event{Raw: []byte("\x92\xabBlockStored\xa3abc")})
	e.store(makePrompt(3, 0, 4, 0), 0, 4, indexer.Device)
	last := &e.pending[len(e.pending)-1]
	last.BlockSize, last.Hashes = 2*blockTokens, last.Hashes[:2]
	e.settle(p)
	e.remove(p, indexer.Device, 6)
	e.withhold() // a gap, closed by replay
	e.settle(p)
	other := newHandDriven(t, network, url, "cleared", 97, nil)
	other.store(p, 0, 1, indexer.Device)
	other.clear()
	other.send()
	other.awaitBatches()
	await(t, 10*time.Second, func() string {
		if n := e.score(p); n != 6 {
			return fmt.Sprintf("the prompt scores %d blocks, want 6", n)
		}
		return ""
	})
	call(t, "POST", url+"/query", map[string]any{"model_name": "nobody", "token_ids": []int{1}}, nil)
	call(t, "POST", url+"/query_by_hash", map[string]any{"model_name": "metrics", "block_hashes": []int{1}}, nil)
	call(t, "GET", url+"/nowhere", nil, nil)

	for _, m := range expectedMetrics {
		await(t, 10*time.Second, func() string {
			text := scrape(t, url)
			if m.kind != "" && !strings.Contains(text, "# TYPE "+m.name+" "+m.kind+"\n") {
				return fmt.Sprintf("there is no %s %s", m.kind, m.name)
			}
			if !strings.Contains(text, "\n"+m.name) {
				return fmt.Sprintf("there is no series of %s", m.name)
			}
			found := false
			for line := range strings.Lines(text) {
				found = found || strings.HasPrefix(line, m.name) && containsAll(line, m.labels)
			}
			if v := metric(t, url, m.name, m.labels...); !found || v < m.above {
				return fmt.Sprintf("%s%v is %v (there: %t), want at least %v", m.name, m.labels, v, found, m.above)
			}
			return ""
		})
	}

	resp, err := http.Get("http://" + debug.Addr().String() + "/debug/pprof/goroutine?debug=1")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("pprof answers %d", resp.StatusCode)
	}
	if status, _ := call(t, "GET", url+"/debug/pprof/", nil, nil); status != 404 {
		t.Errorf("pprof is served to everybody: HTTP %d", status)
	}
	f, err := os.Open(log)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	paths := map[string]int{}
	for in := bufio.NewScanner(f); in.Scan(); {
		var line struct {
			TS, Path, Method, Model string
			Status                  int
			Duration                *float64 `json:"duration_ms"`
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil || line.TS == "" || line.Status == 0 || line.Duration == nil || line.Model == "" {
			t.Fatalf("access log: %v in %s", err, in.Text())
		}
		paths[line.Path]++
	}
	for _, p := range []string{"/register", "/query", "/query_by_hash", "/workers", "unknown"} {
		if paths[p] == 0 {
			t.Errorf("the access log has no %s: %v", p, paths)
		}
	}
}

func containsAll(line string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(line, p) {
			return false
		}
	}
	return true
}

// scrape returns the metrics of a node, and of all others of its cluster: what a node
// counts is in its own only.
func scrape(tb testing.TB, url string) (text string) {
	tb.Helper()
	for _, at := range nodesOf(url) {
		_, one := call(tb, "GET", at+"/metrics", nil, nil)
		text += one
	}
	return text
}

// metric adds up the series of a name that carry all of the labels (`name="value"`), over
// all nodes of a cluster.
func metric(tb testing.TB, url, name string, labels ...string) float64 {
	tb.Helper()
	return sumSeries(tb, scrape(tb, url), name, labels)
}

// metricAt is metric of one node: for what it says about all.
func metricAt(tb testing.TB, url, name string, labels ...string) float64 {
	tb.Helper()
	_, text := call(tb, "GET", url+"/metrics", nil, nil)
	return sumSeries(tb, text, name, labels)
}

func sumSeries(tb testing.TB, text, name string, labels []string) float64 {
	tb.Helper()
	sum := 0.0
next:
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, name) || !strings.ContainsAny(line[len(name):len(name)+1], " {") {
			continue
		}
		for _, l := range labels {
			if !strings.Contains(line, l) {
				continue next
			}
		}
		f := strings.Fields(line)
		v, err := strconv.ParseFloat(f[len(f)-1], 64)
		if err != nil {
			tb.Fatalf("metric %s: %v in %q", name, err, line)
		}
		sum += v
	}
	return sum
}
