package router

import (
	"testing"
)

// What every node answers is in package contract; here is what a Site cannot bring about.
func TestTestRoutesAreNotMounted(t *testing.T) {
	f := setup(t, Config{})
	for _, path := range []string{"/test/pause_listener", "/test/resume_listener"} {
		if a := f.do("POST", path, "", "not json"); a.status != 404 || a.body != "" {
			t.Errorf("%s: %d %q", path, a.status, a.body)
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
