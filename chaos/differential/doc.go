// Package differential feeds random streams of engine events through a translator
// into an index and compares every answer with the judge in chaos/model.
//
//	engines --events--> translator --frames--> index --scores--\
//	   \-----events--------------------------> model --scores---= equal?
//
// Streams are valid: what an engine could send. A store hangs below a block that the
// engine has, a removal names blocks that it has; an engine hash stands for one path.
// (The modes Lossy and ContentOnly break one of these each, on purpose.)
//
// # Pool
//
// Prompts are made of shared levels: system prompts x documents x turns, where the
// last document is four times as long and every turn contains the ones before. The
// workers' tails race: decode blocks have few different contents.
//
// # Operations, in percent of all
//
//	40  stores: fresh, of a hole, of a hole and what is below, with duplicates;
//	    30 of 100 cut into two chained events
//	12  decode blocks
//	42  removals: tail run 35, head run 15, one block 20, random subset 30; tail
//	    first, head first or shuffled; 15 span two prompts
//	 3  clears
//	 2  a rank ends; 1 a worker ends with all its ranks; half of them come back under
//	    the same slot number, half under a fresh one
//
// # Checks
//
// After every operation (or at quiet points only) the scores and tier walks of
// several prompts; at quiet points those of all prompts, the engine hashes that the
// index dumps against the claims of the judge, what the translator knows of each
// hash, and the counters. A failing stream is shrunk to a minimal valid one and
// printed as Go-like text.
package differential
