package router

import (
	"net/http"
	"time"
)

// health serves GET /health: the process answers, nothing more.
func (c *call) health() error {
	c.empty(http.StatusOK)
	return nil
}

// ready serves GET /ready.
func (c *call) ready() error {
	if ok, reason := c.router.cluster.Ready(); !ok {
		b := append(c.out[:0], `{"ready":false,"reason":`...)
		c.out = append(appendString(b, reason), '}')
		c.json(http.StatusServiceUnavailable, c.out)
		return nil
	}
	c.json(http.StatusOK, []byte(`{"ready":true}`))
	return nil
}

// status serves GET /status: the node at a glance. The ranks are in /workers.
func (c *call) status() error {
	r := c.router
	view, node := r.cluster.View(), r.cluster.Status()
	ok, reason := r.cluster.Ready()
	b := append(c.out[:0], `{"ready":`...)
	if ok {
		b = append(b, "true"...)
	} else {
		b = append(b, "false"...)
		b = appendStringField(b, "reason", reason)
	}
	b = appendStringField(b, "node", node.Node)
	b = appendStringField(b, "version", node.Version)
	b = appendUintField(b, "uptime_seconds", uint64(time.Since(r.started)/time.Second))
	b = append(appendKey(b, "worker_gate"), '{')
	b = appendUintField(b, "min_initial_workers", uint64(max(0, node.MinWorkers)))
	b = appendUintField(b, "workers", uint64(len(view.Workers())))
	b = append(b, '}')
	b = appendUintField(b, "models", uint64(len(view.Groups())))
	b = append(appendKey(b, "listeners"), '{')
	counts, degraded, warned := r.countStreams()
	for _, s := range streamStates {
		b = appendUintField(b, string(s), counts[s])
	}
	b = append(b, '}')
	b = appendUintField(b, "degraded_streams", degraded)
	b = appendUintField(b, "streams_with_warnings", warned)
	b = append(appendKey(b, "index"), '{')
	b = append(appendKey(b, "held_blocks"), '{')
	for t, n := range node.Index.Held {
		b = appendUintField(b, tierNames[t], n)
	}
	b = append(b, '}')
	b = appendUintField(b, "distinct_blocks", node.Index.Distinct)
	b = appendUintField(b, "chains", node.Index.Chains)
	b = appendUintField(b, "frames", node.Index.Frames)
	b = appendUintField(b, "faults", node.Index.Faults)
	b = append(appendKey(b, "bytes"), '{')
	for _, purpose := range sortedKeys(node.Index.Bytes) {
		b = appendUintField(b, purpose, node.Index.Bytes[purpose])
	}
	b = append(b, '}')
	b = appendUintField(b, "reserved_bytes", node.Index.Reserved)
	b = appendUintField(b, "limbo_bytes", node.Index.Limbo)
	b = append(appendKey(b, "lanes"), '[')
	for _, l := range node.Index.Lanes {
		b = append(comma(b), '{')
		b = appendUintField(b, "queued", l.Queued)
		b = appendUintField(b, "busy_percent", uint64(l.BusyShare*100+0.5))
		b = append(appendUintField(b, "frames", l.Frames), '}')
	}
	b = append(b, "]}"...)
	if node.Cluster.ID != "" {
		b = appendCluster(b, &node.Cluster)
	}
	c.out = append(b, '}')
	c.json(http.StatusOK, c.out)
	return nil
}

// appendCluster appends the state of the cluster as one field.
func appendCluster(b []byte, s *ClusterStatus) []byte {
	b = append(appendKey(b, "cluster"), '{')
	b = appendStringField(b, "id", s.ID)
	b = appendStringField(b, "leader", s.Leader)
	b = appendUintField(b, "map_index", s.MapIndex)
	b = appendBoolField(b, "lease_held", s.LeaseHeld)
	b = appendUintField(b, "map_age_ms", uint64(s.MapAge.Milliseconds()))
	b = appendUintField(b, "members", uint64(s.Members))
	b = appendUintField(b, "alive", uint64(s.Alive))
	b = appendUintField(b, "replicas", uint64(s.Replicas))
	if s.Balance > 0 {
		b = appendFloatField(b, "balance", s.Balance)
	}
	b = appendUintField(b, "log_lag", s.LogLag)
	b = appendUintField(b, "unready_partitions", uint64(s.Unready))
	b = appendUintField(b, "unowned_partitions", uint64(s.Unowned))
	b = appendUintField(b, "degraded_slots", uint64(s.DegradedSlots))
	b = appendUintField(b, "unreadable_slots", uint64(s.UnreadableSlots))
	b = appendUintField(b, "changes", uint64(s.Changes))
	if s.Disk.Known {
		b = append(appendKey(b, "disk"), '{')
		b = appendUintField(b, "free_bytes", uint64(max(0, s.Disk.Free)))
		b = append(appendBoolField(b, "low", s.Disk.Low), '}')
	}
	return append(b, '}')
}

// countStreams counts the ranks by the state of their stream.
func (r *Router) countStreams() (counts map[StreamState]uint64, degraded, warned uint64) {
	counts = map[StreamState]uint64{}
	streams := r.streamsByRank()
	for _, w := range r.cluster.View().Workers() {
		for _, rank := range w.Ranks {
			counts[stateOf(streams, rank, w)]++
			s := streams[streamKey{w.Instance, rank.Rank}]
			if s == nil {
				continue
			}
			if s.Degraded != "" {
				degraded++
			}
			if len(r.warnings(w, rank, s)) > 0 {
				warned++
			}
		}
	}
	return counts, degraded, warned
}
