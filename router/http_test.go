package router

import (
	"strings"
	"testing"
)

// General rules: what the server answers before a handler looks at anything.
func TestFrameworkErrors(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	deep := strings.Repeat("[", 5000)
	cases := []struct {
		name, method, path, contentType, body string
		status                                int
		contains                              string
	}{
		{"unknown path", "GET", "/nothing", "", "", 404, ""},
		{"unknown path, POST", "POST", "/nothing", "text/plain", "x", 404, ""},
		{"trailing slash", "POST", "/query/", "application/json", "{}", 404, ""},
		{"test route not mounted", "POST", "/test/pause_listener", "", "not json", 404, ""},
		{"wrong method", "GET", "/query", "", "", 405, ""},
		{"wrong method, GET route", "POST", "/workers", "application/json", "{}", 405, ""},
		{"other method", "DELETE", "/register", "", "", 405, ""},
		{"no content type", "POST", "/query", "", "{}", 415, "application/json"},
		{"text", "POST", "/query", "text/plain", "{}", 415, "application/json"},
		{"form", "POST", "/register", "application/x-www-form-urlencoded", "a=b", 415, "application/json"},
		{"msgpack where it is not spoken", "POST", "/register_peer", "application/msgpack", "\x80", 415, "application/json"},
		{"empty body", "POST", "/query", "application/json", "", 400, "line 1 column 1"},
		{"not JSON", "POST", "/query", "application/json", "hello", 400, "line 1 column 1"},
		{"cut off", "POST", "/query", "application/json", `{"token_ids":[1,2`, 400, "unexpected end"},
		{"trailing", "POST", "/query", "application/json", `{"token_ids":[1],"model_name":"m"} x`, 400, "trailing"},
		{"trailing comma", "POST", "/query", "application/json", `{"token_ids":[1,],"model_name":"m"}`, 400, "column 17"},
		{"leading zero", "POST", "/query", "application/json", `{"token_ids":[01],"model_name":"m"}`, 400, "invalid number"},
		{"not UTF-8", "POST", "/query", "application/json", "{\"token_ids\":[1],\"model_name\":\"m\xff\"}", 400, "UTF-8"},
		{"not UTF-8 in an unknown field", "POST", "/query", "application/json", "{\"x\":\"\xff\",\"token_ids\":[1],\"model_name\":\"m\"}", 400, "UTF-8"},
		{"lone surrogate", "POST", "/query", "application/json", `{"token_ids":[1],"model_name":"\ud800"}`, 400, "surrogate"},
		{"deep nesting", "POST", "/query", "application/json", `{"x":` + deep, 400, "recursion"},
		{"array", "POST", "/query", "application/json", `[1]`, 422, "expected an object"},
		{"string", "POST", "/query", "application/json", `"x"`, 422, "expected an object"},
		{"null", "POST", "/query", "application/json", `null`, 422, "expected an object"},
		{"missing tokens", "POST", "/query", "application/json", `{"model_name":"m"}`, 422, "missing field `token_ids`"},
		{"missing model", "POST", "/query", "application/json", `{"token_ids":[1]}`, 422, "missing field `model_name`"},
		{"tokens a string", "POST", "/query", "application/json", `{"token_ids":"1","model_name":"m"}`, 422, "token_ids"},
		{"tokens null", "POST", "/query", "application/json", `{"token_ids":null,"model_name":"m"}`, 422, "token_ids"},
		{"token negative", "POST", "/query", "application/json", `{"token_ids":[1,-1],"model_name":"m"}`, 422, "element 1"},
		{"token too large", "POST", "/query", "application/json", `{"token_ids":[4294967296],"model_name":"m"}`, 422, "4294967295"},
		{"token absurd", "POST", "/query", "application/json", `{"token_ids":[` + strings.Repeat("9", 400) + `],"model_name":"m"}`, 422, "element 0"},
		{"token float", "POST", "/query", "application/json", `{"token_ids":[1.0],"model_name":"m"}`, 422, "element 0"},
		{"token exponent", "POST", "/query", "application/json", `{"token_ids":[1e3],"model_name":"m"}`, 422, "element 0"},
		{"token string", "POST", "/query", "application/json", `{"token_ids":[1,"2"],"model_name":"m"}`, 422, "element 1"},
		{"token nested", "POST", "/query", "application/json", `{"token_ids":[[1]],"model_name":"m"}`, 422, "element 0"},
		{"group null", "POST", "/query", "application/json", `{"token_ids":[1],"model_name":"m","routing_group":null}`, 422, "routing_group"},
		{"group number", "POST", "/query", "application/json", `{"token_ids":[1],"model_name":"m","routing_group":1}`, 422, "routing_group"},
		{"tenant null", "POST", "/query", "application/json", `{"token_ids":[1],"model_name":"m","tenant_id":null}`, 422, "tenant_id"},
		{"tenant number", "POST", "/query_by_hash", "application/json", `{"block_hashes":[1],"model_name":"m","tenant_id":5}`, 422, "tenant_id"},
		{"tenant null on register", "POST", "/register", "application/json", `{"instance_id":1,"endpoint":"tcp://a:1","model_name":"m","block_size":4,"tenant_id":null}`, 422, "tenant_id"},
		{"lora null", "POST", "/query", "application/json", `{"token_ids":[1],"model_name":"m","lora_name":null,"cache_salt":null}`, 200, `"scores":{}`},
		{"lora number", "POST", "/query", "application/json", `{"token_ids":[1],"model_name":"m","lora_name":7}`, 422, "lora_name"},
		{"unknown fields", "POST", "/query", "application/json", `{"a":{"b":[1,2,{"c":null}]},"token_ids":[1],"model_name":"m","block_size":"not ours","instance_id":[]}`, 200, `"scores":{}`},
		{"content type with charset", "POST", "/query", "application/json; charset=utf-8", `{"token_ids":[1],"model_name":"m"}`, 200, `"scores":{}`},
		{"content type +json", "POST", "/query", "application/vnd.api+json", `{"token_ids":[1],"model_name":"m"}`, 200, `"scores":{}`},
		{"last occurrence counts", "POST", "/query", "application/json", `{"model_name":"other","token_ids":[1],"model_name":"m"}`, 200, `"scores":{}`},
		{"escaped key and value", "POST", "/query", "application/json", `{"\u006dodel_name":"\u006d","token_ids":[]}`, 200, `"scores":{}`},
		{"unknown query parameter", "GET", "/workers?x=1", "", "", 200, `"instance_id":1`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := f.do(c.method, c.path, c.contentType, c.body)
			if a.status != c.status || !strings.Contains(a.body, c.contains) {
				t.Fatalf("%d %q, want %d with %q", a.status, a.body, c.status, c.contains)
			}
			switch a.status {
			case 404, 405:
				if a.body != "" {
					t.Errorf("body %q, want none", a.body)
				}
			case 400, 415, 422:
				if ct := a.header.Get("Content-Type"); !strings.HasPrefix(ct, "text/plain") {
					t.Errorf("content type %q, want plain text", ct)
				}
			}
		})
	}
	if got := f.get("/query").header.Get("Allow"); got != "POST" {
		t.Errorf("Allow: %q", got)
	}
}

func TestBodyLimits(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	fill := func(size int, rest string) string {
		head := `{"x":"`
		tail := `",` + rest + `}`
		return head + strings.Repeat("a", size-len(head)-len(tail)) + tail
	}
	query := `"token_ids":[1,2,3,4],"model_name":"m"`
	byHash := `"block_hashes":[1],"model_name":"m"`
	for _, c := range []struct {
		path, rest   string
		size, status int
	}{
		{"/query", query, MaxQueryBody, 200},
		{"/query", query, MaxQueryBody + 1, 413},
		{"/query_by_hash", byHash, MaxBody, 200},
		{"/query_by_hash", byHash, MaxBody + 1, 413},
		{"/register_peer", `"url":"http://p"`, MaxBody, 201},
		{"/register_peer", `"url":"http://p"`, MaxBody + 1, 413},
	} {
		if a := f.post(c.path, fill(c.size, c.rest)); a.status != c.status {
			t.Errorf("%s with %d bytes: %d, want %d: %.100s", c.path, c.size, a.status, c.status, a.body)
		}
	}
}

func TestHealthReadyStatus(t *testing.T) {
	f := setup(t, Config{})
	f.get("/health").want(t, 200, "")
	f.get("/ready").want(t, 200, `{"ready":true}`)
	for _, reason := range []string{ReasonRecovering, ReasonInitialWorkers} {
		f.fake.notReady = reason
		f.get("/ready").want(t, 503, `{"ready":false,"reason":"`+reason+`"}`)
		f.get("/health").want(t, 200, "")
	}
	f.fake.status.MinWorkers = 3
	f.register("7", 0)
	f.register("7", 1)
	f.fake.stream("7", 0).Degraded = "batches 5 to 9 lost"
	s := decode(t, f.get("/status").body).(map[string]any)
	if s["ready"] != false || s["reason"] != ReasonInitialWorkers {
		t.Errorf("status: %v", s)
	}
	if gate := s["worker_gate"].(map[string]any); text(gate["min_initial_workers"]) != "3" || text(gate["workers"]) != "1" {
		t.Errorf("worker gate: %v", gate)
	}
	listeners := s["listeners"].(map[string]any)
	if text(listeners["active"]) != "1" || text(listeners["pending"]) != "1" || text(listeners["failed"]) != "0" {
		t.Errorf("listeners: %v", listeners)
	}
	if text(s["degraded_streams"]) != "1" || text(s["streams_with_warnings"]) != "1" {
		t.Errorf("status: %v", s)
	}
}

func TestPeers(t *testing.T) {
	f := setup(t, Config{Peers: []string{"http://first:8090"}})
	f.get("/peers").want(t, 200, `["http://first:8090"]`)
	f.post("/register_peer", `{"url":"http://second:8090"}`).want(t, 201, `{"status":"ok"}`)
	f.post("/register_peer", `{"url":"http://second:8090"}`).want(t, 201, `{"status":"ok"}`)
	f.get("/peers").want(t, 200, `["http://first:8090","http://second:8090"]`)
	f.post("/deregister_peer", `{"url":"http://first:8090"}`).want(t, 200, `{"status":"ok"}`)
	f.post("/deregister_peer", `{"url":"http://first:8090"}`).want(t, 404, `{"error":"peer not found"}`)
	f.get("/peers").want(t, 200, `["http://second:8090"]`)
	if a := f.post("/register_peer", `{}`); a.status != 422 {
		t.Errorf("no url: %d", a.status)
	}
	empty := setup(t, Config{})
	empty.get("/peers").want(t, 200, `[]`)
}

func TestListenerControl(t *testing.T) {
	f := setup(t, Config{TestEndpoints: true})
	f.register("5", 0)
	f.register("5", 2)
	pause, resume := "/test/pause_listener", "/test/resume_listener"
	f.post(pause, `{"instance_id":9}`).want(t, 404, `{"error":"instance 9 not found"}`)
	f.post(pause, `{"instance_id":5,"dp_rank":1}`).want(t, 404, `{"error":"instance 5 dp_rank 1 not found"}`)
	if a := f.post(pause, `{"dp_rank":1}`); a.status != 422 {
		t.Errorf("no instance: %d", a.status)
	}
	f.fake.stream("5", 0).State = StreamPending
	f.post(pause, `{"instance_id":5,"dp_rank":null}`).want(t, 200, `{"status":"ok"}`)
	f.post(pause, `{"instance_id":5}`).want(t, 409, `{"error":"instance 5 dp_rank 0 cannot be paused from status paused"}`)
	f.post(resume, `{"instance_id":5}`).want(t, 200, `{"status":"ok"}`)
	f.post(resume, `{"instance_id":5}`).want(t, 409, `{"error":"instance 5 dp_rank 0 cannot be resumed from status active"}`)
	f.fake.stream("5", 2).State = StreamFailed
	f.post(resume, `{"instance_id":5,"dp_rank":2}`).want(t, 200, `{"status":"ok"}`)
}

func text(v any) string {
	if s, ok := v.(interface{ String() string }); ok {
		return s.String()
	}
	return ""
}
