// Package ingest is everything between an engine's socket and a writer of frames:
// sources with their sequence, gaps, replays, restarts, ranks, cache groups and
// namespaces. It turns what engines publish into calls of a translator for each
// slot and is the only writer of the content of its slots (invariant I1).
//
// It does not index, place or replicate; it keeps no engine hash (package translate
// does), and it never decides alone about lives: it asks the log and acts on the
// catalog view that comes back.
//
// A Manager owns a few loops, each with one goroutine and one indexer.Writer. All that
// belongs to a source lives on one loop and needs no lock. DESIGN.md in this folder
// has the rules of the state machine.
package ingest
