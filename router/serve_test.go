package router

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcluster/kvcluster/indexer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// deadline bounds every wait of these tests; nothing sleeps.
const deadline = 20 * time.Second

// run starts a router on a free port and returns its address and a function that ends
// it and returns Run's error.
func run(t *testing.T, cfg Config) (fake *fakeCluster, address string, stop func() error) {
	t.Helper()
	listening := make(chan net.Addr, 1)
	cfg.Address = "127.0.0.1:0"
	cfg.OnListen = func(a net.Addr) { listening <- a }
	fake = newFake()
	r := New(cfg, fake, slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stop = func() error {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(deadline):
			return errors.New("Run did not end")
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
		if fake.live != 0 {
			t.Errorf("%d searchers were not closed", fake.live)
		}
	})
	select {
	case a := <-listening:
		return fake, a.String(), stop
	case err := <-ended:
		t.Fatal(err)
	case <-time.After(deadline):
		t.Fatal("not listening")
	}
	return nil, "", nil
}

func TestRun(t *testing.T) {
	_, address, stop := run(t, Config{})
	client := http.Client{Timeout: deadline}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + address + "/health")
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 200 {
		t.Errorf("health: %d", res.StatusCode)
	}

	// The port is taken now: the next one says so.
	r := New(Config{Address: address}, newFake(), slog.New(slog.NewTextHandler(io.Discard, nil)))
	err = r.Run(t.Context())
	if !errors.Is(err, ErrAddressInUse) || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "another process") {
		t.Errorf("port in use: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := client.Get("http://" + address + "/health"); err == nil {
		t.Error("still serving")
	}
}

func TestPprofIsOnItsOwnPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	debug := l.Addr().String()
	l.Close()
	_, address, _ := run(t, Config{DebugAddress: debug})
	client := http.Client{Timeout: deadline}
	defer client.CloseIdleConnections()
	for url, want := range map[string]int{"http://" + debug + "/debug/pprof/cmdline": 200, "http://" + address + "/debug/pprof/cmdline": 404} {
		res, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d, want %d", url, res.StatusCode, want)
		}
	}
}

// A client that sends its body too slowly is cut off, and the next one is served.
func TestSlowBody(t *testing.T) {
	_, address, _ := run(t, Config{ReadTimeout: 50 * time.Millisecond})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(deadline))
	fmt.Fprintf(conn, "POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"token_ids\":[1,")
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("slow body: %d", res.StatusCode)
	}
	if _, err := io.ReadAll(conn); err != nil {
		t.Errorf("connection was not closed: %v", err)
	}
}

// A client that sends less than it announced gets no query run on half a body.
func TestShortBody(t *testing.T) {
	_, address, _ := run(t, Config{})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(deadline))
	fmt.Fprintf(conn, "POST /query HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{}")
	conn.(*net.TCPConn).CloseWrite()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("short body: %d", res.StatusCode)
	}
}

// A body whose length is not announced is limited while it is read.
func TestChunkedBodyLimit(t *testing.T) {
	_, address, _ := run(t, Config{})
	client := http.Client{Timeout: deadline}
	defer client.CloseIdleConnections()
	body := io.MultiReader(strings.NewReader(`{"url":"`), io.LimitReader(endless{}, MaxBody), strings.NewReader(`"}`))
	res, err := client.Post("http://"+address+"/register_peer", "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusRequestEntityTooLarge {
		t.Errorf("chunked body: %d", res.StatusCode)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'a'
	}
	return len(p), nil
}

// When every searcher is busy a query waits its turn, and is refused after a while.
func TestTooManyQueries(t *testing.T) {
	f := setup(t, Config{MaxConcurrentQueries: 1, QueueTimeout: time.Millisecond})
	f.register("1", 0)
	f.fake.hold("1", 0, indexer.Device, 0, 1)
	f.fake.block = make(chan struct{})
	query := `{"block_hashes":[1],"model_name":"m"}`
	first := make(chan answer, 1)
	go func() { first <- f.post("/query_by_hash", query) }()
	for wait := time.Now(); ; { // until the first one has the only searcher
		if len(f.router.pool.idle) == 0 {
			break
		}
		if time.Since(wait) > deadline {
			t.Fatal("the first query did not start")
		}
		runtime.Gosched()
	}
	a := f.post("/query_by_hash", query)
	a.want(t, 503, `{"error":"too many queries at the same time, try again"}`)
	close(f.fake.block)
	if a := <-first; a.status != 200 || !strings.Contains(a.body, `"1":{"0":4}`) {
		t.Errorf("first: %d %s", a.status, a.body)
	}
	f.mustPost("/query_by_hash", query, 200)
}

// Clients that announce large bodies and send nothing keep no large body of others out.
func TestAnnouncedBodiesHoldNoPlace(t *testing.T) {
	f := setup(t, Config{MaxLargeBodies: 1, QueueTimeout: time.Millisecond})
	f.register("1", 0)
	var slow []*io.PipeWriter
	var ended sync.WaitGroup
	for range 4 {
		body, w := io.Pipe()
		slow = append(slow, w)
		req := httptest.NewRequest("POST", "/query", body)
		req.Header.Set("Content-Type", "application/json")
		req.ContentLength = 2 * largeBody
		ended.Go(func() { f.router.Handler().ServeHTTP(httptest.NewRecorder(), req) })
		if _, err := w.Write([]byte("{")); err != nil { // the handler reads: it is waiting for the rest
			t.Fatal(err)
		}
	}
	f.mustPost("/query", strings.Repeat(" ", largeBody)+`{"token_ids":[1],"model_name":"m"}`, 200)
	for _, w := range slow {
		w.Close()
	}
	ended.Wait()
}

// Large bodies in memory are bounded in number; small ones go past them.
func TestTooManyLargeBodies(t *testing.T) {
	f := setup(t, Config{MaxLargeBodies: 1, QueueTimeout: time.Millisecond})
	f.register("1", 0)
	f.router.large <- struct{}{} // somebody holds the only place
	pad := strings.Repeat(" ", largeBody)
	f.post("/query", pad+`{"token_ids":[1],"model_name":"m"}`).want(t, 503, `{"error":"too many large requests at the same time, try again"}`)
	f.mustPost("/query", `{"token_ids":[1],"model_name":"m"}`, 200)
	<-f.router.large
	for range 3 { // the place is given back, errors included
		f.mustPost("/query", pad+`{"token_ids":[1],"model_name":"m"}`, 200)
		f.mustPost("/query", pad+`{"token_ids":`, 400)
	}
}

// A handler that panics costs its own request only.
func TestPanicIsContained(t *testing.T) {
	f := setup(t, Config{MaxConcurrentQueries: 1})
	f.register("1", 0)
	f.fake.onMatch = func(*fakeCluster) { panic("broken") }
	f.post("/query_by_hash", `{"block_hashes":[1],"model_name":"m"}`).want(t, 500, `{"error":"internal error"}`)
	f.fake.onMatch = nil
	f.mustPost("/query_by_hash", `{"block_hashes":[1],"model_name":"m"}`, 200)
}

func TestAccessLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "access.log")
	f := setup(t, Config{AccessLog: path, TraceIDHeader: "X-Request-Id"})
	f.post("/reopen_logs", "").want(t, 200, `{"status":"ok"}`)
	f.register("1", 0)
	f.do("POST", "/query", "application/json", `{"token_ids":[1],"model_name":"m"}`, "X-Request-Id", `a"b`)
	f.post("/query", `{"model`)
	f.get("/nope?x=1")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	f.do("POST", "/reopen_logs", "", "").want(t, 200, `{"status":"ok"}`)
	f.get("/health")
	type record struct {
		TS      string  `json:"ts"`
		Trace   string  `json:"trace_id"`
		Method  string  `json:"method"`
		Path    string  `json:"path"`
		Model   string  `json:"model"`
		Status  int     `json:"status"`
		Took    float64 `json:"duration_ms"`
		Unknown any     `json:"-"`
	}
	read := func(path string) (out []string) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			var r record
			dec := json.NewDecoder(strings.NewReader(line))
			dec.DisallowUnknownFields()
			if err := dec.Decode(&r); err != nil {
				t.Fatalf("%v: %s", err, line)
			}
			if ts, err := time.Parse("2006-01-02T15:04:05.000Z", r.TS); err != nil || time.Since(ts) > time.Hour {
				t.Errorf("ts %q: %v", r.TS, err)
			}
			if r.Took <= 0 {
				t.Errorf("duration %v", r.Took)
			}
			out = append(out, fmt.Sprintf("%s %s %s %s %d", r.Trace, r.Method, r.Path, r.Model, r.Status))
		}
		return out
	}
	want := []string{"- POST /reopen_logs - 200", "- POST /register m 201", `a"b POST /query m 200`, "- POST /query - 400", "- GET unknown - 404"}
	if got := read(path + ".1"); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("before rotation: %q, want %q", got, want)
	}
	if got := read(path); len(got) != 2 || got[1] != "- GET /health - 200" {
		t.Errorf("after rotation: %q", got)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if a := f.post("/reopen_logs", ""); a.status != 500 || !strings.Contains(a.body, "access log") {
		t.Errorf("no folder: %d %s", a.status, a.body)
	}
	off := setup(t, Config{})
	off.post("/reopen_logs", "").want(t, 200, `{"status":"ok"}`)
}

func TestConfigValidate(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	bad := Config{Address: "nowhere", DebugAddress: "0.0.0.0:6060", ReadTimeout: -1, MaxConcurrentQueries: -1}
	err := bad.Validate()
	for _, part := range []string{"nowhere", "loopback", "read timeout", "concurrent queries"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
}

// A request that waits for something when the router is told to end is given up, so that
// the process ends.
func TestEndWithARequestThatWaits(t *testing.T) {
	waiting, gaveUp := make(chan struct{}), make(chan error, 1)
	f := &fakeCluster{}
	c := &waitingCluster{fakeCluster: f, leave: func(ctx context.Context) error {
		close(waiting)
		<-ctx.Done()
		gaveUp <- ctx.Err()
		return ctx.Err()
	}}
	ctx, cancel := context.WithCancel(t.Context())
	at := make(chan net.Addr, 1)
	r := New(Config{Address: "127.0.0.1:0", ShutdownTimeout: 20 * time.Millisecond, OnListen: func(a net.Addr) { at <- a }}, c, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	url := "http://" + (<-at).String() + "/members/a/leave"
	go func() {
		if resp, err := http.Post(url, "application/json", nil); err == nil {
			resp.Body.Close()
		}
	}()
	<-waiting
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the router does not end")
	}
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("the request ended with %v", err)
	}
	http.DefaultClient.CloseIdleConnections()
}

// waitingCluster does something else for a leave.
type waitingCluster struct {
	*fakeCluster
	leave func(context.Context) error
}

func (c *waitingCluster) Leave(ctx context.Context, _ string) error { return c.leave(ctx) }

// Probe finds what Run would fail with, and leaves nothing open.
func TestProbe(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	good := Config{Address: address, DebugAddress: "127.0.0.1:0", AccessLog: filepath.Join(t.TempDir(), "access")}
	for range 2 {
		if err := Probe(t.Context(), good); err != nil {
			t.Fatal(err)
		}
	}
	for what, c := range map[string]Config{
		"port in use":        {Address: taken.Addr().String()},
		"pprof: listen":      {Address: address, DebugAddress: taken.Addr().String()},
		"access log":         {Address: address, AccessLog: "/nonexistent/access"},
		"cannot assign":      {Address: "192.0.2.1:0"},
		"listen on nohost.i": {Address: "nohost.invalid:80"},
	} {
		if err := Probe(t.Context(), c); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
