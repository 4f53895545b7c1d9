// Package owner is the receiving side of a node: it takes what ingest nodes send over
// links, writes it to the index, and knows which copies may be read.
//
// A copy is what one slot, in one life, has in one partition at this node. It is
// written by one carrier at a time: the session of a link, or this node's own fanout.
//
// # What it does not do
//
// It does not know which partitions this node owns, who reads which source, or whether
// the node's map is current: writes are checked for life, tenure and openness only
// (rule L3), reads are guarded by cluster/search. It sends nothing to other owners and
// drops nothing by itself. It writes no file: Save and Keep are its part of a snapshot
// (cluster/snapshot), and what a node had before it was started again is closed.
//
// # The life of a copy
//
//	closed --- Open: a fresh life, so empty ------------------> open
//	closed --- Fill, first --> filling --- Fill, last --> filled --- applied --> open
//	whole ---- Carry: it has the label that a new reader has seen --------------> open
//	any ------ Close, a refused frame, a new session of the peer, the end of the life --> closed
//
// A copy is whole if it is open, or if it was when the session that carried it ended or
// when it was saved in a snapshot (Keep):
// it has all that its label says and nothing else. Whoever reads the slot next may dump
// it or go on with it, but it is not read meanwhile. That ends with the first later cursor: a
// cursor holds for all copies here that are whole, and a reader tells it although the frames
// of one of them wait for a place elsewhere.
//
// Frames are taken on open and filled copies, of the right life, from their carrier,
// and if no newer tenure of the slot is known here. All others are ignored and counted.
// A copy that has had content in its life is not opened by Open any more.
//
// A copy may be read if it is open, and its carrier is this node or a session that is
// current (link.Hub.Current) and not silent, and if its tenure is the highest known of
// the slot: who has fenced off an older one goes on without the copy until it is filled,
// or carried on, under the new tenure. Three more things make that exact:
//
//   - A copy becomes open, and a frame is acknowledged, when the index has applied it.
//   - A link may be current again before this node has applied what it received. So a
//     carrier stays silent until all that came before OnResume is applied.
//   - A query takes a Mark before it reads a tree and asks Unreadable afterwards, with
//     that mark. What became open, or came back from silence, behind the mark is named:
//     the tree may have been read in the middle.
//
// # Memory
//
//	groups[group] -> slots[slot]          life, retired, highest tenure, cursor
//	              -> columns[partition] -> chunks of 64 records, by slot
//
//	record   state (64) | tenure (64) | sequence (64)
//	state    phase (2) | written (1) | kept (1) | carrier (20) | version (40)
//
// A record is made when its copy is first opened: 24 bytes for a pair of slot and
// partition. Everything is read without locks, and a frame costs no allocation and no
// look-up by name. A carrier that is over invalidates its records at once, by a flag of
// its own; its goroutine closes them one by one before the number is used again.
//
// # Goroutines
//
// Run has one goroutine for each session, with a queue and a writer of the index of
// its own; one that carries out retirements; and one for each peer that is to be told
// of broken copies. The handler's methods copy a payload into the queue and return.
// The queue is bounded by the window of the link, since nothing in it is acknowledged.
//
//	queue -> decode -> check -> Writer.Write ... at each checkpoint (1 MiB, or the queue
//	is empty): Flush, open what is filled, Ack, end a silence
//
// indexer.Writer counts what is applied over all lanes together, so a prefix of frames is
// known to be applied only when all of them are. Hence the Flush; while it waits, the
// queue fills.
//
// # Who waits for whom
//
// Frames of one slot go through one writer at a time. A new session's goroutine begins
// when the old one's is gone. When a slot gets a newer tenure (Adopt, Open, Fill), older
// frames are refused from then on, and those on their way to the index are waited for:
// each goroutine has a number that is odd while it may have something unapplied
// (settling). A goroutine that waits for the others has applied its own first, so no
// two of them wait for each other.
//
// # Dumps
//
// A Fence is carried out by the session's goroutine: Flush, then the copies are dumped
// into memory, then it goes on; so the dump has what came before the fence and nothing
// else. It waits for copywire.MethodDump, with others up to MaxDumps and DumpBytes, for
// DumpTTL. It is forgotten with its last chunk, and with the session that asked.
//
// Save dumps a slot without a fence, while others write to it. It looks at the labels,
// waits until all that had been taken up before is applied (settling), dumps, and looks
// again: a copy whose label is the same was not written to in between, so it is at that
// label; the others are dumped again. The cursor is read before that, and what it says
// besides its batch once more afterwards.
//
// # Invariants
//
//   - An open copy is a function of the frames of its slot up to its label.
//   - acknowledged <= applied, in each session.
//   - For each slot the tenure never falls within a life; a life that is retired is
//     never taken again.
//   - A copy that was closed by a fault is reported to its ingest node until that has
//     answered, has filled it, or its session is over.
package owner
