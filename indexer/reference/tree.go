package reference

import "github.com/kvcluster/kvcluster/indexer"

// tree holds the positions of one (group, partition).
type tree struct {
	key   treeKey
	roots map[uint64]*node // by anchor
}

// node is one position of a tree: the block that its path of local hashes ends in.
// A root is a node without a block.
type node struct {
	tree     *tree
	parent   *node // nil for a root
	local    uint64
	anchor   uint64
	path     pathKey
	children map[uint64]*node
	runs     int                                       // positions of runs that lie here
	cover    [indexer.NumTiers]map[indexer.Slot]uint32 // live names of the slot, never 0
}

func (x *Index) tree(k treeKey) *tree {
	t := x.mu.trees[k]
	if t == nil {
		t = &tree{key: k, roots: map[uint64]*node{}}
		x.mu.trees[k] = t
	}
	return t
}

func (t *tree) root(anchor uint64) *node {
	r := t.roots[anchor]
	if r == nil {
		r = &node{tree: t, anchor: anchor, path: rootPath(anchor)}
		t.roots[anchor] = r
	}
	return r
}

// child returns the position below n with the given block, making it if needed.
func (x *Index) child(n *node, local uint64) *node {
	c := n.children[local]
	if c == nil {
		c = &node{tree: n.tree, parent: n, local: local, anchor: n.anchor, path: n.path.next(local)}
		if n.children == nil {
			n.children = map[uint64]*node{}
		}
		n.children[local] = c
		x.mu.nodes++
	}
	return c
}

// release removes n, and what is above it, as far as nothing is left of it.
func (x *Index) release(n *node) {
	for n.parent != nil && n.runs == 0 && len(n.children) == 0 {
		delete(n.parent.children, n.local)
		x.mu.nodes--
		n = n.parent
	}
	if n.parent == nil && len(n.children) == 0 {
		delete(n.tree.roots, n.anchor)
		if len(n.tree.roots) == 0 {
			delete(x.mu.trees, n.tree.key)
		}
	}
}

// locals returns the path from the root to n, n included.
func (n *node) locals() []uint64 {
	depth := 0
	for m := n; m.parent != nil; m = m.parent {
		depth++
	}
	path := make([]uint64, depth)
	for m := n; m.parent != nil; m = m.parent {
		depth--
		path[depth] = m.local
	}
	return path
}

// add counts one more live name of s on n in tier t.
func (x *Index) add(n *node, s indexer.Slot, t indexer.Tier) {
	if !n.covered() {
		x.mu.distinct++
	}
	if n.cover[t] == nil {
		n.cover[t] = map[indexer.Slot]uint32{}
	}
	if n.cover[t][s] == 0 {
		x.mu.held[t]++
	}
	n.cover[t][s]++
}

// remove counts one name less; it reports whether that was the last one of s there.
func (x *Index) remove(n *node, s indexer.Slot, t indexer.Tier) (last bool) {
	if n.cover[t][s] > 1 {
		n.cover[t][s]--
		return false
	}
	delete(n.cover[t], s)
	x.mu.held[t]--
	if !n.covered() {
		x.mu.distinct--
	}
	return true
}

// covered reports whether any slot holds n in any tier.
func (n *node) covered() bool {
	for t := range n.cover {
		if len(n.cover[t]) > 0 {
			return true
		}
	}
	return false
}

// tiers returns the tiers in which s holds n.
func (n *node) tiers(s indexer.Slot) (m indexer.TierMask) {
	for t := range indexer.Tier(indexer.NumTiers) {
		if n.cover[t][s] > 0 {
			m |= t.Mask()
		}
	}
	return m
}
