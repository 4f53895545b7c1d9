package router

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// hits is what Mooncake's answers say about one rank, in blocks: how long a prefix it
// holds in one tier or another, and how many blocks of that prefix are in each tier.
type hits struct {
	longest, gpu, cpu, disk uint32
}

func (h *hits) raise(o hits) {
	h.longest, h.gpu = max(h.longest, o.longest), max(h.gpu, o.gpu)
	h.cpu, h.disk = max(h.cpu, o.cpu), max(h.disk, o.disk)
}

// instanceHits is what they say about one instance: the maximum over its ranks. Blocks
// of different ranks are never put together to one prefix, since no rank could use it.
type instanceHits struct {
	name  string
	total hits
	ranks []rankHits
}

type rankHits struct {
	rank uint32
	hits
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
func (c *call) answerMooncake(s *searcher, view *catalog.View, p prompt, found *scores) error {
	list := c.router.countHits(s, found, c.req)
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
	b = appendUintField(b, "longest_matched", s.tokens(h.total.longest))
	b = appendUintField(b, "GPU", s.tokens(h.total.gpu))
	b = append(appendKey(b, "DP"), '{')
	for _, r := range h.ranks {
		b = appendRank(b, r.rank, s.tokens(r.gpu))
	}
	b = append(b, '}')
	b = appendUintField(b, "CPU", s.tokens(h.total.cpu))
	return appendUintField(b, "DISK", s.tokens(h.total.disk))
}

// countHits counts the hits of every rank on the board, or of the one instance that the
// request asks for.
func (r *Router) countHits(s *searcher, found *scores, q *request) []instanceHits {
	var out []instanceHits
	for p, d := range found.board.all {
		name := &found.names.ranks[p]
		if q.has(fInstance) && name.instance != q.instance {
			continue
		}
		var h hits
		for _, locals := range found.paths {
			if len(locals) > 0 {
				h.raise(r.rankHits(s, found, locals, name, int(d[len(d)-1])))
			}
		}
		if !r.holders(found.names)(name) {
			continue
		}
		if n := len(out); n == 0 || out[n-1].name != name.instance {
			out = append(out, instanceHits{name: name.instance})
		}
		in := &out[len(out)-1]
		in.total.raise(h)
		in.ranks = append(in.ranks, rankHits{name.rank, h})
	}
	return out
}

// rankHits counts along one path. The tier walk got as far as depth; the prefix held in
// any tier may reach further, so the part that is looked at grows as long as it is full.
func (r *Router) rankHits(s *searcher, found *scores, locals []uint64, name *rankName, depth int) (h hits) {
	q := r.query(found.names.group, locals)
	for n := min(depth+32, len(locals)); ; n = min(2*n, len(locals)) {
		q.Locals = locals[:n]
		s.states = s.Explain(q, name.slot, s.states[:0])
		h = hits{}
		for _, b := range s.states {
			if b.Tiers == 0 {
				return h
			}
			h.longest++
			if b.Tiers.Has(indexer.Device) {
				h.gpu++
			}
			if b.Tiers.Has(indexer.Host) {
				h.cpu++
			}
			if b.Tiers.Has(indexer.Disk) || b.Tiers.Has(indexer.External) {
				h.disk++
			}
		}
		if n == len(locals) {
			return h
		}
	}
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
			"longest_matched": found.tokens(h.total.longest), "GPU": found.tokens(h.total.gpu), "DP": dp,
			"CPU": found.tokens(h.total.cpu), "DISK": found.tokens(h.total.disk),
		}
		for ; i < len(found.names.ranks) && found.names.ranks[i].instance == name; i++ {
			rank := found.names.ranks[i].rank
			var r hits
			for _, have := range h.ranks {
				if have.rank == rank {
					r = have.hits
				}
			}
			key := strconv.FormatUint(uint64(rank), 10)
			dp[key] = found.tokens(r.gpu)
			one[key] = map[string]uint64{"GPU": found.tokens(r.gpu), "CPU": found.tokens(r.cpu), "DISK": found.tokens(r.disk)}
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
	}
	return c.msgpack(http.StatusOK, answer)
}
