package router

import (
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// series returns the value of a series, or "" when there is none.
func series(body, name string) string {
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

func TestMetrics(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	f.register("1", 1)
	f.register("2", 0)
	f.mustPost("/register", `{"instance_id":3,"endpoint":"tcp://h:1","model_name":"other","block_size":4}`, 201)
	s := f.fake.stream("1", 0)
	s.Gaps, s.Replays, s.Orphans, s.LastEvent = 3, 2, 7, 1500*time.Millisecond
	s.Rejected, s.RejectedBlocks = map[string]uint64{"malformed": 4}, map[string]uint64{"malformed": 40}
	s.Held[indexer.Host] = 12
	f.fake.stream("1", 1).State = StreamPaused
	f.fake.status = NodeStatus{
		Index: indexer.Stats{
			Held: [indexer.NumTiers]uint64{10, 20}, Distinct: 5, Bytes: map[string]uint64{"chains": 99}, Reserved: 4096, Limbo: 17,
			Lanes: []indexer.LaneStats{{Queued: 6, BusyShare: 0.25, Frames: 8, Stalled: 1, ApplyP50: 2 * time.Millisecond, ApplyP99: 5 * time.Millisecond}}, OldestPin: time.Second, Revoked: 3, WantShed: 12,
		},
		Events: EventCounts{
			Applied:         map[EventResult]uint64{{"stored", "ok"}: 11, {"stored", "parent_block_not_found"}: 2},
			DuplicateStores: 3, UnknownRemoves: 4, UnknownLowerRemoves: 5,
		},
		Lag: Histogram{Bounds: []float64{0.001, 0.01}, Counts: []uint64{5, 8}, Count: 9, Sum: 0.5},
	}
	f.post("/query", `{"token_ids":[1],"model_name":"m"}`)
	f.post("/query", `{"token_ids":[1],"model_name":"x"}`)
	f.get("/query")
	f.get("/nowhere")
	f.do("BREW", "/coffee", "", "")
	f.get("/metrics")
	body := f.get("/metrics").body
	for name, want := range map[string]string{
		`dynamo_kvindexer_requests_total{endpoint="/query",method="POST"}`:    "2",
		`dynamo_kvindexer_requests_total{endpoint="/query",method="GET"}`:     "1",
		`dynamo_kvindexer_requests_total{endpoint="/register",method="POST"}`: "4",
		`dynamo_kvindexer_requests_total{endpoint="unknown",method="GET"}`:    "1",
		`dynamo_kvindexer_requests_total{endpoint="unknown",method="other"}`:  "1",
		`dynamo_kvindexer_requests_total{endpoint="/metrics",method="GET"}`:   "",
		`dynamo_kvindexer_errors_total{endpoint="/query",status_class="4xx"}`: "2",
		`dynamo_kvindexer_errors_total{endpoint="/query",status_class="5xx"}`: "0",
		`dynamo_kvindexer_request_duration_seconds_count{endpoint="/query"}`:  "3",
		`dynamo_kvindexer_models`:                                                                      "2",
		`dynamo_kvindexer_workers`:                                                                     "3",
		`dynamo_kvindexer_listeners{status="active"}`:                                                  "1",
		`dynamo_kvindexer_listeners{status="paused"}`:                                                  "1",
		`dynamo_kvindexer_listeners{status="pending"}`:                                                 "2",
		`dynamo_kvindexer_listeners{status="failed"}`:                                                  "0",
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="ok"}`:                     "11",
		`dynamo_kvrouter_kv_cache_events_applied{event_type="stored",status="parent_block_not_found"}`: "2",
		`dynamo_kvrouter_kv_cache_events_applied{event_type="cleared",status="ok"}`:                    "0",
		`dynamo_kvrouter_kv_cache_event_warnings{warning_kind="duplicate_store"}`:                      "3",
		`dynamo_kvrouter_ckf_mutation_total{outcome="unknown_remove"}`:                                 "4",
		`dynamo_kvrouter_ckf_mutation_total{outcome="capacity_exhausted"}`:                             "0",
		`dynamo_kvrouter_lower_tier_removal_total{outcome="removal_hashes_unknown"}`:                   "5",
		`dynamo_kvrouter_lower_tier_removal_total{outcome="entries_kept_shared_owner"}`:                "0",
		`kvcluster_ready`: "1",
		`kvcluster_index_held_blocks{tier="host_pinned"}`:        "20",
		`kvcluster_index_distinct_blocks`:                        "5",
		`kvcluster_index_bytes{purpose="chains"}`:                "99",
		`kvcluster_index_reserved_bytes`:                         "4096",
		`kvcluster_index_limbo_bytes`:                            "17",
		`kvcluster_lane_queued_frames{lane="0"}`:                 "6",
		`kvcluster_lane_apply_seconds{lane="0",quantile="0.99"}`: "0.005",
		`kvcluster_index_oldest_pin_seconds`:                     "1",
		`kvcluster_index_revoked_queries_total`:                  "3",
		`kvcluster_index_want_shed_blocks`:                       "12",
		`kvcluster_lane_busy_ratio{lane="0"}`:                    "0.25",
		`kvcluster_lag_seconds_bucket{le="0.01"}`:                "8",
		`kvcluster_lag_seconds_count`:                            "9",
		`kvcluster_stream_last_event_age_seconds{dp_rank="0",instance_id="1",model="m",routing_group="default"}`:                   "1.5",
		`kvcluster_stream_sequence_gaps_total{dp_rank="0",instance_id="1",model="m",routing_group="default"}`:                      "3",
		`kvcluster_stream_replays_total{dp_rank="0",instance_id="1",model="m",routing_group="default"}`:                            "2",
		`kvcluster_stream_orphan_blocks{dp_rank="0",instance_id="1",model="m",routing_group="default"}`:                            "7",
		`kvcluster_stream_rejected_events_total{dp_rank="0",instance_id="1",model="m",reason="malformed",routing_group="default"}`: "4",
		`kvcluster_stream_rejected_blocks_total{dp_rank="0",instance_id="1",model="m",reason="malformed",routing_group="default"}`: "40",
	} {
		if got := series(body, name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	for _, le := range []string{"0.0001", "0.0002", "52.4288"} { // the first, the second and the last of 20
		if !strings.Contains(body, `dynamo_kvindexer_request_duration_seconds_bucket{endpoint="/query",le="`+le+`"}`) {
			t.Errorf("no bucket %s", le)
		}
	}
	if n := strings.Count(body, `dynamo_kvindexer_request_duration_seconds_bucket{endpoint="/query"`); n != 21 { // and +Inf
		t.Errorf("%d buckets", n)
	}
	quiet := setup(t, Config{NoStreamMetrics: true})
	quiet.register("1", 0)
	quiet.fake.stream("1", 0)
	if body := quiet.get("/metrics").body; strings.Contains(body, "kvcluster_stream_batches_total") || series(body, `dynamo_kvindexer_listeners{status="active"}`) != "1" {
		t.Error("stream metrics although turned off")
	}
}

// What never reaches an index although a worker is registered is called out, in
// /workers and in a metric.
func TestWarnings(t *testing.T) {
	f := setup(t, Config{SilentAfter: time.Minute})
	f.register("1", 0)
	s := f.fake.stream("1", 0)
	fine := *s
	check := func(name, kind, part string, set func()) {
		t.Helper()
		*s = fine
		set()
		workers := f.get("/workers").body
		if strings.Contains(workers, "warnings") != (part != "") || !strings.Contains(workers, part) {
			t.Errorf("%s: %s", name, workers)
		}
		body := f.get("/metrics").body
		for _, k := range warningKinds {
			want := "0"
			if k == kind {
				want = "1"
			}
			if got := series(body, `kvcluster_stream_warnings{kind="`+k+`"}`); got != want {
				t.Errorf("%s: kind %s = %q, want %s", name, k, got, want)
			}
		}
	}
	check("fine", "", "", func() {})
	check("not long enough", "", "", func() { s.LastEvent, s.Registered = -1, 59*time.Second })
	check("never a message", "silent", "nothing arrived: are KV events enabled", func() { s.LastEvent = -1 })
	check("went silent", "silent", "nothing arrived for 1m1s", func() { s.LastEvent = 61 * time.Second })
	check("paused", "", "", func() { s.LastEvent, s.State = -1, StreamPaused })
	check("rank without traffic", "idle_rank", "none with an event of this rank", func() { s.Batches = 5 })
	check("block size", "block_size", "9 stores with blocks of 32 tokens, registered with 4", func() { s.BlockSizeMismatches, s.SeenBlockSize = 9, 32 })
	check("degraded", "degraded", "batches lost", func() { s.Degraded = "batches lost" })
	check("refused", "refused", "do not name prefixes", func() { s.Refused = true })
	check("remark of the stream", "stream", "two publishers", func() { s.Warnings = []string{"two publishers"} })

	f.fake.hold("1", 0, indexer.Device, 0, 1, 2)
	for range 2 * queriesBeforeNeverMatched { // before it holds anything they do not count
		f.mustPost("/query_by_hash", `{"block_hashes":[5],"model_name":"m"}`, 200)
	}
	check("just holding", "", "", func() { s.Held[0] = 2 })
	for range queriesBeforeNeverMatched - 1 {
		f.mustPost("/query_by_hash", `{"block_hashes":[5],"model_name":"m"}`, 200)
	}
	check("not enough queries", "", "", func() { s.Held[0] = 2 })
	f.mustPost("/query_by_hash", `{"block_hashes":[5],"model_name":"m"}`, 200)
	check("never matched", "never_matched", "none of 1000 queries matched", func() { s.Held[0] = 2 })
	f.mustPost("/query_by_hash", `{"block_hashes":[1],"model_name":"m"}`, 200)
	check("matched", "", "", func() { s.Held[0] = 2 })
	check("idle since it was taken over", "silent", "nothing arrived since this node reads the stream", func() { s.LastEvent, s.Held[0] = -1, 2 })
}
