package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/mockengine"
)

// endAll ends all nodes in order and waits until they are gone.
func (c *processes) endAll() {
	c.tb.Helper()
	for name := range c.nodes {
		c.signal(name, syscall.SIGTERM)
	}
	for name, p := range c.nodes {
		select {
		case err := <-p.ended:
			if err != nil {
				c.tb.Errorf("node %s ended with %v\n%s", name, err, lastLines(p.log, 10))
			}
		case <-time.After(30 * time.Second):
			c.tb.Fatalf("node %s did not end\n%s", name, lastLines(p.log, 20))
		}
		delete(c.nodes, name)
	}
}

// startAll starts nodes at the same time: none serves before most of them are there.
func (c *processes) startAll(flags []string, names ...string) {
	c.tb.Helper()
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			p, err := c.launch(name, flags...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				c.tb.Error(err)
				return
			}
			c.nodes[name] = p
		})
	}
	all.Wait()
	if c.tb.Failed() {
		c.tb.FailNow()
	}
	c.awaitBalanced(len(names))
}

// workerLives returns how many lives every worker has had since its reader was started.
func (c *processes) workerLives(want int) (lives map[string]uint64, held uint64) {
	c.tb.Helper()
	await(c.tb, 60*time.Second, func() string {
		var ws []struct {
			InstanceID any `json:"instance_id"`
			Listeners  map[string]struct {
				Status string
				Lives  uint64
				Held   map[string]uint64
			}
		}
		_, body := call(c.tb, "GET", c.anyURL()+"/workers", nil, &ws)
		lives, held = map[string]uint64{}, 0
		for _, w := range ws {
			for rank, l := range w.Listeners {
				if l.Status != "active" || l.Lives == 0 {
					return fmt.Sprintf("worker %v is not read: %s", w.InstanceID, body)
				}
				lives[fmt.Sprint(w.InstanceID, "/", rank)] = l.Lives
				for _, n := range l.Held {
					held += n
				}
			}
		}
		if len(lives) != want {
			return fmt.Sprintf("%d of %d workers: %s", len(lives), want, body)
		}
		return ""
	})
	return lives, held
}

// Three nodes are all ended and started again. The engines can replay only their last
// batches, so what they hold is known from nowhere but the nodes' disks: every answer is
// exact, and no worker has begun a new life. The same with a file that was damaged.
func TestSnapshotRestartOfAllNodes(t *testing.T) {
	const workers, buffer = 8, 24
	c := startCluster(t, 3)
	x := &clusterTraffic{t: t, c: c}
	x.cfg = mockengine.Config{
		Workers: workers, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.SGLangArray},
		BlockSize: 16, Capacity: 4096, Trace: traceOf(t, "conversation_trace.jsonl", requests(300)), Speedup: 60, Buffer: buffer,
	}
	x.fleet, x.truth, _ = startFleet(t, c.anyURL(), x.cfg)
	x.settle()
	_, before := c.workerLives(workers)
	if before < 10_000 {
		t.Fatalf("only %d blocks are held", before)
	}

	restart := func(what string, between func()) {
		t.Helper()
		c.endAll()
		between()
		begin := time.Now()
		c.startAll(nil, "n1", "n2", "n3")
		lives, held := c.workerLives(workers)
		for w, n := range lives {
			if n != 1 {
				t.Errorf("%s: worker %s has begun %d new lives", what, w, n-1)
			}
		}
		if held != before {
			t.Errorf("%s: %d blocks are held, before %d", what, held, before)
		}
		t.Logf("%s: all is there %v after the start", what, time.Since(begin).Round(100*time.Millisecond))
		x.settle()
	}
	restart("restart of all nodes", func() {})

	// One that has many of the blocks: most prompts lie in one partition.
	largest, most := "", uint64(0)
	for name, p := range c.nodes {
		var res struct {
			Bytes      int64
			Copies     int
			HeldBlocks uint64 `json:"held_blocks"`
			Seconds    float64
		}
		if status, body := call(t, "POST", p.url+"/snapshot", nil, &res); status != 200 || res.Copies == 0 {
			t.Fatalf("POST /snapshot: HTTP %d %s", status, body)
		}
		if res.HeldBlocks > most {
			largest, most = name, res.HeldBlocks
			t.Logf("a snapshot of %d blocks has %d bytes, %.1f a block, and took %.3f s", res.HeldBlocks, res.Bytes, float64(res.Bytes)/float64(res.HeldBlocks), res.Seconds)
		}
	}
	if most == 0 {
		t.Fatal("no node has anything to save")
	}

	file := filepath.Join(c.dir, largest, "copies.snap")
	restart("restart of all nodes, the file of one damaged", func() {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		raw[len(raw)/2] ^= 4
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if !fileExists(filepath.Join(c.dir, largest, "copies.bad")) {
		t.Error("the damaged file was not moved aside")
	}
	if raw, err := os.ReadFile(filepath.Join(c.dir, largest+".log")); err != nil || !bytes.Contains(raw, []byte("cannot be used")) {
		t.Errorf("the log says nothing of the damaged file: %v", err)
	}

	// That the engines could not have told it all again: without files it is lost.
	c.endAll()
	for _, name := range []string{"n1", "n2", "n3"} {
		if err := os.Remove(filepath.Join(c.dir, name, "copies.snap")); err != nil {
			t.Error(err)
		}
	}
	c.startAll(nil, "n1", "n2", "n3")
	if _, held := c.workerLives(workers); held >= before {
		t.Errorf("%d blocks are held without any file: the engines' replay reaches too far for this test", held)
	}
}

// The power of all nodes fails while the workers go on. What was written last, a second
// or so before, is the beginning; the engines' replay has what came since: every answer is
// exact, and no worker has begun a new life.
func TestSnapshotPowerCut(t *testing.T) {
	const workers = 8
	flags := []string{"--snapshot-every", "1s"}
	c := startCluster(t, 3, flags...)
	x := &clusterTraffic{t: t, c: c}
	x.cfg = mockengine.Config{
		Workers: workers, Formats: []mockengine.Format{mockengine.VLLMMap, mockengine.SGLangArray},
		BlockSize: 16, Capacity: 2048, Trace: traceOf(t, "conversation_trace.jsonl", requests(300)), Speedup: 6,
	}
	x.fleet, x.truth, _ = startFleet(t, c.anyURL(), x.cfg)
	await(t, 60*time.Second, func() string {
		if _, held := c.workerLives(workers); held < 6000 {
			return fmt.Sprintf("%d blocks are held", held)
		}
		return ""
	})
	// Owners are told once a second how far the workers are.
	mark := time.Now().Add(2 * time.Second)
	await(t, 60*time.Second, func() string {
		for name := range c.nodes {
			info, err := os.Stat(filepath.Join(c.dir, name, "copies.snap"))
			if err != nil || info.ModTime().Before(mark) {
				return fmt.Sprintf("no fresh snapshot of %s: %v", name, err)
			}
		}
		return ""
	})
	for _, name := range sortedNames(c.nodes) {
		c.kill(name)
	}
	select {
	case <-x.fleet.Done():
		t.Error("the traffic was over before the power cut")
	default:
	}
	c.startAll(flags, "n1", "n2", "n3")
	lives, _ := c.workerLives(workers)
	for w, n := range lives {
		if n != 1 {
			t.Errorf("worker %s has begun %d new lives", w, n-1)
		}
	}
	x.settle()
}
