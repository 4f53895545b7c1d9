package router

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fixture is a router over a fake cluster, asked through its handler.
type fixture struct {
	t      testing.TB
	fake   *fakeCluster
	router *Router
}

func setup(t testing.TB, cfg Config) *fixture {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, fake: newFake()}
	f.router = New(cfg, f.fake, slog.New(slog.NewTextHandler(io.Discard, nil)))
	t.Cleanup(func() {
		if err := f.router.Close(); err != nil {
			t.Error(err)
		}
		if f.fake.live != 0 {
			t.Errorf("%d searchers were not closed", f.fake.live)
		}
	})
	return f
}

// answer is what a test looks at.
type answer struct {
	status int
	header http.Header
	body   string
}

func (f *fixture) do(method, path, contentType, body string, header ...string) answer {
	f.t.Helper()
	req := httptest.NewRequest(method, path, strings.NewReader(body))
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	f.router.Handler().ServeHTTP(w, req)
	return answer{w.Code, w.Header(), w.Body.String()}
}

func (f *fixture) get(path string) answer { return f.do("GET", path, "", "") }

func (f *fixture) post(path, body string) answer { return f.do("POST", path, "application/json", body) }

// mustPost posts and wants a status.
func (f *fixture) mustPost(path, body string, status int) answer {
	f.t.Helper()
	a := f.post(path, body)
	if a.status != status {
		f.t.Fatalf("POST %s %s: %d %s, want %d", path, body, a.status, a.body, status)
	}
	return a
}

// register registers an instance of model m with block size 4 in the Dynamo dialect.
func (f *fixture) register(instance string, rank int) {
	f.t.Helper()
	b, err := json.Marshal(map[string]any{
		"instance_id": json.RawMessage(appendID(nil, instance)), "endpoint": "tcp://127.0.0.1:5557", "model_name": "m",
		"block_size": 4, "dp_rank": rank,
	})
	if err != nil {
		f.t.Fatal(err)
	}
	f.mustPost("/register", string(b), 201)
}

// want compares status and body; a body that begins with { or [ is compared as JSON.
func (a answer) want(t testing.TB, status int, body string) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d: %s", a.status, status, a.body)
		return
	}
	if body == "" || body[0] != '{' && body[0] != '[' {
		if a.body != body {
			t.Errorf("body %q, want %q", a.body, body)
		}
		return
	}
	if got := a.header.Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	if d := cmp.Diff(decode(t, body), decode(t, a.body)); d != "" {
		t.Errorf("body (-want +got):\n%s\n%s", d, a.body)
	}
}

// decode keeps numbers as texts, so that u64 values compare exactly.
func decode(t testing.TB, text string) any {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader([]byte(text)))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("not JSON: %v: %s", err, text)
	}
	return v
}
