package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// awaitFile returns the content of a file once it is there.
func awaitFile(t *testing.T, path string) string {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		raw, err := os.ReadFile(path)
		if err == nil {
			return string(raw)
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// lockedBuffer is written by a command that runs beside the test.
type lockedBuffer struct {
	mu struct {
		sync.Mutex
		b bytes.Buffer
	}
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.b.String()
}

// beside runs a command until the test ends and returns what it writes.
func beside(t *testing.T, args ...string) (stdout, stderr *lockedBuffer) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stdout, stderr = &lockedBuffer{}, &lockedBuffer{}
	ended := make(chan int, 1)
	go func() { ended <- run(ctx, args, stdout, stderr) }()
	t.Cleanup(func() {
		cancel()
		if code := <-ended; code != exitOK {
			t.Errorf("kvcluster %s: exit code %d\n%s", strings.Join(args, " "), code, stderr)
		}
	})
	return stdout, stderr
}

// serve runs a node and returns its URL.
func serve(t *testing.T, args ...string) string {
	t.Helper()
	address := filepath.Join(t.TempDir(), "address")
	beside(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--address-file", address}, args...)...)
	return "http://" + awaitFile(t, address)
}

// ok runs a command that has to succeed.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := kvcluster(t, args...)
	if code != exitOK {
		t.Fatalf("kvcluster %s: exit code %d\n%s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

func parsed[T any](t *testing.T, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return v
}

func awaitTrue(t *testing.T, done func() string) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		last := done()
		if last == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after 20 s: %s", last)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Every command against a node, as a user or a script would call them.
func TestRoundTrip(t *testing.T) {
	cleanEnvironment(t)
	url := serve(t)
	t.Setenv("KVCLUSTER_SERVER", url)
	if out := ok(t, "workers"); !strings.Contains(out, "no workers are registered") {
		t.Errorf("workers of an empty node: %q", out)
	}

	// Mock workers play a trace and stay registered.
	out := ok(t, "mock", "--workers", "2", "--format", "vllm-map", "--requests", "30", "--speedup", "0", "--keep", "--quiet", "--model", "trip", "--register", url)
	if !strings.Contains(out, "stored") {
		t.Errorf("the summary of mock says nothing of stores: %q", out)
	}
	type workers []struct {
		Instance  any `json:"instance_id"`
		Listeners map[string]struct {
			Endpoint string
			Held     map[string]int
		}
	}
	w := parsed[workers](t, ok(t, "workers", "--json"))
	if len(w) != 2 || w[0].Listeners["0"].Endpoint == "" {
		t.Fatalf("two workers were registered: %+v", w)
	}
	if table := ok(t, "workers", "--model", "trip"); strings.Count(table, "trip") != 2 || !strings.HasPrefix(table, "INSTANCE") {
		t.Errorf("table of workers:\n%s", table)
	}
	if other := parsed[workers](t, ok(t, "workers", "--model", "other", "--json")); len(other) != 0 {
		t.Errorf("workers of another model: %+v", other)
	}
	status := parsed[map[string]any](t, ok(t, "status", "--json"))
	if status["ready"] != true {
		t.Errorf("status: %v", status)
	}
	if page := ok(t, "status"); !strings.Contains(page, "ready") || !strings.Contains(page, url) {
		t.Errorf("status page:\n%s", page)
	}
	if lines := ok(t, "top", "--count", "2", "--period", "50ms"); strings.Count(lines, "events/s=") != 2 || strings.Contains(lines, "\x1b") {
		t.Errorf("two looks that are no terminal's:\n%q", lines)
	}

	// A worker of our own, with an id beyond what a float can hold.
	const id = "18446744073709551615"
	if out := ok(t, "register", id, "tcp://127.0.0.1:1", "--model", "trip", "--block-size", "16", "--json"); parsed[map[string]string](t, out)["status"] != "ok" {
		t.Errorf("register: %q", out)
	}
	code, _, errs := kvcluster(t, "register", id, "tcp://127.0.0.1:1", "--model", "trip", "--block-size", "16")
	if code != exitFailed || !strings.Contains(errs, "already registered") {
		t.Errorf("registered twice: exit code %d, %q", code, errs)
	}
	code, _, errs = kvcluster(t, "register", "9", "tcp://127.0.0.1:1", "--model", "trip", "--block-size", "32")
	if code != exitFailed || !strings.Contains(errs, "block_size mismatch") {
		t.Errorf("registered with another block size: exit code %d, %q", code, errs)
	}
	if table := ok(t, "workers"); !strings.Contains(table, id+" ") {
		t.Errorf("the id %s is not in the table:\n%s", id, table)
	}
	if out := ok(t, "unregister", id, "--model", "trip"); !strings.Contains(out, "gone") {
		t.Errorf("unregister: %q", out)
	}
	code, _, errs = kvcluster(t, "unregister", id, "--model", "trip")
	if code != exitNotFound || !strings.Contains(errs, "not found") {
		t.Errorf("unregistered twice: exit code %d, %q", code, errs)
	}
	code, _, errs = kvcluster(t, "query", "--model", "nobody", "--tokens", "1 2 3")
	if code != exitNotFound || !strings.Contains(errs, "no indexer for model=nobody") {
		t.Errorf("query of an unknown model: exit code %d, %q", code, errs)
	}
}

// A recorded stream is published again; query and explain find it.
func TestRecordReplayQueryExplain(t *testing.T) {
	cleanEnvironment(t)
	url := serve(t)
	t.Setenv("KVCLUSTER_SERVER", url)
	dir := t.TempDir()
	rec := filepath.Join(dir, "worker.rec")

	// Record a mock worker that publishes while we look.
	_, log := beside(t, "--verbose", "mock", "--workers", "1", "--format", "vllm-map", "--repeat=-1", "--requests", "40", "--speedup", "50", "--quiet", "--model", "live", "--register", url)
	endpoint := ""
	awaitTrue(t, func() string {
		if _, after, ok := strings.Cut(log.String(), "endpoint=tcp"); ok {
			endpoint, _, _ = strings.Cut("tcp"+after, " ")
			return ""
		}
		return "the mock does not say where it publishes: " + log.String()
	})
	if out := ok(t, "replay", "--record", endpoint, "--batches", "40", rec); !strings.Contains(out, "recorded 40 batches") {
		t.Fatalf("record: %q", out)
	}
	// A prompt of tokens that nobody has, and a recording that replays as another worker.
	_, played := beside(t, "replay", rec, "--rate", "1000", "--register", "77", "--model", "again", "--block-size", "16", "--settle", "1s", "--stay")
	type workers []struct {
		Instance  any `json:"instance_id"`
		Listeners map[string]struct{ Batches int }
	}
	awaitTrue(t, func() string {
		for _, w := range parsed[workers](t, ok(t, "workers", "--model", "again", "--json")) {
			if w.Listeners["0"].Batches >= 40 {
				return ""
			}
		}
		return "the replayed batches have not come: " + played.String()
	})
	hash := firstRootBlock(t, url)
	prompt := filepath.Join(dir, "prompt.txt")
	if err := os.WriteFile(prompt, []byte(fmt.Sprintf("[%s]\n", hash)), 0o644); err != nil {
		t.Fatal(err)
	}
	awaitTrue(t, func() string {
		out := ok(t, "query", "--model", "again", "--hashes", "--file", prompt)
		if strings.Contains(out, "\n77 ") && strings.Contains(out, "16") {
			return ""
		}
		return "the block is not found: " + out
	})
	type answer struct {
		Scores map[string]map[string]int
	}
	if a := parsed[answer](t, ok(t, "query", "--model", "again", "--hashes", "--tokens", hash, "--json")); a.Scores["77"]["0"] != 16 {
		t.Errorf("query as JSON: %+v", a)
	}
	text := ok(t, "query", "--model", "again", "--hashes", "--tokens", hash, "--explain", "--instance", "77")
	if !strings.Contains(text, "device") && !strings.Contains(text, "held") {
		t.Errorf("explanation: %q", text)
	}
	parsed[map[string]any](t, ok(t, "query", "--model", "again", "--hashes", "--tokens", hash, "--explain", "--instance", "77", "--json"))
	if out := ok(t, "query", "--model", "again", "--tokens", strings.Repeat("1 ", 16)); !strings.Contains(out, "no worker holds") {
		t.Errorf("query of what nobody has: %q", out)
	}
	ok(t, "unregister", "77", "--model", "again")
}

// firstRootBlock returns the local hash of a block at the root of model "again".
func firstRootBlock(t *testing.T, url string) string {
	t.Helper()
	resp, err := http.Get(url + "/dump?model_name=again")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var dump map[string]struct {
		Events []struct {
			Event struct {
				Data struct {
					Stored *struct {
						Parent *uint64 `json:"parent_hash"`
						Blocks []struct {
							Tokens json.Number `json:"tokens_hash"`
						}
					}
				}
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&dump); err != nil {
		t.Fatal(err)
	}
	for _, d := range dump {
		for _, e := range d.Events {
			if s := e.Event.Data.Stored; s != nil && s.Parent == nil && len(s.Blocks) > 0 {
				return s.Blocks[0].Tokens.String()
			}
		}
	}
	t.Fatal("the dump has no block at the root")
	return ""
}
