package router

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

type dumpedEvent struct {
	WorkerID json.RawMessage `json:"worker_id"`
	Tier     string          `json:"storage_tier"`
	Event    struct {
		ID   uint64 `json:"event_id"`
		Rank uint32 `json:"dp_rank"`
		Data struct {
			Stored struct {
				Parent *uint64 `json:"parent_hash"`
				Blocks []struct {
					Block uint64 `json:"block_hash"`
					Local uint64 `json:"tokens_hash"`
				} `json:"blocks"`
			} `json:"stored"`
		} `json:"data"`
	} `json:"event"`
}

func (e dumpedEvent) String() string {
	parent := "root"
	if e.Event.Data.Stored.Parent != nil {
		parent = fmt.Sprint(*e.Event.Data.Stored.Parent)
	}
	return fmt.Sprintf("%s/%d %s %s %v", e.WorkerID, e.Event.Rank, e.Tier, parent, e.Event.Data.Stored.Blocks)
}

// dumpFixture has a model with every awkward character, a rank in two tiers, and a
// second group.
func dumpFixture(t *testing.T) *fixture {
	f := setup(t, Config{})
	f.mustPost("/register", `{"instance_id":1,"dp_rank":2,"endpoint":"tcp://h:1","model_name":"org/model:v1\n\"x\"","routing_group":"g:h","block_size":16}`, 201)
	f.register("worker", 0)
	f.fake.hold("1", 2, indexer.Device, 0, 18446744073709551615, 7)
	f.fake.hold("1", 2, indexer.Disk, 1, 18446744073709551615, 7)
	f.fake.hold("worker", 0, indexer.Host, 0, 5)
	return f
}

func TestDumpObject(t *testing.T) {
	f := dumpFixture(t)
	a := f.get("/dump")
	if a.status != 200 || a.header.Get("Content-Type") != "application/json" {
		t.Fatalf("%d %v", a.status, a.header)
	}
	var groups map[string]struct {
		BlockSize int           `json:"block_size"`
		Model     string        `json:"model_name"`
		Group     string        `json:"routing_group"`
		Events    []dumpedEvent `json:"events"`
	}
	if err := json.Unmarshal([]byte(a.body), &groups); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	g := groups["org/model:v1\n\"x\":g:h"]
	if len(groups) != 2 || g.BlockSize != 16 || g.Model != "org/model:v1\n\"x\"" || g.Group != "g:h" {
		t.Fatalf("groups: %+v", groups)
	}
	if n := len(g.Events); n != 3 || g.Events[n-1].Tier != "disk" {
		t.Errorf("device events come first: %v", g.Events)
	}
	var got []string
	for _, e := range g.Events {
		got = append(got, e.String())
	}
	root, child := engineHash([]uint64{18446744073709551615}), engineHash([]uint64{18446744073709551615, 7})
	want := []string{
		fmt.Sprintf("1/2 device root [{%d 18446744073709551615}]", root),
		fmt.Sprintf("1/2 device %d [{%d 7}]", root, child),
		fmt.Sprintf("1/2 disk %d [{%d 7}]", root, child),
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	if e := groups["m:default"].Events; len(e) != 1 || e[0].Tier != "host_pinned" || string(e[0].WorkerID) != `"worker"` {
		t.Errorf("second group: %v", e)
	}
	if one := f.get("/dump?model_name=m").body; strings.Contains(one, "org/model") || !strings.Contains(one, `"m:default"`) {
		t.Errorf("filtered: %s", one)
	}
	empty := setup(t, Config{})
	empty.get("/dump").want(t, 200, `{}`)
	empty.register("1", 0)
	empty.get("/dump").want(t, 200, `{"m:default":{"block_size":4,"model_name":"m","routing_group":"default","events":[]}}`)
}

func TestDumpLines(t *testing.T) {
	f := dumpFixture(t)
	for _, a := range []answer{f.get("/dump?format=ndjson"), f.do("GET", "/dump", "", "", "Accept", "application/x-ndjson")} {
		if ct := a.header.Get("Content-Type"); ct != "application/x-ndjson" {
			t.Errorf("content type %q", ct)
		}
		lines := strings.Split(strings.TrimSuffix(a.body, "\n"), "\n")
		if len(lines) != 4 {
			t.Fatalf("%d lines: %s", len(lines), a.body)
		}
		keys := map[string]int{}
		for _, l := range lines {
			var one struct {
				Key       string      `json:"key"`
				BlockSize int         `json:"block_size"`
				Event     dumpedEvent `json:"event"`
			}
			if err := json.Unmarshal([]byte(l), &one); err != nil {
				t.Fatalf("%v: %s", err, l)
			}
			if keys[one.Key]++; len(one.Event.Event.Data.Stored.Blocks) != 1 {
				t.Errorf("line %s", l)
			}
		}
		if keys["org/model:v1\n\"x\":g:h"] != 3 || keys["m:default"] != 1 {
			t.Errorf("keys: %v", keys)
		}
	}
}

func TestDumpFaults(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.fake.dumpErr = errors.New("copy is closed")
	f.get("/dump").want(t, 200, `{"m:default":{"error":"copy is closed"}}`)
	if got := f.get("/dump?format=ndjson").body; got != `{"key":"m:default","block_size":4,"model_name":"m","routing_group":"default","error":"copy is closed"}`+"\n" {
		t.Errorf("lines: %s", got)
	}
	f.fake.hold("1", 0, indexer.Device, 0, 5) // the fault comes after an event
	m := decode(t, f.get("/dump").body).(map[string]any)["m:default"].(map[string]any)
	if m["error"] != "copy is closed" || len(m["events"].([]any)) != 1 {
		t.Errorf("half a dump: %v", m)
	}
}

// Two groups whose names would be one key stay two.
func TestDumpKeysAreUnique(t *testing.T) {
	f := setup(t, Config{})
	f.mustPost("/register", `{"instance_id":1,"endpoint":"tcp://h:1","model_name":"a:b","routing_group":"c","block_size":16}`, 201)
	f.mustPost("/register", `{"instance_id":2,"endpoint":"tcp://h:1","model_name":"a","routing_group":"b:c","block_size":16}`, 201)
	m := decode(t, f.get("/dump").body).(map[string]any)
	if m["a%3Ab:c"] == nil || m["a:b:c"] == nil {
		t.Errorf("keys: %v", m)
	}
}

// A dump longer than its buffer is flushed on the way and comes out whole.
func TestDumpLong(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	for i := range uint64(3000) {
		f.fake.hold("1", 0, indexer.Device, 0, 1, i+10)
	}
	var groups map[string]struct {
		Events []dumpedEvent `json:"events"`
	}
	body := f.get("/dump").body
	if err := json.Unmarshal([]byte(body), &groups); err != nil {
		t.Fatal(err)
	}
	if n := len(groups["m:default"].Events); n != 3001 || len(body) < 2*dumpChunk {
		t.Errorf("%d events in %d bytes", n, len(body))
	}
}

// A client that goes away in the middle of a dump costs nobody else anything.
func TestDumpClientGoesAway(t *testing.T) {
	fake, address, _ := run(t, Config{})
	client := http.Client{Timeout: deadline}
	defer client.CloseIdleConnections()
	res, err := client.Post("http://"+address+"/register", "application/json", strings.NewReader(`{"instance_id":1,"endpoint":"tcp://h:1","model_name":"m","block_size":4}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	const blocks = 100_000 // more than sockets and buffers hold
	group, slot := fake.rank("1", 0)
	for i := range uint64(blocks) {
		fake.held[heldKey{group.ID, slot, pathKey([]uint64{i})}] = indexer.Device.Mask()
	}
	for range 3 { // read a little and go
		res, err := client.Get("http://" + address + "/dump?format=ndjson")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(res.Body, make([]byte, 100)); err != nil {
			t.Error(err)
		}
		res.Body.Close()
	}
	res, err = client.Get("http://" + address + "/dump?format=ndjson")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := 0
	in := bufio.NewScanner(res.Body)
	for in.Scan() {
		lines++
	}
	if lines != blocks || in.Err() != nil {
		t.Errorf("%d lines, want %d: %v", lines, blocks, in.Err())
	}
}

// deadlineRecorder notes when a handler moves its write deadline.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	moved  []time.Time
	writes int
}

func (d *deadlineRecorder) SetWriteDeadline(t time.Time) error {
	d.moved = append(d.moved, t)
	return nil
}

func (d *deadlineRecorder) Write(b []byte) (int, error) {
	d.writes++
	return d.ResponseRecorder.Write(b)
}

// A dump may take longer than an ordinary answer: every piece has the whole write
// time-out for itself.
func TestDumpMovesItsDeadline(t *testing.T) {
	f := setup(t, Config{WriteTimeout: time.Hour})
	f.register("1", 0)
	for i := range uint64(3000) {
		f.fake.hold("1", 0, indexer.Device, 0, i+1)
	}
	w := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
	f.router.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/dump", nil))
	if w.writes < 3 || len(w.moved) != w.writes {
		t.Fatalf("%d writes, deadline moved %d times", w.writes, len(w.moved))
	}
	for _, at := range w.moved {
		if left := time.Until(at); left < 59*time.Minute || left > time.Hour {
			t.Errorf("deadline in %v", left)
		}
	}
}
