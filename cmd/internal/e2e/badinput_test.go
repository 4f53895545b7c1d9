package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
)

// healthy is a worker that must notice nothing of what others do wrong.
type healthy struct {
	*handDriven
	prompts [][]uint32
}

func newHealthy(tb testing.TB, url, name string) *healthy {
	h := &healthy{}
	h.handDriven = newHandDriven(tb, newSockets(tb), url, name, 81, func(e *handDriven) { e.told = model.New[string](model.Config{}) })
	for branch := range 3 {
		p := makePrompt(1, branch, 12, 6)
		h.prompts = append(h.prompts, p)
		h.store(p, 0, 12, indexer.Device)
	}
	h.remove(h.prompts[1], indexer.Device, 8)
	h.settle(h.prompts...)
	h.unharmed("at the beginning")
	return h
}

// unharmed compares all answers with what the worker said, before and after it goes on.
func (h *healthy) unharmed(when string) {
	h.tb.Helper()
	for range 2 {
		for _, p := range h.prompts {
			if diff := difference(h.tb, h.url, h.model, h.told, []*handDriven{h.handDriven}, p); diff != "" {
				h.tb.Errorf("%s: the healthy worker: %s", when, diff)
			}
		}
		if l := listenerOf(h.tb, h.url, h.id); l.Status != "active" && l.Status != "catching_up" || l.Lives > 1 || l.Gaps != 0 {
			h.tb.Errorf("%s: the healthy worker's stream: %+v", when, l)
		}
		h.remove(h.prompts[0], indexer.Device, 11)
		h.settle(h.prompts...)
		h.store(h.prompts[0], 11, 12, indexer.Device)
		h.settle(h.prompts...)
	}
}

// post sends bytes as JSON and returns what came back.
func post(tb testing.TB, url, contentType string, body []byte) (int, string) {
	tb.Helper()
	resp, err := http.Post(url, contentType, bytes.NewReader(body))
	if err != nil {
		tb.Fatal(err)
	}
	defer resp.Body.Close()
	ans, err := io.ReadAll(resp.Body)
	if err != nil {
		tb.Fatal(err)
	}
	return resp.StatusCode, string(ans)
}

// Bad requests: each has its status and a text that says what is wrong, and none costs
// anybody anything.
func TestBadRequests(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	const endpoint = `"endpoint":"tcp://127.0.0.1:1"`
	huge := append(append([]byte(`{"model_name":"good","token_ids":[`), bytes.Repeat([]byte("1,"), 5<<20)...), "1]}"...)
	for _, c := range []struct {
		name, path, body string
		status           int
		says             string
	}{
		{"no JSON", "/query", `{"model_name":"good","token_ids":[1,2`, 400, "JSON"},
		{"text instead of JSON", "/query", `give me everything`, 400, "JSON"},
		{"nothing", "/query", ``, 400, "JSON"},
		{"an array", "/query", `[1,2,3]`, 422, ""},
		{"two values", "/query", `{"model_name":"good","token_ids":[1]} {"again":1}`, 400, ""},
		{"a model that is a number", "/query", `{"model_name":7,"token_ids":[1]}`, 422, "model_name"},
		{"tokens that are a text", "/query", `{"model_name":"good","token_ids":"1,2"}`, 422, "token_ids"},
		{"a token that is a text", "/query", `{"model_name":"good","token_ids":[1,"2"]}`, 422, "token_ids"},
		{"a token below zero", "/query", `{"model_name":"good","token_ids":[-1]}`, 422, "token_ids"},
		{"a token beyond 32 bits", "/query", `{"model_name":"good","token_ids":[4294967296]}`, 422, "token_ids"},
		{"a token of 2^63", "/query", `{"model_name":"good","token_ids":[9223372036854775808]}`, 422, "token_ids"},
		{"a token with a fraction", "/query", `{"model_name":"good","token_ids":[1.5]}`, 422, "token_ids"},
		{"no tokens", "/query", `{"model_name":"good"}`, 422, "token_ids"},
		{"no model", "/query", `{"token_ids":[1]}`, 422, "model_name"},
		{"an unknown model", "/query", `{"model_name":"bad","token_ids":[1]}`, 404, "no indexer for model=bad routing_group=default"},
		{"an unknown group", "/query", `{"model_name":"good","routing_group":"x","token_ids":[1]}`, 404, "routing_group=x"},
		{"a null where none may be", "/query", `{"model_name":"good","routing_group":null,"token_ids":[1]}`, 422, "routing_group"},
		{"two names of a model", "/query", `{"model_name":"good","model":"other","token_ids":[1]}`, 400, "model"},
		{"a hash beyond 64 bits", "/query_by_hash", `{"model_name":"good","block_hashes":[18446744073709551616]}`, 422, "block_hashes"},
		{"hashes with a salt", "/query_by_hash", `{"model_name":"good","block_hashes":[1],"cache_salt":""}`, 400, "cache_salt"},
		{"nested a hundred thousand deep", "/query", `{"x":` + strings.Repeat("[", 100_000), 400, ""},
		{"ten megabytes", "/query", string(huge), 413, "larger"},
		{"three megabytes of registration", "/register", `{"x":"` + strings.Repeat("x", 3<<20) + `"}`, 413, "larger"},

		{"an instance below zero", "/register", `{"instance_id":-1,` + endpoint + `,"model_name":"good","block_size":4}`, 422, "instance_id"},
		{"an instance of 2^64", "/register", `{"instance_id":18446744073709551616,` + endpoint + `,"model_name":"good","block_size":4}`, 422, "instance_id"},
		{"an instance with a fraction", "/register", `{"instance_id":1.5,` + endpoint + `,"model_name":"good","block_size":4}`, 422, "instance_id"},
		{"no instance", "/register", `{` + endpoint + `,"model_name":"good","block_size":4}`, 422, "instance_id"},
		{"no endpoint", "/register", `{"instance_id":1,"model_name":"good","block_size":4}`, 422, "endpoint"},
		{"no scheme", "/register", `{"instance_id":1,"endpoint":"127.0.0.1:5557","model_name":"good","block_size":4}`, 400, "missing scheme"},
		{"no port", "/register", `{"instance_id":1,"endpoint":"tcp://127.0.0.1","model_name":"good","block_size":4}`, 400, "missing TCP port"},
		{"a port beyond 16 bits", "/register", `{"instance_id":1,"endpoint":"tcp://127.0.0.1:65536","model_name":"good","block_size":4}`, 400, "invalid TCP port"},
		{"another scheme", "/register", `{"instance_id":1,"endpoint":"udp://127.0.0.1:1","model_name":"good","block_size":4}`, 400, "unsupported scheme `udp`"},
		{"a replay endpoint that is none", "/register", `{"instance_id":1,` + endpoint + `,"replay_endpoint":"x","model_name":"good","block_size":4}`, 400, "invalid replay endpoint"},
		{"a block size of 0", "/register", `{"instance_id":1,` + endpoint + `,"model_name":"new","block_size":0}`, 400, "block_size"},
		{"a block size below zero", "/register", `{"instance_id":1,` + endpoint + `,"model_name":"new","block_size":-4}`, 422, "block_size"},
		{"a block size of 2^32", "/register", `{"instance_id":1,` + endpoint + `,"model_name":"new","block_size":4294967296}`, 422, "block_size"},
		{"a block size that is a text", "/register", `{"instance_id":1,` + endpoint + `,"model_name":"new","block_size":"16"}`, 422, "block_size"},
		{"a rank beyond 32 bits", "/register", `{"instance_id":1,` + endpoint + `,"dp_rank":4294967296,"model_name":"new","block_size":4}`, 422, "dp_rank"},
		{"another block size", "/register", `{"instance_id":1,` + endpoint + `,"model_name":"good","block_size":16}`, 409, "block_size mismatch for model=good routing_group=default: existing=4, requested=16"},
		{"the same rank again", "/register", `{"instance_id":81,` + endpoint + `,"model_name":"good","block_size":4}`, 409, "instance 81 dp_rank 0 already registered"},
		{"the same instance elsewhere", "/register", `{"instance_id":81,` + endpoint + `,"model_name":"other","block_size":4}`, 409, "instance 81 is already registered for model=good routing_group=default"},
		{"nobody unregistered", "/unregister", `{"instance_id":99,"model_name":"good"}`, 404, "instance 99 not found"},
		{"a rank that is not there unregistered", "/unregister", `{"instance_id":81,"model_name":"good","routing_group":"default","dp_rank":5}`, 404, "instance 81 dp_rank 5 not found"},
		{"unregistered from another group", "/unregister", `{"instance_id":81,"model_name":"good","routing_group":"x"}`, 404, "routing_group=default"},

		{"bytes that are no UTF-8 as a body", "/query", "\xff\xfe\x00", 400, ""},
		{"bytes that are no UTF-8 in a model", "/query", "{\"model_name\":\"\xff\xfe\",\"token_ids\":[1]}", 400, "UTF-8"},
		{"bytes that are no UTF-8 in a registered model", "/register", "{\"instance_id\":1," + endpoint + ",\"model_name\":\"\xff\",\"block_size\":4}", 400, "UTF-8"},
		{"bytes that are no UTF-8 in an instance", "/register", "{\"instance_id\":\"a\xc3\"," + endpoint + ",\"model_name\":\"m\",\"block_size\":4}", 400, "UTF-8"},
		{"bytes that are no UTF-8 in a topic", "/register", "{\"instance_id\":1,\"topic\":\"\xf0\x28\"," + endpoint + ",\"model_name\":\"m\",\"block_size\":4}", 400, "UTF-8"},
		{"a lone surrogate in a model", "/register", `{"instance_id":1,` + endpoint + `,"model_name":"\ud800","block_size":4}`, 400, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, ans := post(t, url+c.path, "application/json", []byte(c.body))
			if status != c.status || !strings.Contains(ans, c.says) || ans == "" {
				t.Errorf("HTTP %d %.300q, want %d with %q", status, ans, c.status, c.says)
			}
			if status == 409 || status == 404 {
				var e struct{ Error string }
				if err := json.Unmarshal([]byte(ans), &e); err != nil || e.Error == "" {
					t.Errorf("%q is not the JSON of an error", ans)
				}
			}
		})
	}
	for _, c := range []struct {
		name, method, path, contentType string
		status                          int
	}{
		{"an unknown path", "GET", "/nowhere", "", 404},
		{"another method", "GET", "/query", "", 405},
		{"another method of a list", "POST", "/workers", "application/json", 405},
		{"no content type", "POST", "/query", "", 415},
		{"another content type", "POST", "/query", "text/plain", 415},
	} {
		t.Run(c.name, func(t *testing.T) {
			req, err := http.NewRequest(c.method, url+c.path, strings.NewReader(`{}`))
			if err != nil {
				t.Fatal(err)
			}
			if c.contentType != "" {
				req.Header.Set("Content-Type", c.contentType)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != c.status {
				t.Errorf("HTTP %d, want %d", resp.StatusCode, c.status)
			}
		})
	}
	h.unharmed("after all bad requests")
	if n := len(listWorkers(t, url)); n != 1 {
		t.Errorf("%d workers are registered, want 1: a refused registration has left something", n)
	}
}

func listWorkers(tb testing.TB, url string) (ws []map[string]any) {
	tb.Helper()
	call(tb, "GET", url+"/workers", nil, &ws)
	return ws
}

// Fields that nobody knows are no error: clients of all dialects send some.
func TestUnknownFieldsAreIgnored(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	body := `{"model_name":"good","not_a_field":{"a":[1,{"b":null}]},"token_ids":[1,2,3,4],"zz":1e400}`
	if status, ans := post(t, url+"/query", "application/json", []byte(body)); status != 200 {
		t.Errorf("HTTP %d %s", status, ans)
	}
	h.unharmed("after unknown fields")
}

// Sizes at the edge of what a number may be are either refused or do no harm.
func TestAbsurdSizes(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	register := func(instance any, rank uint32, model string, blockSize uint32) (int, string) {
		return call(t, "POST", url+"/register", map[string]any{
			"instance_id": instance, "dp_rank": rank, "endpoint": "tcp://127.0.0.1:1", "model_name": model, "block_size": blockSize,
		}, nil)
	}
	if status, ans := register(uint64(math.MaxUint64), math.MaxUint32, "largest", math.MaxUint32); status != 201 {
		t.Errorf("the largest numbers that fit: HTTP %d %s", status, ans)
	}
	if status, ans := post(t, url+"/query", "application/json", []byte(`{"model_name":"largest","token_ids":[1,2,3]}`)); status != 200 {
		t.Errorf("a query of blocks larger than any prompt: HTTP %d %s", status, ans)
	}
	if status, ans := register(1, 0, strings.Repeat("m", 1<<20), 4); status != 201 && status != 400 {
		t.Errorf("a model name of a megabyte: HTTP %d %.100s", status, ans)
	}
	million := make([]uint32, 1_000_000)
	if ans := ask(t, url, "good", million); len(ans.Scores) != 0 {
		t.Errorf("a million zeros score %v", ans.Scores)
	}
	// Many ranks of one worker, most of them on one endpoint.
	const ranks = 1000
	for rank := range uint32(ranks) {
		if status, ans := register("many", rank*100, "good", blockTokens); status != 201 {
			t.Fatalf("rank %d: HTTP %d %s", rank*100, status, ans)
		}
	}
	h.unharmed("with a worker of many ranks")
	if status, ans := call(t, "POST", url+"/unregister", map[string]any{"instance_id": "many", "model_name": "good"}, nil); status != 200 {
		t.Errorf("unregister %d ranks: HTTP %d %s", ranks, status, ans)
	}
	h.unharmed("after the worker of many ranks has gone")
}

// A stream that cannot be had says so, and others go on.
func TestUnreachableEndpoint(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	unreachable := []string{"tcp://127.0.0.1:1", "tcp://nowhere.invalid:5557", "tcp://" + listenDeaf(t), "ipc:///nonexistent/socket"}
	for i, endpoint := range unreachable {
		id := 200 + i
		if status, ans := call(t, "POST", url+"/register", map[string]any{"instance_id": id, "endpoint": endpoint, "model_name": "good", "block_size": blockTokens}, nil); status != 201 {
			t.Fatalf("register %s: HTTP %d %s", endpoint, status, ans)
		}
	}
	for i, endpoint := range unreachable {
		await(t, 15*time.Second, func() string {
			l := listenerOf(t, url, fmt.Sprint(200+i))
			if (l.Status == "pending" || l.Status == "failed") && strings.Contains(l.LastError, endpoint) {
				return ""
			}
			return fmt.Sprintf("%s is shown as %+v", endpoint, l)
		})
	}
	h.unharmed("beside streams that cannot be had")
	if n := metric(t, url, "dynamo_kvindexer_listeners", `status="pending"`) + metric(t, url, "dynamo_kvindexer_listeners", `status="failed"`); n != 4 {
		t.Errorf("%v streams are counted as pending or failed, want 4", n)
	}
}

// Two sources cannot bind one port: the second says so.
func TestBoundPortInUse(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	endpoint := fmt.Sprintf("tcp://*:%d", l.Addr().(*net.TCPAddr).Port)
	if status, ans := call(t, "POST", url+"/register", map[string]any{"instance_id": 210, "endpoint": endpoint, "model_name": "good", "block_size": blockTokens}, nil); status != 201 {
		t.Fatalf("register: HTTP %d %s", status, ans)
	}
	await(t, 10*time.Second, func() string {
		if l := listenerOf(t, url, "210"); l.Status != "failed" && l.Status != "pending" || !strings.Contains(l.LastError, "in use") {
			return fmt.Sprintf("a port that is in use is shown as %+v", l)
		}
		return ""
	})
	h.unharmed("beside a port in use")
}

// Blocks of another size than registered are not indexed, and it can be seen.
func TestBlockSizeMismatch(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	e := newHandDriven(t, h.net, url, "good", 220, nil)
	p := makePrompt(3, 0, 8, 0)
	e.store(p, 0, 8, indexer.Device)
	for i := range e.pending { // the same tokens in blocks of twice the size
		ev := &e.pending[i]
		ev.BlockSize, ev.Hashes = 2*blockTokens, ev.Hashes[:4]
	}
	e.send()
	await(t, 10*time.Second, func() string {
		l := listenerOf(t, url, "220")
		if l.Mismatches == 0 {
			return fmt.Sprintf("no mismatch is counted: %+v", l)
		}
		for _, w := range l.Warnings {
			if strings.Contains(w, fmt.Sprint(2*blockTokens)) && strings.Contains(w, fmt.Sprint(blockTokens)) {
				return ""
			}
		}
		return fmt.Sprintf("no warning names both sizes: %q", l.Warnings)
	})
	if n := metric(t, url, "kvcluster_stream_block_size_mismatches_total", `instance_id="220"`); n != 1 {
		t.Errorf("the metric counts %v mismatches, want 1", n)
	}
	if n := e.score(p); n != 0 {
		t.Errorf("blocks of another size score %d", n)
	}
	e.store(p, 0, 3, indexer.Device)
	e.settle(p)
	if n := e.score(p); n != 3 {
		t.Errorf("blocks of the right size score %d behind the wrong ones, want 3", n)
	}
	h.unharmed("beside blocks of another size")
}

// A node on a port that is taken does not start, and says what to do.
func TestTwoNodesOnOnePort(t *testing.T) {
	url := startNode(t, nil)
	h := newHealthy(t, url, "good")
	cfg := node.Defaults()
	cfg.Router.Address = strings.TrimPrefix(url, "http://")
	err := node.Run(t.Context(), cfg, testLogger(t))
	if err == nil || !strings.Contains(err.Error(), "port in use") || !strings.Contains(err.Error(), "choose another port") {
		t.Errorf("a second node on %s: %v", cfg.Router.Address, err)
	}
	h.unharmed("beside a second node")
}
