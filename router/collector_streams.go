package router

import (
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/prometheus/client_golang/prometheus"
)

// streamLabels say instance_id: a label called instance is Prometheus's own name for the
// scraped node.
var streamLabels = []string{"instance_id", "dp_rank", "model", "routing_group"}

func streamDesc(name, help string, more ...string) *prometheus.Desc {
	return desc("kvcluster_stream_"+name, help, append(streamLabels[:len(streamLabels):len(streamLabels)], more...)...)
}

var (
	descAge        = streamDesc("last_event_age_seconds", "Time since the last batch of the rank; since its registration when there was none.")
	descBatches    = streamDesc("batches_total", "Batches of the rank.")
	descEvents     = streamDesc("events_total", "Events of the rank.")
	descGaps       = streamDesc("sequence_gaps_total", "Gaps in the sequence.")
	descLosses     = streamDesc("losses_total", "Times that batches were missing and did not come back by replay.")
	descReplays    = streamDesc("replays_total", "Replays asked for.")
	descLives      = streamDesc("lives_total", "Lives of the rank; more than one means that the engine restarted.")
	descInherited  = streamDesc("inherited_blocks_total", "Blocks that came with a life that another node had read.", "kind")
	descFilling    = streamDesc("filling", "1 while answers are partial because the source was taken over and its engine is being asked what it holds.")
	descUnacked    = streamDesc("unacknowledged_batches", "Batches that not all owners are known to have applied.")
	descRejected   = streamDesc("rejected_events_total", "Events left out.", "reason")
	descRejBlocks  = streamDesc("rejected_blocks_total", "Blocks in events left out.", "reason")
	descOrphans    = streamDesc("orphan_blocks", "Blocks that wait for their parent.")
	descOrphLost   = streamDesc("orphan_blocks_lost_total", "Blocks that fell out of the full pool.")
	descMismatch   = streamDesc("block_size_mismatches_total", "Stores with another block size than registered.")
	descStreamHeld = streamDesc("held_blocks", "Blocks held by the rank.", "tier")
	descStreamDeg  = streamDesc("degraded", "1 when lost events did not come back.")
	descStreamLag  = streamDesc("lag_seconds", "Lag of the last batch.")
)

// streams emits the gauges over all streams and, unless they are turned off, the metrics
// of each that this node reads: the others are the metrics of their readers.
func (c *collector) streams(e emitter, self string) {
	r := c.router
	streams := r.streamsByRank()
	states := map[StreamState]float64{}
	warned := map[string]float64{}
	degraded := 0.0
	for _, w := range r.cluster.View().Workers() {
		for _, rank := range w.Ranks {
			states[stateOf(streams, rank, w)]++
			s := streams[streamKey{w.Instance, rank.Rank}]
			if s == nil {
				continue
			}
			degraded += boolValue(s.Degraded != "")
			for _, x := range r.warnings(w, rank, s) {
				warned[x.kind]++
			}
			if !r.cfg.NoStreamMetrics && (s.Reader == "" || s.Reader == self) {
				emitStream(e, w, rank, s)
			}
		}
	}
	for _, s := range streamStates {
		e.gauge(descListeners, states[s], string(s))
	}
	for _, kind := range warningKinds {
		e.gauge(descWarnings, warned[kind], kind)
	}
	e.gauge(descDegraded, degraded)
}

func emitStream(e emitter, w catalog.Worker, rank catalog.Rank, s *StreamStatus) {
	id := []string{w.Instance, rankKey(rank.Rank), w.Group.Key.Model, w.Group.Key.RoutingGroup}
	with := func(more string) []string { return append(id[:len(id):len(id)], more) }
	age := s.LastEvent
	if age < 0 {
		age = s.Registered
	}
	e.gauge(descAge, age.Seconds(), id...)
	e.counter(descBatches, s.Batches, id...)
	e.counter(descEvents, s.Events, id...)
	e.counter(descGaps, s.Gaps, id...)
	e.counter(descLosses, s.Losses, id...)
	e.counter(descReplays, s.Replays, id...)
	e.counter(descLives, s.Lives, id...)
	e.counter(descInherited, s.Inherited-s.Loose, with("checked")...)
	e.counter(descInherited, s.Loose, with("loose")...)
	e.gauge(descFilling, boolValue(rank.Filling), id...)
	if s.Life == rank.Life && s.Acknowledged >= 0 && s.Sequence >= s.Acknowledged {
		e.gauge(descUnacked, float64(s.Sequence-s.Acknowledged), id...)
	}
	for reason, n := range s.Rejected {
		e.counter(descRejected, n, with(reason)...)
	}
	for reason, n := range s.RejectedBlocks {
		e.counter(descRejBlocks, n, with(reason)...)
	}
	e.gauge(descOrphans, float64(s.Orphans), id...)
	e.counter(descOrphLost, s.OrphansLost, id...)
	e.counter(descMismatch, s.BlockSizeMismatches, id...)
	for t, n := range s.Held {
		e.gauge(descStreamHeld, float64(n), with(tierNames[t])...)
	}
	e.gauge(descStreamDeg, boolValue(s.Degraded != ""), id...)
	if s.Lag > 0 {
		e.gauge(descStreamLag, s.Lag.Seconds(), id...)
	}
}
