package router

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// tierNames are the names of the tiers in our own answers, as in Dynamo's dumps.
var tierNames = [indexer.NumTiers]string{"device", "host_pinned", "disk", "external"}

func rankKey(rank uint32) string { return strconv.FormatUint(uint64(rank), 10) }

func sortedKeys(m map[string]uint64) []string { return slices.Sorted(maps.Keys(m)) }

// warning is something about a stream that an operator should look at, although
// nothing has failed.
type warning struct{ kind, text string }

// The kinds of warning, for the metric.
var warningKinds = []string{"silent", "idle_rank", "block_size", "never_matched", "degraded", "refused", "stream"}

// queriesBeforeNeverMatched is how many queries of its group a rank with blocks may miss
// before it is called out: enough that a rank with traffic of its own is among the hits.
const queriesBeforeNeverMatched = 1000

// warnings returns what is odd about a stream.
func (r *Router) warnings(w catalog.Worker, rank catalog.Rank, s *StreamStatus) (out []warning) {
	add := func(kind, format string, a ...any) { out = append(out, warning{kind, fmt.Sprintf(format, a...)}) }
	var held uint64
	for _, n := range s.Held {
		held += n
	}
	serving := s.State != StreamPaused && s.State != StreamFailed
	switch {
	case s.Batches > 0 && s.Events == 0 && s.Registered > r.cfg.SilentAfter:
		add("idle_rank", "registered for %s, its endpoint sends batches, but none with an event of this rank", round(s.Registered))
	case serving && s.LastEvent < 0 && s.Registered > r.cfg.SilentAfter && held > 0:
		// Taken over from another node or restored: its publisher is known to be right.
		add("silent", "nothing arrived since this node reads the stream; its blocks are from before")
	case serving && s.LastEvent < 0 && s.Registered > r.cfg.SilentAfter:
		add("silent", "registered for %s and nothing arrived: are KV events enabled on the engine, and is %s its publisher?", round(s.Registered), rank.Endpoint)
	case serving && s.LastEvent > r.cfg.SilentAfter:
		add("silent", "nothing arrived for %s", round(s.LastEvent))
	}
	if s.BlockSizeMismatches > 0 {
		add("block_size", "%d stores with blocks of %d tokens, registered with %d: they are not indexed", s.BlockSizeMismatches, s.SeenBlockSize, rank.BlockSize)
	}
	if s.Degraded != "" {
		add("degraded", "scores may be too low until the stream is rebuilt: %s", s.Degraded)
	}
	if s.Refused {
		add("refused", "the engine's hashes do not name prefixes: nothing of it is credited")
	}
	if held > 0 {
		if n := r.names.missed(w.Group.ID, rank.Life); n >= queriesBeforeNeverMatched {
			add("never_matched", "%d blocks held and none of %d queries matched one: other tokens, LoRA or salt than the queries have?", held, n)
		}
	}
	for _, text := range s.Warnings {
		add("stream", "%s", text)
	}
	return out
}

func round(d time.Duration) time.Duration { return d.Round(time.Second) }
