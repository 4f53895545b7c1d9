package router

import (
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// prompt is what a query asks about, in the form in which it came.
type prompt struct {
	tokens   []uint32
	locals   []uint64
	sequence []uint64
	kind     promptKind
	seed     uint64 // namespace, for tokens
}

type promptKind uint8

const (
	promptTokens promptKind = iota
	promptLocals
	promptSequence
)

// scores is the answer to a prompt: the searcher's board, read through names.
type scores struct {
	names  *groupNames
	board  *board
	paths  [2][]uint64 // local hashes that were searched
	blocks int         // complete blocks of the prompt
	Completeness
}

// tokens returns a depth in tokens.
func (s *scores) tokens(depth uint32) uint64 {
	return uint64(depth) * uint64(s.names.group.BlockSize)
}

// search scores a prompt in a group. The answer is valid until the next search of s; the
// request's Completeness is asked by whoever asks the last question.
//
// A slot may change hands while the query runs, and nodes do not apply the log at the same
// time. So slots are read by a view that was taken after the search, and of its lives only
// those are credited that the answer's own map already had (see Searcher.Pin).
func (r *Router) search(s *searcher, g *catalog.Group, p prompt) scores {
	out := scores{board: &s.board}
	out.paths = r.hashings(s, g, p, &out.blocks)
	for i, locals := range out.paths {
		if len(locals) > 0 {
			s.Match(r.query(g, locals), &s.scores[i])
			s.pins[i] = s.Pin()
		}
	}
	view := r.cluster.View()
	now, ok := view.GroupByID(g.ID)
	if !ok { // the group is gone, and with it every slot
		out.names = &groupNames{group: g}
		s.board.reset(0)
		return out
	}
	out.names = r.names.of(view, now)
	out.names.queries.Add(1)
	s.board.reset(len(out.names.ranks))
	for i, locals := range out.paths {
		if len(locals) > 0 {
			s.collect(out.names, i)
		}
	}
	return out
}

// query returns the index's question for a path of local hashes.
func (r *Router) query(g *catalog.Group, locals []uint64) indexer.Query {
	return indexer.Query{
		Group: indexer.GroupID(g.ID), Locals: locals,
		Partition: indexer.PartitionID(r.cluster.Layout().Partition(g.ID, locals[0], 0)),
	}
}

// hashings returns the paths of local hashes that the prompt may have in the group: one,
// or two where engines send EAGLE pages, since the chains of a slot may be of either
// kind. They are valid until the next call.
func (r *Router) hashings(s *searcher, g *catalog.Group, p prompt, blocks *int) (paths [2][]uint64) {
	size := int(g.BlockSize)
	switch p.kind {
	case promptLocals:
		*blocks = len(p.locals)
		paths[0] = p.locals
	case promptSequence:
		*blocks = len(p.sequence)
		paths[0] = r.follow(s, g, p.sequence)
	case promptTokens:
		*blocks = len(p.tokens) / size
		s.locals = blockhash.AppendTokens(s.locals[:0], p.tokens, size, p.seed)
		n := len(s.locals)
		if r.cluster.Bigram(g.ID) {
			pages := blockhash.Content{Tokens: p.tokens, BlockSize: size, Window: size + 1}
			s.locals = pages.AppendLocals(s.locals, p.seed)
			paths[1] = s.locals[n:]
		}
		paths[0] = s.locals[:n:n]
	}
	return paths
}

// follow turns sequence hashes into local ones, as far as anybody stored their path.
func (r *Router) follow(s *searcher, g *catalog.Group, sequence []uint64) []uint64 {
	if len(sequence) == 0 {
		return nil
	}
	q := r.query(g, sequence[:1]) // the first sequence hash is the first local hash
	s.locals = s.AppendPath(s.locals[:0], indexer.SequenceQuery{
		Group: q.Group, Partition: q.Partition, Sequence: sequence,
	})
	return s.locals
}

// collect puts the rows of one path's match on the board.
func (s *searcher) collect(names *groupNames, path int) {
	pin := s.pins[path]
	put := func(slot indexer.Slot, d depths) {
		if int(slot) >= len(names.places) {
			return
		}
		p := names.places[slot]
		if p < 0 || names.ranks[p].life > pin {
			return
		}
		if m := &names.ranks[p].usage.matched; !m.Load() {
			m.Store(true)
		}
		s.board.raise(p, d)
	}
	for _, row := range s.scores[path].Rows {
		put(row.Slot, depths{row.Depth, row.Depth, row.Depth, row.Depth})
	}
	for _, row := range s.scores[path].Tiers {
		put(row.Slot, row.Depth)
	}
}

// holders returns a test whether a rank still has its slot in the view of now.
func (r *Router) holders(names *groupNames) func(*rankName) bool {
	now, ok := r.cluster.View().GroupByID(names.group.ID)
	return func(n *rankName) bool {
		if now == names.group {
			return true
		}
		if !ok { // the group is gone, and with it every slot
			return false
		}
		h, live := now.Holder(uint32(n.slot))
		return live && h.Life == n.life
	}
}
