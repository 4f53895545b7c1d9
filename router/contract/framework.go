package contract

import (
	"strings"
)

// Sizes of bodies: that of a prompt of a million tokens, and of everything else.
const (
	maxQueryBody = 8 << 20
	maxBody      = 2 << 20
)

// framework: what the server answers before a handler looks at anything.
func (s *suite) framework() {
	s.worker(Group{Model: "m", BlockSize: 4}, "1", 0)
	deep := strings.Repeat("[", 5000)
	const js = "application/json"
	for _, c := range []struct {
		name, method, path, contentType, body string
		status                                int
		contains                              string
	}{
		{"unknown path", "GET", "/nothing", "", "", 404, ""},
		{"unknown path, POST", "POST", "/nothing", "text/plain", "x", 404, ""},
		{"trailing slash", "POST", "/query/", js, "{}", 404, ""},
		{"wrong method", "GET", "/query", "", "", 405, ""},
		{"wrong method, GET route", "POST", "/workers", js, "{}", 405, ""},
		{"other method", "DELETE", "/register", "", "", 405, ""},
		{"no content type", "POST", "/query", "", "{}", 415, js},
		{"text", "POST", "/query", "text/plain", "{}", 415, js},
		{"form", "POST", "/register", "application/x-www-form-urlencoded", "a=b", 415, js},
		{"msgpack where it is not spoken", "POST", "/register_peer", "application/msgpack", "\x80", 415, js},
		{"empty body", "POST", "/query", js, "", 400, "line 1 column 1"},
		{"not JSON", "POST", "/query", js, "hello", 400, "line 1 column 1"},
		{"cut off", "POST", "/query", js, `{"token_ids":[1,2`, 400, "unexpected end"},
		{"trailing", "POST", "/query", js, `{"token_ids":[1],"model_name":"m"} x`, 400, "trailing"},
		{"trailing comma", "POST", "/query", js, `{"token_ids":[1,],"model_name":"m"}`, 400, "column 17"},
		{"leading zero", "POST", "/query", js, `{"token_ids":[01],"model_name":"m"}`, 400, "invalid number"},
		{"not UTF-8", "POST", "/query", js, "{\"token_ids\":[1],\"model_name\":\"m\xff\"}", 400, "UTF-8"},
		{"not UTF-8 in an unknown field", "POST", "/query", js, "{\"x\":\"\xff\",\"token_ids\":[1],\"model_name\":\"m\"}", 400, "UTF-8"},
		{"lone surrogate", "POST", "/query", js, `{"token_ids":[1],"model_name":"\ud800"}`, 400, "surrogate"},
		{"deep nesting", "POST", "/query", js, `{"x":` + deep, 400, "recursion"},
		{"array", "POST", "/query", js, `[1]`, 422, "expected an object"},
		{"string", "POST", "/query", js, `"x"`, 422, "expected an object"},
		{"null", "POST", "/query", js, `null`, 422, "expected an object"},
		{"missing tokens", "POST", "/query", js, `{"model_name":"m"}`, 422, "missing field `token_ids`"},
		{"missing model", "POST", "/query", js, `{"token_ids":[1]}`, 422, "missing field `model_name`"},
		{"tokens a string", "POST", "/query", js, `{"token_ids":"1","model_name":"m"}`, 422, "token_ids"},
		{"tokens null", "POST", "/query", js, `{"token_ids":null,"model_name":"m"}`, 422, "token_ids"},
		{"token negative", "POST", "/query", js, `{"token_ids":[1,-1],"model_name":"m"}`, 422, "element 1"},
		{"token too large", "POST", "/query", js, `{"token_ids":[4294967296],"model_name":"m"}`, 422, "4294967295"},
		{"token absurd", "POST", "/query", js, `{"token_ids":[` + strings.Repeat("9", 400) + `],"model_name":"m"}`, 422, "element 0"},
		{"token float", "POST", "/query", js, `{"token_ids":[1.0],"model_name":"m"}`, 422, "element 0"},
		{"token exponent", "POST", "/query", js, `{"token_ids":[1e3],"model_name":"m"}`, 422, "element 0"},
		{"token string", "POST", "/query", js, `{"token_ids":[1,"2"],"model_name":"m"}`, 422, "element 1"},
		{"token nested", "POST", "/query", js, `{"token_ids":[[1]],"model_name":"m"}`, 422, "element 0"},
		{"group null", "POST", "/query", js, `{"token_ids":[1],"model_name":"m","routing_group":null}`, 422, "routing_group"},
		{"group number", "POST", "/query", js, `{"token_ids":[1],"model_name":"m","routing_group":1}`, 422, "routing_group"},
		{"tenant null", "POST", "/query", js, `{"token_ids":[1],"model_name":"m","tenant_id":null}`, 422, "tenant_id"},
		{"tenant number", "POST", "/query_by_hash", js, `{"block_hashes":[1],"model_name":"m","tenant_id":5}`, 422, "tenant_id"},
		{"tenant null on register", "POST", "/register", js, `{"instance_id":1,"endpoint":"tcp://a:1","model_name":"m","block_size":4,"tenant_id":null}`, 422, "tenant_id"},
		{"lora null", "POST", "/query", js, `{"token_ids":[1],"model_name":"m","lora_name":null,"cache_salt":null}`, 200, `"scores":{}`},
		{"lora number", "POST", "/query", js, `{"token_ids":[1],"model_name":"m","lora_name":7}`, 422, "lora_name"},
		{"unknown fields", "POST", "/query", js, `{"a":{"b":[1,2,{"c":null}]},"token_ids":[1],"model_name":"m","block_size":"not ours","instance_id":[]}`, 200, `"scores":{}`},
		{"content type with charset", "POST", "/query", js + "; charset=utf-8", `{"token_ids":[1],"model_name":"m"}`, 200, `"scores":{}`},
		{"content type +json", "POST", "/query", "application/vnd.api+json", `{"token_ids":[1],"model_name":"m"}`, 200, `"scores":{}`},
		{"last occurrence counts", "POST", "/query", js, `{"model_name":"other","token_ids":[1],"model_name":"m"}`, 200, `"scores":{}`},
		{"escaped key and value", "POST", "/query", js, `{"\u006dodel_name":"\u006d","token_ids":[]}`, 200, `"scores":{}`},
		{"unknown query parameter", "GET", "/workers?x=1", "", "", 200, `"instance_id":1`},
	} {
		s.ask(Request{Method: c.method, Path: c.path, ContentType: c.contentType, Body: c.body}, status(c.status, c.contains), func(a Answer) string {
			switch a.Status {
			case 404, 405:
				if a.Body != "" {
					return c.name + ": want no body"
				}
			case 400, 415, 422:
				if ct := a.Header.Get("Content-Type"); !strings.HasPrefix(ct, "text/plain") {
					return c.name + ": want plain text, not " + ct
				}
			}
			return ""
		})
	}
	s.ask(get("/query"), func(a Answer) string {
		if got := a.Header.Get("Allow"); got != "POST" {
			return "Allow: " + got
		}
		return ""
	})
}

func (s *suite) limits() {
	s.worker(Group{Model: "limits", BlockSize: 4}, "2", 0)
	fill := func(size int, rest string) string {
		head, tail := `{"x":"`, `",`+rest+`}`
		return head + strings.Repeat("a", size-len(head)-len(tail)) + tail
	}
	const query, byHash, peer = `"token_ids":[1,2,3,4],"model_name":"limits"`, `"block_hashes":[1],"model_name":"limits"`, `"url":"http://p"`
	for _, c := range []struct {
		path, rest   string
		size, status int
	}{
		{"/query", query, maxQueryBody, 200},
		{"/query", query, maxQueryBody + 1, 413},
		{"/query_by_hash", byHash, maxBody, 200},
		{"/query_by_hash", byHash, maxBody + 1, 413},
		{"/register_peer", peer, maxBody, 201},
		{"/register_peer", peer, maxBody + 1, 413},
	} {
		s.ask(post(c.path, fill(c.size, c.rest)), status(c.status, ""))
	}
	s.ask(post("/deregister_peer", `{"url":"http://p"}`), is(200, `{"status":"ok"}`))
}

func (s *suite) health() {
	s.ask(get("/health"), is(200, ""))
	s.ask(get("/ready"), is(200, `{"ready":true}`))
	s.ask(get("/status"), has(200, `{"ready":true}`))
	s.ask(post("/reopen_logs", ""), is(200, `{"status":"ok"}`))
}

// Every node has peers of its own.
func (s *suite) peers() {
	s.ask(get("/peers"), is(200, `[]`))
	s.ask(post("/register_peer", `{"url":"http://first:8090"}`), is(201, `{"status":"ok"}`))
	for range 2 {
		s.ask(post("/register_peer", `{"url":"http://second:8090"}`), is(201, `{"status":"ok"}`))
	}
	s.ask(get("/peers"), is(200, `["http://first:8090","http://second:8090"]`))
	s.ask(post("/deregister_peer", `{"url":"http://first:8090"}`), is(200, `{"status":"ok"}`))
	s.ask(get("/peers"), is(200, `["http://second:8090"]`))
	s.ask(post("/deregister_peer", `{"url":"http://first:8090"}`), is(404, `{"error":"peer not found"}`))
	s.ask(post("/register_peer", `{}`), status(422, "url"))
	s.ask(post("/deregister_peer", `{"url":"http://second:8090"}`), is(200, `{"status":"ok"}`))
}
