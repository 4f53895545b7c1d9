package router

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// instanceHits is what they say about one instance: the maximum over its ranks. Blocks
// of different ranks are never put together to one prefix, since no rank could use it.
type instanceHits struct {
	name  string
	total indexer.Prefix
	ranks []rankHits
}

type rankHits struct {
	rank uint32
	indexer.Prefix
}

// draftOrCurrent tells the first draft from the current JSON dialect: the draft knows
// neither tenants nor block sizes, the current one demands a block size.
func (q *request) draftOrCurrent() error {
	if q.present&set(fBlockSize, fTenant, fInstance, fCacheSalt) == 0 {
		q.dialect = mooncakeA
		return nil
	}
	return q.require(fBlockSize)
}

// outOfScope answers a query whose scope has no index. The JSON dialects leave open
// how, so a wrong model or block size is an error there; the msgpack one asks for an
// empty answer.
func (c *call) outOfScope(g *catalog.Group, known bool) (done bool, err error) {
	q := c.req
	if q.dialect == mooncakeC {
		if err := q.require(fBlockSize); err != nil {
			return false, err
		}
	}
	k := q.group()
	switch {
	case q.has(fBlockSize) && q.blockSize == 0:
		return false, &apiError{status: http.StatusBadRequest, text: "block_size must be above 0", field: "block_size"}
	case known && (!q.has(fBlockSize) || q.blockSize == g.BlockSize):
		return false, nil
	case q.dialect == mooncakeC:
		return true, c.msgpack(http.StatusOK, map[string]any{"instances": map[string]any{}})
	case !known:
		return false, &apiError{status: http.StatusNotFound, text: fmt.Sprintf("no indexer for model=%s tenant_id=%s", k.Model, k.RoutingGroup), field: "model"}
	}
	return false, &apiError{
		status: http.StatusBadRequest, field: "block_size",
		text: fmt.Sprintf("block_size mismatch for model=%s tenant_id=%s: existing=%d, requested=%d", k.Model, k.RoutingGroup, g.BlockSize, q.blockSize),
	}
}

// answerMooncake answers in one of the three generations.
func (c *call) answerMooncake(s *searcher, found *scores) (err error) {
	list := c.router.countHits(s, found, c.req)
	if found.Completeness, err = c.complete(s); err != nil {
		return err
	}
	if c.req.dialect == mooncakeC {
		return c.answerInstances(list, found)
	}
	key, inside := "data", found.Completeness
	if c.req.dialect == mooncakeB {
		key = c.req.group().RoutingGroup
	}
	b := append(c.out[:0], '{')
	b = append(appendKey(b, key), '{')
	for i := range list {
		b = append(appendKey(b, list[i].name), '{')
		b = appendInstanceHits(b, &list[i], found)
		if c.req.dialect == mooncakeB { // its top level has tenants only
			b = appendCompleteness(b, inside)
		}
		b = append(b, '}')
	}
	b = append(b, '}')
	if c.req.dialect == mooncakeA {
		b = appendCompleteness(b, inside)
	}
	c.out = append(b, '}')
	c.json(http.StatusOK, c.out)
	return nil
}

func appendInstanceHits(b []byte, h *instanceHits, s *scores) []byte {
	b = appendUintField(b, "longest_matched", s.tokens(h.total.Length))
	b = appendUintField(b, "GPU", s.tokens(h.total.Device))
	b = append(appendKey(b, "DP"), '{')
	for _, r := range h.ranks {
		b = appendRank(b, r.rank, s.tokens(r.Device))
	}
	b = append(b, '}')
	b = appendUintField(b, "CPU", s.tokens(h.total.Host))
	return appendUintField(b, "DISK", s.tokens(h.total.Lower))
}

// countHits counts the hits of every rank on the board, or of the one instance that the
// request asks for: one question for each path.
func (r *Router) countHits(s *searcher, found *scores, q *request) []instanceHits {
	s.rows, s.prefixes = s.rows[:0], s.prefixes[:0]
	wanted := func(p place) bool {
		return !q.has(fInstance) || found.names.ranks[p].instance == q.instance
	}
	for p, d := range found.board.all {
		if wanted(p) {
			s.rows = append(s.rows, indexer.Row{Slot: found.names.ranks[p].slot, Depth: d[len(d)-1]})
		}
	}
	if len(s.rows) == 0 {
		return nil
	}
	for _, locals := range found.paths {
		if len(locals) > 0 {
			s.prefixes = s.Prefixes(r.query(found.names.group, locals), s.rows, s.prefixes)
		}
	}
	still := r.holders(found.names)
	var out []instanceHits
	i := -1
	for p := range found.board.all {
		if !wanted(p) {
			continue
		}
		i++
		name := &found.names.ranks[p]
		if !still(name) {
			continue
		}
		var h indexer.Prefix
		for k := i; k < len(s.prefixes); k += len(s.rows) {
			h.Raise(s.prefixes[k])
		}
		if n := len(out); n == 0 || out[n-1].name != name.instance {
			out = append(out, instanceHits{name: name.instance})
		}
		in := &out[len(out)-1]
		in.total.Raise(h)
		in.ranks = append(in.ranks, rankHits{name.rank, h})
	}
	return out
}

// answerInstances answers in the msgpack generation: registered ranks appear without a
// hit too.
func (c *call) answerInstances(list []instanceHits, found *scores) error {
	instances := map[string]any{}
	zero := instanceHits{}
	for i, next := 0, 0; i < len(found.names.ranks); {
		name := found.names.ranks[i].instance
		h := &zero
		if next < len(list) && list[next].name == name {
			h = &list[next]
			next++
		}
		dp := map[string]uint64{}
		one := map[string]any{
			"longest_matched": found.tokens(h.total.Length), "GPU": found.tokens(h.total.Device), "DP": dp,
			"CPU": found.tokens(h.total.Host), "DISK": found.tokens(h.total.Lower),
		}
		for ; i < len(found.names.ranks) && found.names.ranks[i].instance == name; i++ {
			rank := found.names.ranks[i].rank
			var r indexer.Prefix
			for _, have := range h.ranks {
				if have.rank == rank {
					r = have.Prefix
				}
			}
			key := strconv.FormatUint(uint64(rank), 10)
			dp[key] = found.tokens(r.Device)
			one[key] = map[string]uint64{"GPU": found.tokens(r.Device), "CPU": found.tokens(r.Host), "DISK": found.tokens(r.Lower)}
		}
		if !c.req.has(fInstance) || name == c.req.instance {
			instances[name] = one
		}
	}
	answer := map[string]any{"instances": instances}
	if found.Partial {
		answer["partial"], answer["missing"] = true, found.Missing
	}
	if found.Stale {
		answer["stale"] = true
		if found.MapAge > 0 {
			answer["map_age_ms"] = found.MapAge.Milliseconds()
		}
	}
	return c.msgpack(http.StatusOK, answer)
}
