// Package model is the judge of whole systems: it is fed the events that engines
// sent and says what a query must answer. It shares no code with ingest or index,
// not even the hash of a block's tokens.
//
// One Model is one index group. A holder is whatever names one cache: a slot, or an
// instance and rank; a life that ended is removed, its successor is another Life of
// the caller's or the same holder after Remove.
//
// # What is true
//
//   - A claim is one (holder, tier, engine hash). A removal ends exactly that claim,
//     however often it was stored (or, with CountCopies, after as many removals as
//     stores).
//   - An engine hash stands for a path: the path of its parent and the block's own
//     local hash. It is fixed by the store that made the claim.
//   - A holder holds a block of a query in a tier if at least one live claim of that
//     tier has the path up to that block.
//   - held: the number of leading blocks of a query that a holder holds. An exact
//     index answers held, neither more nor less.
//   - reachable: the number of leading blocks that were each stored through a
//     reachable parent and not cut off since, where a removal cuts off everything
//     below it. Anything from reachable to held is within the contract of indexes
//     that do not fill holes; above held is wrong for all.
//   - Tier walk: each tier continues where the one before ended.
//
// # What is not credited
//
//   - Orphans: blocks stored under a hash that the holder does not have. They wait,
//     without limit, and attach when the parent appears.
//   - Contradictions: a store that gives a hash another path of engine hashes than
//     it has, in which a hash follows itself or comes twice, or that gives an orphan
//     another parent, is left out whole; all its hashes are tainted for the life of
//     the holder, as is everything stored under them. Claims made before stay, and
//     stay removable.
//
// # What it does not do
//
// It forgets no path and is made for judging, not for serving. One goroutine at a
// time may use it.
package model
