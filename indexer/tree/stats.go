package tree

import (
	"context"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// Stats implements indexer.Index.
func (x *Index) Stats() indexer.Stats {
	if x.running() != nil {
		return indexer.Stats{Lanes: make([]indexer.LaneStats, len(x.lanes))}
	}
	total := indexer.Stats{Bytes: make(map[string]uint64, numPurposes)}
	for i, t := range x.threads {
		var s indexer.Stats
		if x.do(context.Background(), i, func(l *Lane) { s = l.Stats() }) != nil {
			continue
		}
		addStats(&total, &s)
		ls := indexer.LaneStats{Frames: s.Frames + s.Faults}
		ls.ApplyP50, ls.ApplyP99 = t.took.quantile(0.50), t.took.quantile(0.99)
		for _, r := range *t.rings.Load() {
			applied := r.applied.Load()
			ls.Queued += r.written.Load() - applied
			ls.Stalled += r.stalled.Load()
		}
		total.Lanes = append(total.Lanes, ls)
	}
	x.busyShares(total.Lanes)
	total.OldestPin = x.pins.age(time.Now())
	total.WantShed = wantShed(x.cfg.MemoryLimit, &total)
	return total
}

// wantShed turns the bytes above the limit into blocks, at what a block takes now. What
// readers keep in limbo comes back by itself.
func wantShed(limit uint64, s *indexer.Stats) uint64 {
	held := uint64(0)
	for _, n := range s.Held {
		held += n
	}
	if used := s.Reserved - min(s.Reserved, s.Limbo); limit > 0 && used > limit && held > 0 {
		return max(1, uint64(float64(held)*float64(used-limit)/float64(used)))
	}
	return 0
}

func addStats(total, s *indexer.Stats) {
	for t := range s.Held {
		total.Held[t] += s.Held[t]
	}
	total.Distinct += s.Distinct
	total.Stored += s.Stored
	total.Chains += s.Chains
	total.Slots += s.Slots
	total.Frames += s.Frames
	total.Faults += s.Faults
	total.Reserved += s.Reserved
	total.Limbo += s.Limbo
	total.Revoked += s.Revoked
	for p, n := range s.Bytes {
		total.Bytes[p] += n
	}
}

// busyShares says how busy each lane was since the last call.
func (x *Index) busyShares(lanes []indexer.LaneStats) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	span := now.Sub(x.mu.last)
	x.mu.last = now
	for i, t := range x.threads {
		idle := t.idle.Load()
		if at := t.idleAt.Load(); at != 0 {
			idle += max(0, int64(now.Sub(t.started))+1-at)
		}
		if i < len(lanes) && span > 0 {
			lanes[i].BusyShare = min(1, max(0, 1-float64(idle-x.mu.idle[i])/float64(span)))
		}
		x.mu.idle[i] = idle
	}
}
