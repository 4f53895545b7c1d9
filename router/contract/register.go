package contract

import (
	"fmt"
	"strings"
)

func (s *suite) register() {
	reg := func(fields string) Request {
		return post("/register", `{"endpoint":"tcp://127.0.0.1:5557","model_name":"registered","block_size":16,`+fields+`}`)
	}
	ok := is(201, `{"status":"ok"}`)
	s.change(reg(`"instance_id":101`), ok)
	s.ask(reg(`"instance_id":101`), is(409, `{"error":"instance 101 dp_rank 0 already registered"}`))
	s.ask(reg(`"instance_id":"101"`), is(409, `{"error":"instance 101 dp_rank 0 already registered"}`))
	s.change(reg(`"instance_id":101,"dp_rank":1,"replay_endpoint":"tcp://127.0.0.1:5558"`), ok)
	s.change(reg(`"instance_id":101,"dp_rank":2,"replay_endpoint":null,"lora_name":null`), ok)
	s.ask(reg(`"instance_id":101,"dp_rank":3,"routing_group":"g"`), is(409, `{"error":"instance 101 is already registered for model=registered routing_group=default"}`))
	s.ask(reg(`"instance_id":102,"block_size":32`), is(409, `{"error":"block_size mismatch for model=registered routing_group=default: existing=16, requested=32"}`))
	s.change(reg(`"instance_id":18446744073709551615`), ok)
	s.change(reg(`"instance_id":103,"tenant_id":"ignored","additional_salt":"unused","other":[]`), ok)
	s.ask(get("/workers?model_name=registered"), func(a Answer) string {
		for _, part := range []string{`"instance_id":101,`, `"instance_id":103,`, `"instance_id":18446744073709551615,`, `"routing_group":"default"`} {
			if !strings.Contains(a.Body, part) {
				return "want " + part
			}
		}
		return ""
	})
	s.ask(reg(`"instance_id":104,"block_size":0`), is(400, `{"error":"block_size must be above 0"}`))
	for _, c := range []struct {
		fields string
		status int
		part   string
	}{
		{`"instance_id":-1`, 422, "instance_id"},
		{`"instance_id":18446744073709551616`, 422, "instance_id"},
		{`"instance_id":1.5`, 422, "instance_id"},
		{`"instance_id":true`, 422, "instance_id"},
		{`"instance_id":null`, 422, "instance_id"},
		{`"instance_id":""`, 400, "needs an instance"},
		{`"instance_id":109,"block_size":4294967296`, 422, "block_size"},
		{`"instance_id":109,"dp_rank":"0"`, 422, "dp_rank"},
		{`"instance_id":109,"model_name":""`, 400, "model"},
		{`"dp_rank":0`, 422, "missing field `instance_id`"},
		{`"instance_id":109,"additional_salt":"a","additionalsalt":"b"`, 400, "different"},
		{`"instance_id":109,"model":"other"`, 400, "different"},
	} {
		s.ask(reg(c.fields), status(c.status, c.part))
	}
}

func (s *suite) endpoints() {
	id := 200
	reg := func(endpoint, replay string) Request {
		id++
		return post("/register", fmt.Sprintf(`{"instance_id":%d,"endpoint":%q,"replay_endpoint":%q,"model_name":"endpoints","block_size":16}`, id, endpoint, replay))
	}
	for _, good := range []string{"tcp://host.invalid:1", "tcp://*:0", "tcp://[::1]:5557", "ipc:///nowhere/x", "inproc://y"} {
		s.change(reg(good, ""), is(201, `{"status":"ok"}`))
	}
	for bad, why := range map[string]string{
		"host:1": "missing scheme", "tcp://": "missing address", "tcp://host": "missing TCP port", "tcp://::1:5": "missing TCP port",
		"tcp://:5": "missing TCP host", "tcp://[::1:5": "missing closing `]`", "udp://h:1": "unsupported scheme `udp`",
	} {
		s.ask(reg(bad, ""), is(400, fmt.Sprintf(`{"error":"invalid ZMQ endpoint `+"`%s`: %s"+`"}`, bad, why)))
		s.ask(reg("tcp://h:1", bad), is(400, fmt.Sprintf(`{"error":"invalid replay endpoint `+"`%s`: invalid ZMQ endpoint `%s`: %s"+`"}`, bad, bad, why)))
	}
	s.ask(reg("tcp://h:70000", ""), status(400, "invalid TCP port: "))
	// Endpoints are checked before conflicts.
	s.ask(post("/register", `{"instance_id":201,"endpoint":"x","model_name":"endpoints","block_size":99}`), status(400, "missing scheme"))
}

func (s *suite) unregister() {
	g := Group{Model: "leaving", BlockSize: 4}
	un := func(fields string) Request { return post("/unregister", "{"+fields+"}") }
	ok := is(200, `{"status":"ok"}`)
	s.ask(un(`"instance_id":301,"model_name":"leaving"`), is(404, `{"error":"instance 301 not found"}`))
	s.worker(g, "301", 0)
	s.worker(g, "301", 1)
	s.ask(un(`"instance_id":301,"model_name":"other"`), is(404, `{"error":"instance 301 not found"}`))
	s.ask(un(`"instance_id":301,"model_name":"leaving","routing_group":"g"`), is(404, `{"error":"instance 301 is registered for model=leaving routing_group=default"}`))
	s.ask(un(`"instance_id":301,"model_name":"leaving","routing_group":"default","dp_rank":7`), is(404, `{"error":"instance 301 dp_rank 7 not found"}`))
	s.change(un(`"instance_id":301,"model_name":"leaving","routing_group":"default","dp_rank":1`), ok)
	s.ask(get("/workers?model_name=leaving"), func(a Answer) string {
		if !strings.Contains(a.Body, `"endpoints":{"0":`) || strings.Contains(a.Body, `"1":`) {
			return "want rank 0 alone"
		}
		return ""
	})
	s.change(un(`"instance_id":301,"model_name":"leaving","routing_group":"default","dp_rank":0`), ok)
	s.ask(un(`"instance_id":301,"model_name":"leaving"`), is(404, `{"error":"instance 301 not found"}`))
	s.ask(post("/query", `{"token_ids":[1],"model_name":"leaving"}`), is(404, `{"error":"no indexer for model=leaving routing_group=default"}`))

	// Without a group the rank is not looked at.
	s.worker(g, "302", 0)
	s.worker(g, "302", 1)
	s.change(un(`"instance_id":302,"model_name":"leaving","dp_rank":9,"tenant_id":5,"routing_group":null`), ok)
	s.ask(get("/workers?model_name=leaving"), is(200, `[]`))
	for _, fields := range []string{``, `"instance_id":1`, `"model_name":"m"`, `"instance_id":1,"model_name":5`, `"instance_id":1,"model_name":"m","dp_rank":-1`} {
		s.ask(un(fields), status(422, ""))
	}
}

func (s *suite) workers() {
	s.change(post("/register", `{"instance_id":20,"endpoint":"tcp://127.0.0.1:15590","model_name":"llama3","routing_group":"acme","block_size":4}`), is(201, `{"status":"ok"}`))
	s.ask(get("/workers?model_name=llama3"), has(200, `[{"instance_id":20,"source":"zmq","status":"pending","model_name":"llama3","routing_group":"acme","block_size":4,
	  "endpoints":{"0":"tcp://127.0.0.1:15590"},"listeners":{"0":{"endpoint":"tcp://127.0.0.1:15590","status":"pending"}}}]`))
	s.change(post("/register", `{"instance_id":"engine \"a\"","dp_rank":1,"endpoint":"tcp://127.0.0.1:15591","model_name":"llama4","routing_group":"acme","block_size":4}`), is(201, `{"status":"ok"}`))
	s.ask(get("/workers?model_name=llama4"), has(200, `[{"instance_id":"engine \"a\"","endpoints":{"1":"tcp://127.0.0.1:15591"}}]`))
	for query, want := range map[string]string{
		"?model_name=llama3": `[{}]`, "?routing_group=acme": `[{},{}]`, "?model_name=llama3&routing_group=acme": `[{}]`,
		"?model_name=llama3&routing_group=default": `[]`, "?model_name=": `[]`, "?routing_group=acme&tenant_id=zzz": `[{},{}]`,
	} {
		s.ask(get("/workers"+query), has(200, want))
	}
}

func (s *suite) listeners() {
	g := Group{Model: "listeners", BlockSize: 4}
	s.worker(g, "5", 0)
	s.worker(g, "5", 2)
	const pause, resume = "/test/pause_listener", "/test/resume_listener"
	s.ask(post(pause, `{"instance_id":9}`), is(404, `{"error":"instance 9 not found"}`))
	s.ask(post(pause, `{"instance_id":5,"dp_rank":1}`), is(404, `{"error":"instance 5 dp_rank 1 not found"}`))
	s.ask(post(pause, `{"dp_rank":1}`), status(422, "instance_id"))
	listed := func(state string) {
		s.Helper()
		s.ask(get("/workers?model_name=listeners"), has(200, `[{"listeners":{"0":{"status":"`+state+`"}}}]`))
	}
	listed("active")
	s.change(post(pause, `{"instance_id":5,"dp_rank":null}`), is(200, `{"status":"ok"}`))
	listed("paused")
	s.ask(post(pause, `{"instance_id":5}`), is(409, `{"error":"instance 5 dp_rank 0 cannot be paused from status paused"}`))
	s.change(post(resume, `{"instance_id":5}`), is(200, `{"status":"ok"}`))
	listed("active")
	s.ask(post(resume, `{"instance_id":5}`), is(409, `{"error":"instance 5 dp_rank 0 cannot be resumed from status active"}`))
}
