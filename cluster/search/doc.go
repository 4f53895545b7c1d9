// Package search answers questions about any partition of the cluster's index from any
// node: it chooses an owner, asks it, and says what an answer may lack.
//
// It knows no HTTP and no hashing of prompts (router), holds no content (indexer), and
// decides nothing about ownership (the log). It imports neither the router nor the
// packages that move content: what it needs of them are the few functions of Deps.
//
// # A read
//
// A question is about one (group, partition). It is answered by the trees of this node
// when that is a ready owner, else by one call to another. Both ends do the same:
//
//	mark           of what is readable here
//	view before    an owner that the log calls ready, under this process's boot id? (Q4)
//	the trees
//	unreadable     live slots whose copy was not open and current since the mark  (Q5)
//	view after     still a ready owner?
//	lease          is the log that this was judged by recent?                     (Q3)
//
// The order matters: everything that justifies an answer is checked after the trees were
// read, because a process may stand still at any moment in between.
//
// Slots that one owner cannot read are asked of another (Q7). What nobody could answer
// for is in Completeness.Missing; so are slots whose sources were taken over and that were
// not yet filled at the pin, or have been since (catalog.Holder.Whole).
//
// # Slots and lives
//
// An answer is pinned to the map index of its view before. It may be read with a view at
// or above that index: of the lives that this view has, those that began at or before the
// pin had their slot then too, because a slot has one life at a time and a life's id is
// the log index at which it began. A life that began later is not credited. So neither a
// node that is behind nor one that is ahead gives a worker the claims of another.
//
// (Rows are not masked with the live slots at the owner, as the rule has it: what is not
// live in the later view is not credited anyway, and a mask costs a look at every row.)
//
// # Lease
//
// Every TServe/4 the node asks the leader for a log index that is no older than the
// question, and waits until it has applied it. From then until TServe after it *sent* the
// question no layout or registration that was committed more than TServe ago can be
// unknown here. The clock is monotonic and local. Without a lease answers are marked
// stale, with the age of the map, or refused (Config.StaleReads). Both ends of a remote
// read need it: one for the ownership, the other for the names of the slots. DumpSlot does
// not look at it: a dump is for people.
//
// # Wire
//
// Little-endian words of 8 bytes; one call, one answer.
//
//	request    | version 8 | kind 8 | 0 16 | group 32 |
//	           | partition 32 | hashes 32 |
//	           | map index of the asker |
//	           | anchor |
//	           | sequence hash before the first, or slot |
//	           | rows 32 | 0 32 |
//	           hashes ... | slot 32, depth 32 ...
//
//	answer     | version 8 | kind 8 | status 8 | current 8 | age of the map in ms 32 |
//	           | map index |
//	           set of unreadable slots
//	  match    | common depth 32 | others 32 | tier rows 32 | 0 32 |
//	           set of the slots that have the common depth
//	           others: slot 32, depth 32 ... | tier rows: slot 32, 4 depths 32, 0 32 ...
//	  explain  | n | n bytes: tiers 0-3, known 4, evicted 5; padded to words
//	  path     | n | hashes ...
//	  prefix   | n | length 32, device 32, host 32, lower 32 ...
//	set        | members 32 | words of bits 32 |, then bits, or (words 0) members of 32
//	           bits padded to a word: whichever is shorter
//
// Two thousand holders of a common prefix are 250 bytes. An answer whose status is not ok
// ends after the map index.
package search
