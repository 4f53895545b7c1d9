// Package oplist makes the common op list: a fixed list of index operations from a
// trace, with a checksum over the list and known answers, so that different
// indexes are measured on identical work and checked for identical results.
//
// Request l of the trace is asked for by Copies (D) disjoint copies in turn; request
// index i = l*D + s goes to worker i mod W. Each trace id stands for four blocks.
// For every request the list has a query for all its blocks, a store of those that
// are not in the worker's cache, and a removal of what the cache of Capacity (CAP)
// blocks evicts. Content hashes are splitmix64 of the block number, engine hashes
// splitmix64 of that, so the list needs no tokens.
//
// The list is built once and then only read: iterating allocates nothing and
// computes nothing, so that its cost does not enter a benchmark of an index.
//
//	contents  [c c c c c c ...]  u64, the prompts of all requests, one after another
//	keys      [k k k k k k ...]  u64, engine hashes of the same blocks
//	evicted   [k k k ...]        u64, engine hashes in order of eviction
//	ops       {offset, length, request, kind|parent|worker}, 16 bytes each
//
// A query is a stretch of contents, a store the rest of the same stretch in both
// columns (its parent is the key before it), a removal a stretch of evicted. The
// largest published list (12.2 million block operations) takes about 100 MiB.
//
// The package does not run an index. Expected computes the answers from a plain
// set model that shares no idea with any index.
package oplist
