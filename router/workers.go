package router

import (
	"net/http"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// streamKey finds the status of a rank.
type streamKey struct {
	instance string
	rank     uint32
}

func (r *Router) streamsByRank() map[streamKey]*StreamStatus {
	all := r.cluster.Streams()
	m := make(map[streamKey]*StreamStatus, len(all))
	for i := range all {
		m[streamKey{all[i].Instance, all[i].Rank}] = &all[i]
	}
	return m
}

// workers serves GET /workers. Dynamo's fields come first and in its order; what it
// lacks follows in the listeners.
func (c *call) workers() error {
	params := c.r.URL.Query()
	keep := func(name, value string) bool { return !params.Has(name) || params.Get(name) == value }
	streams := c.router.streamsByRank()
	b := append(c.out[:0], '[')
	for _, w := range c.router.cluster.View().Workers() {
		if keep("model_name", w.Group.Key.Model) && keep("routing_group", w.Group.Key.RoutingGroup) {
			b = c.router.appendWorker(comma(b), w, streams)
		}
	}
	c.out = append(b, ']')
	c.json(http.StatusOK, c.out)
	return nil
}

func (r *Router) appendWorker(b []byte, w catalog.Worker, streams map[streamKey]*StreamStatus) []byte {
	states := make([]StreamState, 0, len(w.Ranks))
	for _, rank := range w.Ranks {
		states = append(states, stateOf(streams, rank, w))
	}
	b = append(b, `{"instance_id":`...)
	b = appendID(b, w.Instance)
	b = appendStringField(b, "source", "zmq")
	b = appendStringField(b, "status", string(aggregate(states)))
	b = appendStringField(b, "model_name", w.Group.Key.Model)
	b = appendStringField(b, "routing_group", w.Group.Key.RoutingGroup)
	b = appendUintField(b, "block_size", uint64(w.Group.BlockSize))
	b = append(appendKey(b, "endpoints"), '{')
	for _, rank := range w.Ranks {
		b = appendStringField(b, rankKey(rank.Rank), rank.Endpoint)
	}
	b = append(b, '}')
	b = append(appendKey(b, "listeners"), '{')
	for i, rank := range w.Ranks {
		b = append(appendKey(b, rankKey(rank.Rank)), '{')
		b = appendStringField(b, "endpoint", rank.Endpoint)
		b = appendStringField(b, "status", string(states[i]))
		if s := streams[streamKey{w.Instance, rank.Rank}]; s != nil {
			if s.Reader != "" {
				b = appendStringField(b, "reader", s.Reader)
			}
			if s.LastError != "" {
				b = appendStringField(b, "last_error", s.LastError)
			}
			b = r.appendStream(b, w, rank, s)
		}
		b = append(b, '}')
	}
	return append(b, '}', '}')
}

// stateOf returns the state of a rank; one that no ingest has taken up yet is pending.
func stateOf(streams map[streamKey]*StreamStatus, rank catalog.Rank, w catalog.Worker) StreamState {
	if s := streams[streamKey{w.Instance, rank.Rank}]; s != nil {
		return s.State
	}
	return StreamPending
}

// appendStream appends what we know of a stream and Dynamo does not tell.
func (r *Router) appendStream(b []byte, w catalog.Worker, rank catalog.Rank, s *StreamStatus) []byte {
	if s.LastEvent >= 0 {
		b = appendUintField(b, "last_event_age_ms", uint64(s.LastEvent/time.Millisecond))
	}
	if s.Life == rank.Life && s.Sequence >= 0 { // else it is of a life that has ended
		b = appendUintField(b, "sequence", uint64(s.Sequence))
	}
	if s.Life == rank.Life && s.Acknowledged >= 0 {
		b = appendUintField(b, "acknowledged_sequence", uint64(s.Acknowledged))
	}
	b = appendUintField(b, "batches", s.Batches)
	b = appendUintField(b, "events", s.Events)
	b = appendUintField(b, "gaps", s.Gaps)
	b = appendUintField(b, "losses", s.Losses)
	b = appendUintField(b, "replays", s.Replays)
	b = appendUintField(b, "lives", s.Lives)
	b = appendUintField(b, "orphan_blocks", s.Orphans)
	b = appendUintField(b, "block_size_mismatches", s.BlockSizeMismatches)
	b = append(appendKey(b, "held"), '{')
	for t, n := range s.Held {
		b = appendUintField(b, tierNames[t], n)
	}
	b = append(b, '}')
	b = append(appendKey(b, "rejected"), '{')
	for _, reason := range sortedKeys(s.Rejected) {
		b = appendUintField(b, reason, s.Rejected[reason])
	}
	b = append(b, '}')
	if s.Lag > 0 {
		b = appendUintField(b, "lag_us", uint64(s.Lag/time.Microsecond))
	}
	if s.Degraded != "" {
		b = appendStringField(b, "degraded", s.Degraded)
	}
	if rank.Discovered {
		b = append(appendKey(b, "discovered"), "true"...)
	}
	if warnings := r.warnings(w, rank, s); len(warnings) > 0 {
		b = append(appendKey(b, "warnings"), '[')
		for _, x := range warnings {
			b = appendString(comma(b), x.text)
		}
		b = append(b, ']')
	}
	return b
}
