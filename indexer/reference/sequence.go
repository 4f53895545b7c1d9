package reference

import (
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// AppendPath implements indexer.SequenceReader: of the blocks that follow, the one
// whose local hash continues the sequence.
func (r *reader) AppendPath(dst []uint64, q indexer.SequenceQuery) []uint64 {
	x := r.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	t := x.mu.trees[treeKey{q.Group, q.Partition}]
	if t == nil || t.roots[q.Anchor] == nil {
		return dst
	}
	n, before, first := t.roots[q.Anchor], q.Before, q.Anchor == 0
	for _, want := range q.Sequence {
		var next *node
		for local, c := range n.children {
			if blockhash.NextSequence(before, local, first) == want {
				next = c
				break
			}
		}
		if next == nil {
			break
		}
		dst = append(dst, next.local)
		n, before, first = next, want, false
	}
	return dst
}
