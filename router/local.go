package router

import (
	"context"

	"github.com/kvcluster/kvcluster/indexer"
)

// NewLocalSearcher returns the searcher of a node that is its whole cluster: it asks its
// own trees, makes no calls, and its answers lack nothing. mapIndex returns the map index
// of the node's view.
func NewLocalSearcher(r indexer.Reader, mapIndex func() uint64) Searcher {
	return &localSearcher{Reader: r, mapIndex: mapIndex}
}

type localSearcher struct {
	indexer.Reader
	mapIndex func() uint64
	pin      uint64
	states   []indexer.BlockState
}

func (*localSearcher) Begin(context.Context) {}

func (s *localSearcher) Pin() uint64 { return s.pin }

func (*localSearcher) Completeness() (Completeness, error) { return Completeness{}, nil }

// Match implements indexer.Reader. The pin is taken before the trees are read: rows of a slot
// that changes hands meanwhile may be those of its next life.
func (s *localSearcher) Match(q indexer.Query, out *indexer.Scores) {
	s.pin = s.mapIndex()
	s.Reader.Match(q, out)
}

func (s *localSearcher) Explain(q indexer.Query, slot indexer.Slot, dst []indexer.BlockState) []indexer.BlockState {
	s.pin = s.mapIndex()
	return s.Reader.Explain(q, slot, dst)
}

func (s *localSearcher) Prefixes(q indexer.Query, rows []indexer.Row, dst []indexer.Prefix) []indexer.Prefix {
	s.pin = s.mapIndex()
	for _, row := range rows {
		var p indexer.Prefix
		p, s.states = indexer.ReadPrefix(s.Reader, q, row.Slot, row.Depth, s.states)
		dst = append(dst, p)
	}
	return dst
}
