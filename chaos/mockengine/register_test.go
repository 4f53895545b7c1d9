package mockengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// node answers as a kvcluster node would and keeps what it was asked.
type node struct {
	mu     sync.Mutex
	calls  []string
	bodies map[string]map[string]any
	busy   int    // answers 503 so many times
	refuse string // answers 409 with this text
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	if n.busy > 0 {
		n.busy--
		http.Error(w, `{"error":"not ready"}`, http.StatusServiceUnavailable)
		return
	}
	call := fmt.Sprintf("%s %v/%v", r.URL.Path, body["instance_id"], body["dp_rank"])
	n.calls = append(n.calls, call)
	if n.bodies == nil {
		n.bodies = make(map[string]map[string]any)
	}
	n.bodies[call] = body
	if n.refuse != "" {
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, `{"error":%q}`, n.refuse)
		return
	}
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, `{"status":"ok"}`)
}

func TestRegister(t *testing.T) {
	n := &node{busy: 3}
	s := httptest.NewServer(n)
	defer s.Close()
	f, _ := fleet(t, Config{
		Workers: 2, Ranks: 2, Register: s.URL + "/", Unregister: true, Model: "m", RoutingGroup: "g", FirstInstance: 11, BlockSize: 32,
		Trace: traffic(t, 20), Settle: time.Millisecond, Advertise: "localhost",
	})
	if err := f.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := map[string]map[string]any{}
	for i, at := range f.Endpoints() {
		advertised := strings.NewReplacer("127.0.0.1", "localhost")
		want[fmt.Sprintf("/register %d/%d", 11+i/2, i%2)] = map[string]any{
			"instance_id": float64(11 + i/2), "dp_rank": float64(i % 2), "model_name": "m", "routing_group": "g", "block_size": 32.0,
			"endpoint": advertised.Replace(at.Publish), "replay_endpoint": advertised.Replace(at.Replay),
		}
	}
	for _, instance := range []int{11, 12} {
		want[fmt.Sprintf("/unregister %d/<nil>", instance)] = map[string]any{
			"instance_id": float64(instance), "model_name": "m", "routing_group": "g",
		}
	}
	if d := diff(want, n.bodies); d != "" || len(n.calls) != 6 {
		t.Errorf("%d calls (-want +got):\n%s", len(n.calls), d)
	}
	for i, c := range n.calls {
		if strings.HasPrefix(c, "/register") != (i < 4) {
			t.Errorf("order of calls: %v", n.calls)
		}
	}
}

func TestRegisterRefused(t *testing.T) {
	n := &node{refuse: "instance 1 dp_rank 0 already registered"}
	s := httptest.NewServer(n)
	defer s.Close()
	f, net := fleet(t, Config{Register: s.URL, Trace: traffic(t, 5)})
	err := f.Run(t.Context())
	if !errors.Is(err, ErrRegister) || !strings.Contains(err.Error(), n.refuse) || !strings.Contains(err.Error(), "instance 1 rank 0") {
		t.Errorf("error %v", err)
	}
	if len(n.calls) != 1 {
		t.Errorf("a refusal was tried again: %v", n.calls)
	}
	if p := net.sockets(f.Endpoints()[0].Publish)[0]; !p.closed || len(p.messages) != 0 {
		t.Errorf("the publisher sent %d messages, closed %v", len(p.messages), p.closed)
	}
	if err := f.Inject(t.Context(), Fault{Kind: Clear, Worker: 0}); !errors.Is(err, ErrState) {
		t.Errorf("a fault at a fleet that never ran: %v", err)
	}
}

func TestRegisterUnreachable(t *testing.T) {
	s := httptest.NewServer(&node{})
	url := s.URL
	s.Close()
	f, _ := fleet(t, Config{Register: url, Trace: traffic(t, 5), RegisterTimeout: 200 * time.Millisecond})
	if err := f.Run(t.Context()); !errors.Is(err, ErrRegister) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
