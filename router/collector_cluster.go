package router

var (
	descMembers    = desc("kvcluster_members", "Members of the cluster.", "state")
	descLeader     = desc("kvcluster_has_leader", "1 when this node knows a leader.")
	descMapIndex   = desc("kvcluster_map_index", "Log index of the layout that this node works with.")
	descLease      = desc("kvcluster_lease_held", "1 when the map is proved to be current.")
	descMapAge     = desc("kvcluster_map_age_seconds", "How old the map may be.")
	descLeaseFail  = desc("kvcluster_lease_failures_total", "Renewals of the lease that failed.")
	descBalance    = desc("kvcluster_balance_ratio", "Largest weight of a member over the mean.")
	descLogLag     = desc("kvcluster_log_lag_entries", "Log entries that are known and not applied.")
	descPartitions = desc("kvcluster_partitions", "Partitions that lack owners: fewer ready ones than wanted, or none.", "state")
	descSlots      = desc("kvcluster_slots", "Slots that lost events, or whose copy on this node may not be read.", "state")
	descChanges    = desc("kvcluster_layout_changes", "Layout changes under way.")
	descDiskFree   = desc("kvcluster_disk_free_bytes", "Bytes that may still be written to the disk of the data folder.")
	descDiskLow    = desc("kvcluster_disk_low", "1 when the disk of the data folder is so full that this node does not lead.")

	descLinkUp      = desc("kvcluster_link_up", "1 when frames can be sent to the peer.", "peer")
	descLinkBytes   = desc("kvcluster_link_bytes_total", "Payload bytes of the link but calls: frames, fills and control, without what link and TCP add.", "peer", "direction")
	descFwdFrames   = desc("kvcluster_forwarded_frames_total", "Frames of streams sent to the peer for its copies.", "peer")
	descFwdBlocks   = desc("kvcluster_forwarded_blocks_total", "Blocks that stores in these frames have.", "peer")
	descFwdBytes    = desc("kvcluster_forwarded_bytes_total", "Bytes of these frames, removals included; over the blocks: what a new block costs.", "peer")
	descFilledBytes = desc("kvcluster_fill_bytes_total", "Bytes sent to fill copies of the peer.", "peer")

	descReads        = desc("kvcluster_reads_total", "Questions by where they were answered: here for this node's clients, by calls to others, here for others.", "where")
	descReadsFailed  = desc("kvcluster_read_calls_failed_total", "Calls to other owners without a usable answer.", "reason")
	descServedFailed = desc("kvcluster_served_reads_failed_total", "Calls of others that were not answered.", "reason")
	descHedges       = desc("kvcluster_read_hedges_total", "Second calls because a first one was slow, and those whose answer came first.", "outcome")
	descHedgeDelay   = desc("kvcluster_read_hedge_delay_seconds", "After how long a second owner is asked.")
	descReplans      = desc("kvcluster_read_replans_total", "Times that an owner knew a later layout.")
	descUnreadable   = desc("kvcluster_read_unreadable_slots_total", "Slots that an owner could not answer for.")
	descPartial      = desc("kvcluster_partial_reads_total", "Requests that lacked something.", "reason")
	descStale        = desc("kvcluster_stale_reads_total", "Requests without proof that the map is current, by what became of them.", "outcome")
)

// cluster emits what only a node of a cluster has.
func (c *collector) cluster(e emitter, node NodeStatus) {
	s, r := &node.Cluster, &node.Search
	e.gauge(descMembers, float64(s.Alive), "alive")
	e.gauge(descMembers, float64(max(0, s.Members-s.Alive)), "not_alive")
	e.gauge(descLeader, boolValue(s.Leader != ""))
	e.gauge(descMapIndex, float64(s.MapIndex))
	e.gauge(descLease, boolValue(s.LeaseHeld))
	e.gauge(descMapAge, s.MapAge.Seconds())
	e.counter(descLeaseFail, r.LeaseFailed)
	if s.Balance > 0 {
		e.gauge(descBalance, s.Balance)
	}
	e.gauge(descLogLag, float64(s.LogLag))
	e.gauge(descPartitions, float64(s.Unready), "unready")
	e.gauge(descPartitions, float64(s.Unowned), "unowned")
	e.gauge(descSlots, float64(s.DegradedSlots), "degraded")
	e.gauge(descSlots, float64(s.UnreadableSlots), "unreadable")
	e.gauge(descChanges, float64(s.Changes))
	if s.Disk.Known {
		e.gauge(descDiskFree, float64(s.Disk.Free))
		e.gauge(descDiskLow, boolValue(s.Disk.Low))
	}

	for i := range node.Peers {
		p := &node.Peers[i]
		e.gauge(descLinkUp, boolValue(p.Up), p.Peer)
		e.counter(descLinkBytes, p.BytesOut, p.Peer, "out")
		e.counter(descLinkBytes, p.BytesIn, p.Peer, "in")
		e.counter(descFwdFrames, p.Frames, p.Peer)
		e.counter(descFwdBlocks, p.Blocks, p.Peer)
		e.counter(descFwdBytes, p.Bytes, p.Peer)
		e.counter(descFilledBytes, p.FillBytes, p.Peer)
	}

	e.counter(descReads, r.Local, "local")
	e.counter(descReads, r.Calls, "remote")
	e.counter(descReads, r.Served, "served")
	for reason, n := range r.Failed {
		e.counter(descReadsFailed, n, reason)
	}
	for reason, n := range r.ServedFailed {
		e.counter(descServedFailed, n, reason)
	}
	e.counter(descHedges, r.Hedges, "sent")
	e.counter(descHedges, r.HedgesWon, "won")
	e.gauge(descHedgeDelay, r.HedgeDelay.Seconds())
	e.counter(descReplans, r.Replans)
	e.counter(descUnreadable, r.Unreadable)
	for reason, n := range r.Partial {
		e.counter(descPartial, n, reason)
	}
	e.counter(descStale, r.Stale-min(r.Stale, r.Refused), "marked")
	e.counter(descStale, r.Refused, "refused")
}
