package reference

import "github.com/kvcluster/kvcluster/indexer"

type reader struct{ index *Index }

// Match implements indexer.Reader.
func (r *reader) Match(q indexer.Query, out *indexer.Scores) {
	out.Rows, out.Tiers = out.Rows[:0], out.Tiers[:0]
	x := r.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	path := x.walk(q)
	if len(path) == 0 {
		return
	}
	seen := map[indexer.Slot]bool{}
	for t := range path[0].cover {
		for s := range path[0].cover[t] {
			if seen[s] {
				continue
			}
			seen[s] = true
			depth := tierWalk(path, s)
			device, last := depth[indexer.Device], depth[indexer.External]
			if device > 0 {
				out.Rows = append(out.Rows, indexer.Row{Slot: s, Depth: device})
			}
			if last > device {
				out.Tiers = append(out.Tiers, indexer.TierRow{Slot: s, Depth: depth})
			}
		}
	}
}

// tierWalk returns how far s holds the path, each tier continuing where the one
// before ended.
func tierWalk(path []*node, s indexer.Slot) (depth [indexer.NumTiers]uint32) {
	pos := 0
	for t := range depth {
		for pos < len(path) && path[pos].cover[t][s] > 0 {
			pos++
		}
		depth[t] = uint32(pos)
	}
	return depth
}

// walk returns the positions of the query that the tree has.
func (x *Index) walk(q indexer.Query) []*node {
	t := x.mu.trees[treeKey{q.Group, q.Partition}]
	if t == nil {
		return nil
	}
	at := t.roots[q.Anchor]
	if at == nil {
		return nil
	}
	var path []*node
	for _, local := range q.Locals {
		if at = at.children[local]; at == nil {
			break
		}
		path = append(path, at)
	}
	return path
}

// Explain implements indexer.Reader.
func (r *reader) Explain(q indexer.Query, s indexer.Slot, dst []indexer.BlockState) []indexer.BlockState {
	x := r.index
	x.mu.RLock()
	defer x.mu.RUnlock()
	path := x.walk(q)
	key := rootPath(q.Anchor)
	for i, local := range q.Locals {
		key = key.next(local)
		var b indexer.BlockState
		if i < len(path) {
			b.Known = true
			b.Tiers = path[i].tiers(s)
		}
		b.Evicted = b.Tiers == 0 && x.mu.evictions.has(evicted{q.Group, q.Partition, s, key})
		dst = append(dst, b)
	}
	return dst
}

// Close implements indexer.Reader.
func (r *reader) Close() {}
