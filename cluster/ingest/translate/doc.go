// Package translate turns the store, removal and clear events of one slot into
// canonical frames. It holds the only hash table of the write path: engine hash to
// block, a block being a position of a run; what comes after names blocks by run and
// position and never hashes.
//
// A Translator is single-threaded. It knows no sockets, no sequence rules, no engine
// formats, and it does not know the tree: it decides which claims exist and what they
// are called (rules N1-N4, N8, L1), and an owner applies its frames as they are.
// DESIGN.md in this folder has the layouts, the rules with their exceptions, and
// what was measured.
package translate
