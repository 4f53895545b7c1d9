package mockengine

import (
	"fmt"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// Cadence counts events by their number of blocks, in the buckets in which such
// figures are published: 1, 2-8, 9-64, 65-1024, 1025-8192 and more.
type Cadence struct {
	Events  uint64
	Blocks  uint64
	Buckets [6]uint64
}

// cadenceLimits are the upper ends of the buckets, in blocks.
var cadenceLimits = [5]int{1, 8, 64, 1024, 8192}

func (c *Cadence) add(blocks int) {
	c.Events++
	c.Blocks += uint64(blocks)
	i := 0
	for i < len(cadenceLimits) && blocks > cadenceLimits[i] {
		i++
	}
	c.Buckets[i]++
}

func (c *Cadence) merge(d Cadence) {
	c.Events += d.Events
	c.Blocks += d.Blocks
	for i := range c.Buckets {
		c.Buckets[i] += d.Buckets[i]
	}
}

// schedulerStats counts since the start; restarts do not reset it.
type schedulerStats struct {
	Admitted     uint64 // requests that found room
	Finished     uint64
	Aborted      uint64 // lost in a restart
	TooLarge     uint64 // never served: more blocks than the cache has
	OutputTokens uint64
	PromptBlocks uint64 // complete blocks of admitted prompts
	HitBlocks    uint64 // of these, resident on the device
	LoadedBlocks uint64 // of these, loaded back from the host
	Duplicates   uint64 // further copies of visible blocks: capacity without an event

	Stored, Removed Cadence // all tiers together
	Cleared         uint64  // events
	StoredBlocks    [indexer.NumTiers]uint64
	RemovedBlocks   [indexer.NumTiers]uint64
}

func (s *schedulerStats) merge(t *schedulerStats) {
	s.Admitted += t.Admitted
	s.Finished += t.Finished
	s.Aborted += t.Aborted
	s.TooLarge += t.TooLarge
	s.OutputTokens += t.OutputTokens
	s.PromptBlocks += t.PromptBlocks
	s.HitBlocks += t.HitBlocks
	s.LoadedBlocks += t.LoadedBlocks
	s.Duplicates += t.Duplicates
	s.Stored.merge(t.Stored)
	s.Removed.merge(t.Removed)
	s.Cleared += t.Cleared
	for i := range s.StoredBlocks {
		s.StoredBlocks[i] += t.StoredBlocks[i]
		s.RemovedBlocks[i] += t.RemovedBlocks[i]
	}
}

// Stats counts what a publisher, or the fleet, has done since it started.
type Stats struct {
	schedulerStats
	Running, Waiting int // gauges: requests
	// Held are the resident blocks, per tier: a gauge.
	Held [indexer.NumTiers]uint64

	Batches  uint64 // made, whatever became of them
	Bytes    uint64 // payload bytes of the batches that were sent
	Withheld uint64 // batches kept for replay only
	Lost     uint64 // batches neither sent nor kept
	Garbage  uint64 // messages that are no batches
	Lives    uint64 // 1 + restarts, of each publisher
	Stopped  int    // publishers that a fault has stopped
	Done     int    // publishers that have played their part of the trace

	TraceTime time.Duration // how far the trace has been played (fleet: the slowest)
	Lag       time.Duration // behind the schedule, in wall time (fleet: the largest)
}

func (s *Stats) merge(t *Stats) {
	s.schedulerStats.merge(&t.schedulerStats)
	s.Running += t.Running
	s.Waiting += t.Waiting
	for i := range s.Held {
		s.Held[i] += t.Held[i]
	}
	s.Batches += t.Batches
	s.Bytes += t.Bytes
	s.Withheld += t.Withheld
	s.Lost += t.Lost
	s.Garbage += t.Garbage
	s.Lives += t.Lives
	s.Stopped += t.Stopped
	s.Done += t.Done
	s.Lag = max(s.Lag, t.Lag)
}

// String prints the cadence summary by which two generators can be compared.
func (s Stats) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-28s %s\n", name, fmt.Sprintf(format, args...))
	}
	per := func(a, b uint64) float64 {
		if b == 0 {
			return 0
		}
		return float64(a) / float64(b)
	}
	line("requests", "%d finished, %d running, %d waiting, %d aborted, %d too large", s.Finished, s.Running, s.Waiting, s.Aborted, s.TooLarge)
	line("prompt blocks", "%d (%.1f %% resident, %.1f %% loaded from host)", s.PromptBlocks,
		100*per(s.HitBlocks, s.PromptBlocks), 100*per(s.LoadedBlocks, s.PromptBlocks))
	line("batches", "%d (%d bytes sent, %d withheld, %d lost)", s.Batches, s.Bytes, s.Withheld, s.Lost)
	line("events per request", "%.2f stored, %.2f removed", per(s.Stored.Events, s.Admitted), per(s.Removed.Events, s.Admitted))
	line("stored blocks per request", "%.1f", per(s.Stored.Blocks, s.Admitted))
	line("stored events per token", "%.4f of output", per(s.Stored.Events, s.OutputTokens))
	line("blocks per event", "%9s%9s%9s%9s%10s%9s", "1", "2-8", "9-64", "65-1024", "1025-8192", ">8192")
	for _, c := range []struct {
		name string
		c    Cadence
	}{{"  stored events", s.Stored}, {"  removed events", s.Removed}} {
		k := c.c.Buckets
		line(c.name, "%9d%9d%9d%9d%10d%9d", k[0], k[1], k[2], k[3], k[4], k[5])
	}
	return b.String()
}
