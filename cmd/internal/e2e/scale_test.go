package e2e

import (
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/driver"
	"github.com/kvcluster/kvcluster/chaos/mockengine"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
)

// Five hundred publishers on one node, with replay sockets: all become active, what
// they say is there, and none of them costs a thread.
func TestFiveHundredPublishers(t *testing.T) {
	const workers = 500
	before := threads(t)
	url := startNode(t, func(c *node.Config) {
		// Probes of five hundred streams three times a second are not what this is about.
		c.Ingest.ProbeAfter, c.Ingest.ProbeMax = 2*time.Second, 10*time.Second
	})
	start := time.Now()
	cfg := mockengine.Config{
		Workers: workers, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.SGLangMap, mockengine.VLLMArray, mockengine.TRTLLM},
		BlockSize: 16, Capacity: 256, Trace: traceOf(t, "conversation_trace.jsonl", workers), MaxBatchRate: 100,
		Hash: mockengine.HashFast, Driver: driver.Config{Policy: driver.Random},
	}
	f, tr, _ := startFleet(t, url, cfg)
	await(t, 20*time.Second, func() string {
		if n := metricAt(t, url, "dynamo_kvindexer_listeners", `status="active"`); n != workers {
			return fmt.Sprintf("%v of %d streams are active", n, workers)
		}
		return ""
	})
	active := time.Since(start)
	settle(t, url, f, time.Minute)
	for p := range f.Plan().Trace().Requests[:100] {
		if diff := promptDiff(t, url, f, tr, p, cfg.BlockSize); diff != "" {
			t.Fatalf("request %d: %s", p, diff)
		}
	}
	st := statusOf(t, url)
	n := threads(t)
	t.Logf("%d streams active after %v, settled after %v: %d blocks held, %d threads (%d before), %d goroutines, %d MiB resident",
		workers, active.Round(time.Millisecond), time.Since(start).Round(time.Millisecond), st.Index.Held["device"], n, before, runtime.NumGoroutine(), resident(t)>>20)
	if n > before+40 {
		t.Errorf("%d threads for %d publishers, %d before", n, workers, before)
	}
}

// threads counts this process's threads.
func threads(t *testing.T) int {
	t.Helper()
	list, err := filepath.Glob("/proc/self/task/*")
	if err != nil || len(list) == 0 {
		t.Fatalf("threads: %v", err)
	}
	return len(list)
}
