package router

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

func TestMembersAndShards(t *testing.T) {
	f := setup(t, Config{})
	f.get("/members").want(t, 200, `[]`)
	f.get("/shards").want(t, 200, `{"partitions":[],"changes":[]}`)
	f.fake.members = []MemberStatus{
		{Name: "a", Address: "10.0.0.1:7701", HTTP: "10.0.0.1:8090", Role: "leader", Phase: "active", Alive: true, Since: 90 * time.Second,
			Boot: 0xfedcba9876543210, Zone: "z\"1", Weight: 1.5, Version: "v1", Partitions: 128, Ready: 127, Sources: 9},
		{Name: "b", Role: "unknown", Phase: "joining"},
	}
	f.fake.shards = ShardsStatus{
		Partitions: []PartitionStatus{
			{Owners: []OwnerStatus{{"a", true}, {"b", false}}, Receivers: []string{"c"}, HeldBlocks: 12},
			{HeldBlocks: -1},
		},
		Changes: []ChangeStatus{{ID: 77, Moves: []MoveStatus{{0, "c", "b"}, {1, "a", ""}, {2, "", "a"}}, Waiting: []string{"a"}, Done: 3, Total: 9, Bytes: 1 << 20, Rate: 1000.7}},
	}
	f.get("/members").want(t, 200, `[
	  {"name":"a","address":"10.0.0.1:7701","http":"10.0.0.1:8090","role":"leader","phase":"active","alive":true,"since_seconds":90,
	   "boot":"fedcba9876543210","zone":"z\"1","weight":1.5,"version":"v1","partitions":128,"ready_partitions":127,"sources":9},
	  {"name":"b","address":"","http":"","role":"unknown","phase":"joining","alive":false,"since_seconds":0,"boot":"0","zone":"","weight":0,
	   "version":"","partitions":0,"ready_partitions":0,"sources":0}]`)
	f.get("/shards").want(t, 200, `{"partitions":[
	  {"partition":0,"owners":[{"name":"a","ready":true},{"name":"b","ready":false}],"receivers":["c"],"held_blocks":12},
	  {"partition":1,"owners":[],"receivers":[]}],
	 "changes":[{"id":77,"moves":[{"partition":0,"to":"c","drop":"b"},{"partition":1,"to":"a"},{"partition":2,"drop":"a"}],
	  "waiting_for":["a"],"copies_done":3,"copies":9,"bytes":1048576,"bytes_per_second":1000}]}`)
}

func TestSnapshot(t *testing.T) {
	f := setup(t, Config{})
	f.fake.snapshot = SnapshotResult{Path: "/data/copies.snap", Bytes: 1 << 40, Slots: 3, Copies: 768, Blocks: 1 << 36, Took: 1500 * time.Millisecond}
	f.do("POST", "/snapshot", "", "").want(t, 200, `{"path":"/data/copies.snap","bytes":1099511627776,"slots":3,"copies":768,"held_blocks":68719476736,"seconds":1.5}`)
	if a := f.get("/snapshot"); a.status != 405 {
		t.Errorf("GET: %d %s", a.status, a.body)
	}
	f.fake.member = fmt.Errorf("%w: this node has no data folder", catalog.ErrConflict)
	if a := f.do("POST", "/snapshot", "", ""); a.status != 409 || !strings.Contains(a.body, "no data folder") {
		t.Errorf("refused: %d %s", a.status, a.body)
	}
}

func TestLeaveAndRemove(t *testing.T) {
	f := setup(t, Config{})
	f.do("POST", "/members/a/leave", "", "").want(t, 202, `{"status":"leaving"}`)
	f.do("DELETE", "/members/b", "", "").want(t, 200, `{"status":"ok"}`)
	f.do("DELETE", "/members/c?force=true", "", "").want(t, 200, `{"status":"ok"}`)
	f.do("DELETE", "/members/d%20e?force", "", "").want(t, 200, `{"status":"ok"}`)
	f.do("DELETE", "/members/f?force=false", "", "").want(t, 200, `{"status":"ok"}`)
	if want := []string{"leave a", "remove b", "force c", "force d e", "remove f"}; !slices.Equal(f.fake.removed, want) {
		t.Errorf("%q, want %q", f.fake.removed, want)
	}
	f.do("DELETE", "/members/c?force=perhaps", "", "").want(t, 400, `{"error":"query parameter force: want true or false, not \"perhaps\""}`)
	for err, status := range map[error]int{
		fmt.Errorf("member x: %w", catalog.ErrNotFound):                          404,
		fmt.Errorf("%w: x is alive, let it leave or force", catalog.ErrConflict): 409,
		fmt.Errorf("%w: no leader", ErrUnavailable):                              503,
	} {
		f.fake.member = err
		for _, a := range []answer{f.do("POST", "/members/x/leave", "", ""), f.do("DELETE", "/members/x", "", "")} {
			if a.status != status || !strings.Contains(a.body, err.Error()) {
				t.Errorf("%v: %d %s", err, a.status, a.body)
			}
		}
	}
	for path, c := range map[string]struct {
		method string
		status int
		allow  string
	}{
		"/members/a":        {"GET", 405, "DELETE"},
		"/members/a/leave":  {"DELETE", 405, "POST"},
		"/members":          {"POST", 405, "GET,HEAD"},
		"/members/":         {"DELETE", 404, ""},
		"/members/a/b":      {"DELETE", 404, ""},
		"/members/a/leave/": {"POST", 404, ""},
		"/shards/1":         {"GET", 404, ""},
	} {
		if a := f.do(c.method, path, "", ""); a.status != c.status || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, allow %q", c.method, path, a.status, a.header.Get("Allow"))
		}
	}
	body := f.get("/metrics").body
	if got := series(body, `dynamo_kvindexer_requests_total{endpoint="/members/{name}",method="DELETE"}`); got != "8" {
		t.Errorf("removals are counted as %q", got)
	}
	if strings.Contains(body, `endpoint="/members/a"`) {
		t.Error("a member's name is a label")
	}
}

func TestClusterStatus(t *testing.T) {
	f := setup(t, Config{})
	if a := f.get("/status"); strings.Contains(a.body, `"cluster"`) || strings.Contains(f.get("/metrics").body, "kvcluster_map_index") {
		t.Errorf("a node alone shows a cluster: %s", a.body)
	}
	f.fake.status.Cluster = ClusterStatus{
		ID: "id", Leader: "a", MapIndex: 99, LeaseHeld: true, MapAge: 1250 * time.Millisecond, Members: 4, Alive: 3, Replicas: 2,
		Balance: 1.0625, LogLag: 5, Unready: 7, Unowned: 1, DegradedSlots: 2, UnreadableSlots: 3, Changes: 1,
		Disk: DiskStatus{Free: 4096, Low: true, Known: true},
	}
	f.fake.status.Search = SearchStatus{
		Local: 10, Calls: 11, Served: 12, Hedges: 4, HedgesWon: 3, Replans: 2, Failed: map[string]uint64{"timeout": 6}, ServedFailed: map[string]uint64{"behind": 8},
		Partial: map[string]uint64{"slots": 9}, Unreadable: 13, Stale: 5, Refused: 2, LeaseFailed: 14, HedgeDelay: 3 * time.Millisecond,
	}
	f.fake.status.Peers = []PeerTraffic{{Peer: "b", Up: true, BytesOut: 21, BytesIn: 22, Frames: 23, Blocks: 24, Bytes: 25, FillBytes: 26}, {Peer: "c"}}
	status := decode(t, f.get("/status").body).(map[string]any)["cluster"]
	want := decode(t, `{"id":"id","leader":"a","map_index":99,"lease_held":true,"map_age_ms":1250,"members":4,"alive":3,"replicas":2,"balance":1.062,
	  "log_lag":5,"unready_partitions":7,"unowned_partitions":1,"degraded_slots":2,"unreadable_slots":3,"changes":1,"disk":{"free_bytes":4096,"low":true}}`)
	if fmt.Sprint(status) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", status, want)
	}
	body := f.get("/metrics").body
	for name, want := range map[string]string{
		`kvcluster_members{state="alive"}`: "3", `kvcluster_members{state="not_alive"}`: "1", `kvcluster_has_leader`: "1", `kvcluster_map_index`: "99",
		`kvcluster_lease_held`: "1", `kvcluster_map_age_seconds`: "1.25", `kvcluster_balance_ratio`: "1.0625", `kvcluster_log_lag_entries`: "5",
		`kvcluster_partitions{state="unready"}`: "7", `kvcluster_partitions{state="unowned"}`: "1", `kvcluster_slots{state="degraded"}`: "2",
		`kvcluster_slots{state="unreadable"}`: "3", `kvcluster_layout_changes`: "1", `kvcluster_reads_total{where="local"}`: "10",
		`kvcluster_reads_total{where="remote"}`: "11", `kvcluster_reads_total{where="served"}`: "12", `kvcluster_read_calls_failed_total{reason="timeout"}`: "6",
		`kvcluster_served_reads_failed_total{reason="behind"}`: "8", `kvcluster_read_hedges_total{outcome="sent"}`: "4", `kvcluster_read_hedges_total{outcome="won"}`: "3",
		`kvcluster_read_hedge_delay_seconds`: "0.003", `kvcluster_read_replans_total`: "2", `kvcluster_read_unreadable_slots_total`: "13",
		`kvcluster_partial_reads_total{reason="slots"}`: "9", `kvcluster_stale_reads_total{outcome="marked"}`: "3", `kvcluster_stale_reads_total{outcome="refused"}`: "2",
		`kvcluster_lease_failures_total`: "14", `kvcluster_disk_free_bytes`: "4096", `kvcluster_disk_low`: "1",
		`kvcluster_link_up{peer="b"}`: "1", `kvcluster_link_up{peer="c"}`: "0", `kvcluster_link_bytes_total{direction="out",peer="b"}`: "21",
		`kvcluster_link_bytes_total{direction="in",peer="b"}`: "22", `kvcluster_forwarded_frames_total{peer="b"}`: "23",
		`kvcluster_forwarded_blocks_total{peer="b"}`: "24", `kvcluster_forwarded_bytes_total{peer="b"}`: "25", `kvcluster_fill_bytes_total{peer="b"}`: "26",
	} {
		if got := series(body, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
