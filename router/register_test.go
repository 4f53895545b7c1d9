package router

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

func TestRegister(t *testing.T) {
	f := setup(t, Config{})
	reg := func(fields string) answer {
		return f.post("/register", `{"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16,`+fields+`}`)
	}
	reg(`"instance_id":1`).want(t, 201, `{"status":"ok"}`)
	reg(`"instance_id":1`).want(t, 409, `{"error":"instance 1 dp_rank 0 already registered"}`)
	reg(`"instance_id":"1"`).want(t, 409, `{"error":"instance 1 dp_rank 0 already registered"}`)
	reg(`"instance_id":1,"dp_rank":1,"replay_endpoint":"tcp://127.0.0.1:5558"`).want(t, 201, `{"status":"ok"}`)
	reg(`"instance_id":1,"dp_rank":2,"replay_endpoint":null,"lora_name":null`).want(t, 201, `{"status":"ok"}`)
	reg(`"instance_id":1,"dp_rank":3,"routing_group":"g"`).want(t, 409, `{"error":"instance 1 is already registered for model=m routing_group=default"}`)
	reg(`"instance_id":2,"block_size":32`).want(t, 409, `{"error":"block_size mismatch for model=m routing_group=default: existing=16, requested=32"}`)
	reg(`"instance_id":18446744073709551615`).want(t, 201, `{"status":"ok"}`)
	reg(`"instance_id":3,"tenant_id":"ignored","additional_salt":"unused","other":[]`).want(t, 201, `{"status":"ok"}`)
	reg(`"instance_id":4,"block_size":0`).want(t, 400, `{"error":"block_size must be above 0"}`)
	w, _ := f.fake.View().Worker("3")
	if got := w.Ranks[0].Registration; got.Salt != "" || got.Group.RoutingGroup != "default" {
		t.Errorf("registered %+v", got)
	}
	w, _ = f.fake.View().Worker("1")
	if got := w.Ranks[1].ReplayEndpoint; got != "tcp://127.0.0.1:5558" {
		t.Errorf("replay endpoint %q", got)
	}
	for _, c := range []struct {
		fields string
		status int
		part   string
	}{
		{`"instance_id":"` + strings.Repeat("i", 4097) + `"`, 400, "instance_id has 4097 bytes, at most 4096"},
		{`"instance_id":9,"model_name":"` + strings.Repeat("m", 4097) + `"`, 400, "model_name has 4097 bytes"},
		{`"instance_id":9,"routing_group":"` + strings.Repeat("g", 4097) + `"`, 400, "routing_group has 4097 bytes"},
		{`"instance_id":9,"topic":"` + strings.Repeat("t", 4097) + `"`, 400, "topic has 4097 bytes"},
	} {
		if a := reg(c.fields); a.status != c.status || !strings.Contains(a.body, c.part) {
			t.Errorf("%s: %d %s, want %d with %q", c.fields, a.status, a.body, c.status, c.part)
		}
	}
}

func TestRegisterClusterErrors(t *testing.T) {
	f := setup(t, Config{})
	for _, c := range []struct {
		err    error
		status int
	}{
		{fmt.Errorf("no leader: %w", ErrUnavailable), 503},
		{fmt.Errorf("%w: 65536 slots", catalog.ErrExhausted), 503},
		{errors.New("disk full"), 500},
	} {
		f.fake.err = c.err
		f.post("/register", `{"instance_id":1,"endpoint":"tcp://h:1","model_name":"m","block_size":4}`).want(t, c.status, `{"error":"`+c.err.Error()+`"}`)
	}
}

func TestWorkers(t *testing.T) {
	f := setup(t, Config{})
	f.get("/workers").want(t, 200, `[]`)
	f.mustPost("/register", `{"instance_id":20,"endpoint":"tcp://127.0.0.1:15590","model_name":"llama3","routing_group":"acme","block_size":4}`, 201)
	f.get("/workers").want(t, 200, `[{"instance_id":20,"source":"zmq","status":"pending","model_name":"llama3","routing_group":"acme","block_size":4,
	  "endpoints":{"0":"tcp://127.0.0.1:15590"},"listeners":{"0":{"endpoint":"tcp://127.0.0.1:15590","status":"pending"}}}]`)
	f.register("engine \"a\"", 1)
	s := f.fake.stream("engine \"a\"", 1)
	s.State, s.LastError, s.Gaps, s.Rejected = StreamFailed, "replay: hole at 7", 2, map[string]uint64{"malformed": 3}
	all := decode(t, f.get("/workers").body).([]any)
	named := all[1].(map[string]any)
	if named["instance_id"] != `engine "a"` || named["status"] != "failed" {
		t.Errorf("worker: %v", named)
	}
	l := named["listeners"].(map[string]any)["1"].(map[string]any)
	if l["last_error"] != "replay: hole at 7" || text(l["gaps"]) != "2" || text(l["rejected"].(map[string]any)["malformed"]) != "3" {
		t.Errorf("listener: %v", l)
	}
	for query, want := range map[string]int{
		"": 2, "?model_name=llama3": 1, "?routing_group=acme": 1, "?routing_group=default": 1, "?model_name=m&routing_group=acme": 0,
		"?model_name=": 0, "?tenant_id=zzz": 2,
	} {
		if got := decode(t, f.get("/workers"+query).body).([]any); len(got) != want {
			t.Errorf("%q: %d workers, want %d", query, len(got), want)
		}
	}
}

func TestAggregateState(t *testing.T) {
	for _, c := range []struct {
		states string
		want   StreamState
	}{
		{"active paused", StreamActive}, {"active failed pending", StreamFailed}, {"pending active", StreamPending},
		{"paused paused", StreamPaused}, {"active catching_up", StreamCatchingUp}, {"buffering catching_up", StreamBuffering}, {"", StreamPending},
	} {
		var states []StreamState
		for s := range strings.FieldsSeq(c.states) {
			states = append(states, StreamState(s))
		}
		if got := aggregate(states); got != c.want {
			t.Errorf("%s: %s, want %s", c.states, got, c.want)
		}
	}
}
