package router

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// collector turns the cluster's snapshots into metrics at scrape time. Names that
// Dynamo's indexer has are kept exactly; what it lacks is called kvcluster_.
type collector struct{ router *Router }

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descModels    = desc("dynamo_kvindexer_models", "Index groups: pairs of model and routing group.")
	descWorkers   = desc("dynamo_kvindexer_workers", "Registered workers.")
	descListeners = desc("dynamo_kvindexer_listeners", "Streams by state.", "status")
	descApplied   = desc("dynamo_kvrouter_kv_cache_events_applied", "Engine events by what became of them.", "event_type", "status")
	descEventWarn = desc("dynamo_kvrouter_kv_cache_event_warnings", "Events that were right and changed nothing.", "warning_kind")
	descMutation  = desc("dynamo_kvrouter_ckf_mutation_total", "Changes of the index that could not be made.", "outcome")
	descLower     = desc("dynamo_kvrouter_lower_tier_removal_total", "Removals below the device tier.", "outcome")

	descReady    = desc("kvcluster_ready", "1 when the node may answer for its part of the index.")
	descDegraded = desc("kvcluster_degraded_streams", "Streams that lost events which did not come back.")
	descWarnings = desc("kvcluster_stream_warnings", "Streams with a warning, as /workers tells it.", "kind")
	descLag      = desc("kvcluster_lag_seconds", "Time from the engine's clock when it published a batch to the batch applied.")
	descLostLog  = desc("kvcluster_access_log_lost_total", "Access log records that could not be written.")

	descHeld     = desc("kvcluster_index_held_blocks", "Blocks held, each counted for every rank that holds it.", "tier")
	descDistinct = desc("kvcluster_index_distinct_blocks", "Blocks stored and held by at least one rank.")
	descStored   = desc("kvcluster_index_stored_blocks", "Blocks that have storage, held or not.")
	descChains   = desc("kvcluster_index_chains", "Units of storage.")
	descFrames   = desc("kvcluster_index_frames_total", "Frames applied.")
	descFaults   = desc("kvcluster_index_faults_total", "Frames refused: a broken invariant of a stream.")
	descBytes    = desc("kvcluster_index_bytes", "Live bytes of the index.", "purpose")
	descReserved = desc("kvcluster_index_reserved_bytes", "Bytes taken from the operating system.")
	descLimbo    = desc("kvcluster_index_limbo_bytes", "Bytes that wait for readers before they can be used again.")

	descOldestPin = desc("kvcluster_index_oldest_pin_seconds", "For how long some query has been in the index: a reader that stalls.")
	descRevoked   = desc("kvcluster_index_revoked_queries_total", "Queries that started again because their reader stalled while memory ran short.")
	descWantShed  = desc("kvcluster_index_want_shed_blocks", "Blocks to drop to come below the memory limit.")

	descLaneApply   = desc("kvcluster_lane_apply_seconds", "Time that a frame took to apply, sampled since the lane began.", "lane", "quantile")
	descLaneQueued  = desc("kvcluster_lane_queued_frames", "Frames waiting for a lane.", "lane")
	descLaneBusy    = desc("kvcluster_lane_busy_ratio", "Share of time spent applying, since the last look.", "lane")
	descLaneFrames  = desc("kvcluster_lane_frames_total", "Frames applied by a lane.", "lane")
	descLaneStalled = desc("kvcluster_lane_stalled_total", "Times a writer waited for room in a lane's ring.", "lane")
)

// Describe implements prometheus.Collector. Stream metrics come and go with workers, so
// the collector is unchecked: it describes nothing.
func (*collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	r := c.router
	view, node := r.cluster.View(), r.cluster.Status()
	r.names.prune(view)
	e := emitter{out}
	e.gauge(descModels, float64(len(view.Groups())))
	e.gauge(descWorkers, float64(len(view.Workers())))
	ready, _ := r.cluster.Ready()
	e.gauge(descReady, boolValue(ready))
	e.counter(descLostLog, r.access.lost())
	c.events(e, node.Events)
	c.index(e, node)
	if node.Cluster.ID != "" {
		c.cluster(e, node)
	}
	c.streams(e, node.Node)
	if node.Lag.Count > 0 || len(node.Lag.Bounds) > 0 {
		buckets := make(map[float64]uint64, len(node.Lag.Bounds))
		for i, b := range node.Lag.Bounds {
			buckets[b] = node.Lag.Counts[i]
		}
		out <- prometheus.MustNewConstHistogram(descLag, node.Lag.Count, node.Lag.Sum, buckets)
	}
}

func (c *collector) events(e emitter, n EventCounts) {
	for _, typ := range []string{"stored", "removed", "cleared"} { // always there, even at 0
		e.counter(descApplied, n.Applied[EventResult{typ, "ok"}], typ, "ok")
	}
	for r, count := range n.Applied {
		if r.Status != "ok" {
			e.counter(descApplied, count, r.Type, r.Status)
		}
	}
	e.counter(descEventWarn, n.DuplicateStores, "duplicate_store")
	e.counter(descMutation, n.UnknownRemoves, "unknown_remove")
	e.counter(descMutation, n.CapacityExhausted, "capacity_exhausted")
	e.counter(descLower, n.UnknownLowerRemoves, "removal_hashes_unknown")
	// There are no cache owners and no fan-out here: these outcomes cannot occur.
	for _, outcome := range []string{
		"removals_fanout_chunks", "removal_hashes_member_covered", "removal_hashes_legacy_deleted",
		"removal_hashes_owner_protected", "entries_kept_shared_owner",
	} {
		e.counter(descLower, 0, outcome)
	}
}

func (c *collector) index(e emitter, node NodeStatus) {
	x := node.Index
	for t, n := range x.Held {
		e.gauge(descHeld, float64(n), tierNames[t])
	}
	e.gauge(descDistinct, float64(x.Distinct))
	e.gauge(descStored, float64(x.Stored))
	e.gauge(descChains, float64(x.Chains))
	e.counter(descFrames, x.Frames)
	e.counter(descFaults, x.Faults)
	for purpose, n := range x.Bytes {
		e.gauge(descBytes, float64(n), purpose)
	}
	e.gauge(descReserved, float64(x.Reserved))
	e.gauge(descLimbo, float64(x.Limbo))
	e.gauge(descOldestPin, x.OldestPin.Seconds())
	e.counter(descRevoked, x.Revoked)
	e.gauge(descWantShed, float64(x.WantShed))
	for i, l := range x.Lanes {
		lane := strconv.Itoa(i)
		e.gauge(descLaneQueued, float64(l.Queued), lane)
		e.gauge(descLaneBusy, l.BusyShare, lane)
		e.counter(descLaneFrames, l.Frames, lane)
		e.counter(descLaneStalled, l.Stalled, lane)
		e.gauge(descLaneApply, l.ApplyP50.Seconds(), lane, "0.5")
		e.gauge(descLaneApply, l.ApplyP99.Seconds(), lane, "0.99")
	}
}

// emitter sends constant metrics.
type emitter struct{ out chan<- prometheus.Metric }

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e emitter) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e.out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
