// Package reference is an indexer.Index made of plain maps: the answer that every
// other index is compared with.
//
// It is written to be obviously right and shares no storage, traversal or
// algorithm with the real tree. One lock guards everything: a frame is applied
// inside one critical section, a query is answered inside another, so every answer
// is that of one moment. It is complete: a node can run on it.
//
// # What it does not do
//
// No lanes, no back-pressure, no memory off the garbage collector's heap, and no
// speed: a query looks into one map for each block and slot.
//
// # Storage
//
//	tree (group, partition)
//	  roots: anchor -> node without a block
//	node = one position of the tree, named by the path of local hashes
//	  children: local hash -> node
//	  cover[tier]: slot -> number of live names of the slot on this position
//	  runs: how many runs, of any slot, have this position
//	copy (group, partition, slot)
//	  runs: number -> run
//	run
//	  nodes[pos], engines[pos], tiers[pos]   one entry for each position
//
// # Invariants
//
//   - cover[t][s] counts the names (run, pos) of s with tier t in tiers[pos] and
//     nodes[pos] = this node; an entry of 0 is removed. A position is covered if
//     and only if there is an entry (rule N6).
//   - A run lives until its last name is dead. Until then all its positions are in
//     the tree, dead ones too, so that every parent and every path can be named.
//   - A node without children that no run has is removed, and then its parent.
//   - A copy is open or closed; a closed copy has no runs.
//
// # Strictness
//
// The reference refuses whatever a correct stream never contains, so that it also
// judges what feeds it: a drop in a tier that the name does not have, a claim that
// the name has already, a store over a live run, a gap in a run.
package reference
