// Package indexer defines what the index is, apart from how it is built: the
// canonical operations that change it (frames), the questions it answers
// (queries), and the contract that every implementation keeps.
//
// The index is a pure function of the frames it is given. It knows no network,
// no engine format and no placement; it imports no other package of this
// project except its own sub-packages.
//
//	indexer/blockhash   local block hashes (XXH3 over tokens)
//	indexer/contract    the test suite that every implementation passes
//	indexer/reference   the reference model: plain maps, obviously right
//	indexer/tree        the real one: lanes, chains, coverage, lock-free readers
//
// # Names and positions
//
// A slot stores blocks in runs. (slot, partition, run, position) is the name of
// a claim; a run number is dense per (slot, partition) and small. A block lies
// on a path of local hashes that starts at the root of its group. A position of
// the tree is covered for (slot, tier) if and only if at least one live name of
// that slot maps to it in that tier; two names on one position are counted
// (protocol rules N1, N3, N6).
package indexer
