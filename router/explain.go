package router

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// explanation says what one rank holds of a prompt and why its score is what it is.
type explanation struct {
	group    *catalog.Group
	instance string
	rank     uint32
	tokens   int // of the prompt, 0 when it came as hashes
	locals   []uint64
	states   []indexer.BlockState
	walk     depths
	stops    []stop
	complete Completeness
}

// stop is a place where a count ends before the prompt does.
type stop struct {
	count  string // "device" or "all tiers"
	block  int
	causes []cause // most certain first
}

// cause is one reason, possible or certain.
type cause struct{ reason, text string }

// explain serves both methods of /explain once the question is known.
func (c *call) explain(q *request, p prompt) error {
	r := c.router
	view := r.cluster.View()
	g, ok := view.Group(q.group())
	if !ok {
		return noIndexer(q.group())
	}
	s, err := r.pool.acquire(c.r.Context())
	if err != nil {
		return err
	}
	defer r.pool.release(s)
	s.Begin(c.r.Context())
	e := r.explanation(s, view, g, q, p)
	if e.complete, err = c.complete(s); err != nil {
		return err
	}
	if wantsText(c.r) {
		c.out = e.appendText(c.out[:0])
		c.send(http.StatusOK, "text/plain; charset=utf-8", c.out)
		return nil
	}
	c.out = e.appendJSON(c.out[:0])
	c.json(http.StatusOK, c.out)
	return nil
}

func (r *Router) explanation(s *searcher, view *catalog.View, g *catalog.Group, q *request, p prompt) *explanation {
	e := &explanation{group: g, instance: q.instance, rank: q.rank, tokens: len(p.tokens)}
	w, known := view.Worker(q.instance)
	if known && !q.has(fRank) {
		e.rank = w.Ranks[0].Rank
	}
	i := slices.IndexFunc(w.Ranks, func(x catalog.Rank) bool { return x.Rank == e.rank })
	var blocks int
	paths := r.hashings(s, g, p, &blocks)
	e.locals = paths[0]
	if p.kind == promptSequence && len(e.locals) < blocks { // nobody stored what follows
		e.locals = append(slices.Clone(e.locals), make([]uint64, blocks-len(e.locals))...)
	}
	if !known || w.Group.ID != g.ID || i < 0 {
		e.states = make([]indexer.BlockState, len(e.locals))
		e.stops = []stop{{"all tiers", 0, []cause{unknownRank(g, w, known, e)}}}
		return e
	}
	rank := w.Ranks[i]
	for _, locals := range paths {
		if len(locals) == 0 {
			continue
		}
		states := r.explainRank(s, r.query(g, locals), rank)
		walk := tierWalk(states)
		if e.states == nil || walk[len(walk)-1] > e.walk[len(walk)-1] {
			e.locals, e.states, e.walk = locals, states, walk
		}
	}
	if p.kind == promptSequence && len(e.states) < blocks {
		e.locals = append(slices.Clone(paths[0]), make([]uint64, blocks-len(paths[0]))...)
		e.states = append(e.states, make([]indexer.BlockState, blocks-len(e.states))...)
	}
	r.explainStops(s, e, w, rank, p)
	return e
}

// explainRank explains a path for one life. Nothing is credited to it once another life has
// its slot, here or where the question was answered.
func (r *Router) explainRank(s *searcher, q indexer.Query, rank catalog.Rank) []indexer.BlockState {
	states := s.Explain(q, indexer.Slot(rank.Slot), nil)
	g, ok := r.cluster.View().GroupByID(uint32(q.Group))
	if ok && rank.Life <= s.Pin() {
		if h, live := g.Holder(rank.Slot); live && h.Life == rank.Life {
			return states
		}
	}
	for i := range states {
		states[i].Tiers, states[i].Evicted = 0, false
	}
	return states
}

// tierWalk returns how far each tier gets when it continues where the one before ended.
func tierWalk(states []indexer.BlockState) (d depths) {
	at := 0
	for t := range d {
		for at < len(states) && states[at].Tiers.Has(indexer.Tier(t)) {
			at++
		}
		d[t] = uint32(at)
	}
	return d
}

// explainStops finds where the device score and the whole tier walk end, and why.
func (r *Router) explainStops(s *searcher, e *explanation, w catalog.Worker, rank catalog.Rank, p prompt) {
	device, all := int(e.walk[indexer.Device]), int(e.walk[len(e.walk)-1])
	if len(e.states) == 0 {
		e.stops = []stop{{"all tiers", 0, []cause{{"prompt_too_short",
			fmt.Sprintf("%d tokens are less than one block of %d", e.tokens, e.group.BlockSize)}}}}
		return
	}
	if device < all {
		e.stops = append(e.stops, stop{"device", device, []cause{{"lower_tier",
			"the block is held in " + tierList(e.states[device].Tiers) + ", not on the device"}}})
	}
	if all == len(e.states) {
		return
	}
	if e.states[all].Tiers != 0 {
		e.stops = append(e.stops, stop{"all tiers", all, []cause{{"tier_order",
			"the block is held in " + tierList(e.states[all].Tiers) + ", but a block before it only in a lower tier: the count goes down the tiers and not back"}}})
		return
	}
	causes := r.causes(s, e, w, rank, p, all)
	e.stops = append(e.stops, stop{"all tiers", all, causes})
}

// causes lists why a rank may lack a block, what is certain first.
func (r *Router) causes(s *searcher, e *explanation, w catalog.Worker, rank catalog.Rank, p prompt, block int) (out []cause) {
	add := func(reason, format string, a ...any) { out = append(out, cause{reason, fmt.Sprintf(format, a...)}) }
	if e.states[block].Evicted {
		add("evicted", "the engine stored the block and removed it again")
		return out
	}
	if block == 0 && p.kind == promptTokens {
		if ns := r.otherNamespace(s, e, rank, p); ns != "" {
			add("other_namespace", "the same tokens are held %s: the query's lora_name and cache_salt must be those of the request", ns)
			return out
		}
	}
	st := r.streamsByRank()[streamKey{w.Instance, rank.Rank}]
	if st == nil {
		st = &StreamStatus{State: StreamPending, LastEvent: -1}
	}
	if st.Refused {
		add("refused", "the engine's hashes do not name prefixes: nothing of it is credited")
	}
	if st.BlockSizeMismatches > 0 {
		add("other_block_size", "the engine sends blocks of %d tokens and is registered with %d: %d stores were left out", st.SeenBlockSize, rank.BlockSize, st.BlockSizeMismatches)
	}
	switch {
	case st.State == StreamPaused || st.State == StreamFailed:
		add("stream_"+string(st.State), "the stream is %s: what the engine does now is not seen; last error: %q", st.State, st.LastError)
	case st.State == StreamBuffering || st.State == StreamCatchingUp:
		add("stream_"+string(st.State), "the stream is %s: older events are still being fetched", st.State)
	case st.LastEvent < 0:
		add("no_events", "no event of this rank has arrived yet (stream %s)", st.State)
	}
	if st.Degraded != "" {
		add("degraded", "events may be missing, the block's among them: %s", st.Degraded)
	}
	if st.Orphans > 0 || st.OrphansLost > 0 {
		add("orphaned", "%d blocks wait for a parent that was never announced (%d gave up waiting); the block may be among them", st.Orphans, st.OrphansLost)
	}
	others := "no other rank holds it now"
	if e.states[block].Known {
		others = "it is known of other ranks"
	}
	add("never_announced", "not held now: this rank has not announced the block, or it was cleared, or removed longer ago than the log of evictions reaches back; %s", others)
	return out
}

// otherNamespace looks for the first block under the namespaces that the group's ranks
// are registered with, and under none.
func (r *Router) otherNamespace(s *searcher, e *explanation, rank catalog.Rank, p prompt) string {
	tried := map[uint64]bool{p.seed: true}
	try := func(lora, salt string) bool {
		seed := blockhash.NamespaceSeed(lora, salt)
		if tried[seed] {
			return false
		}
		tried[seed] = true
		first := blockhash.AppendTokens(nil, p.tokens[:e.group.BlockSize], int(e.group.BlockSize), seed)
		state := r.explainRank(s, r.query(e.group, first), rank)
		return state[0].Tiers != 0
	}
	if try("", "") {
		return "without LoRA and salt"
	}
	for _, w := range r.cluster.View().Workers() {
		if w.Group.ID != e.group.ID {
			continue
		}
		for _, x := range w.Ranks {
			if try(x.Lora, x.Salt) {
				return fmt.Sprintf("under LoRA %q and salt %q", x.Lora, x.Salt)
			}
		}
	}
	return ""
}

func unknownRank(g *catalog.Group, w catalog.Worker, known bool, e *explanation) cause {
	switch {
	case !known:
		return cause{"unknown_worker", fmt.Sprintf("instance %s is not registered", e.instance)}
	case w.Group.ID != g.ID:
		return cause{"other_group", fmt.Sprintf("instance %s is registered for model=%s routing_group=%s", e.instance, w.Group.Key.Model, w.Group.Key.RoutingGroup)}
	}
	return cause{"unknown_rank", fmt.Sprintf("instance %s has no dp_rank %d", e.instance, e.rank)}
}
