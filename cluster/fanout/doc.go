// Package fanout is the sending side of a cluster's data path, and the one way in which
// content moves.
//
// Each ingest loop gets a writer from it, which gives every frame to all receivers of
// its partition: the owners that the log names and the targets of layout changes, this
// node among them or not. Beside the frames it fills copies: after a lost session, a
// restart, a fault, and for every layout change; always from a copy that has all, never
// from one owner to another without the ingest node of the slot.
//
// # What it does not do
//
// It does not know what is in frames, decides nothing about layout (it follows views of
// the log), keeps nothing on disk, and does not answer reads: that a copy may be read is
// the receiver's to say (cluster/owner). It reads no sources and makes no lives: that is
// cluster/ingest; lives that are older than the tenure are left alone.
//
// # Copies
//
// A copy is (slot in one life, partition) at one node. What is open at a peer is open in
// one session of the link and in no other. For each slot and peer there are two sets of
// partitions:
//
//	           Open, last Fill                  Close, session over
//	closed ---------------------> open --------------------------------> closed
//	   \                           ^
//	    \--- fence, or dump ---> held   (frames wait for the end of the fill)
//
// An open copy gets every frame, a held one gets them in its fill, a closed one none.
// All of it happens under the lock of the slot, so the order of what is sent for a slot
// is one for all receivers, and frames, fences and ends of fills cannot miss each other.
//
//   - Open: a partition of a fresh life to which nobody has written is empty everywhere.
//     Its copies are opened wherever it is wanted, at the latest before its first frame.
//   - Pending: frames of a partition that is open nowhere, from the first one on, are
//     kept for the first receiver that comes. Too many: the life is begun anew.
//   - Close is sent before frames cease, so nobody is waited for who answers without
//     them, and nobody answers who is not waited for.
//   - Lost: a partition with content that is open nowhere. Config.Renew then asks for a
//     new life. No content is guessed.
//   - Adopt: a life that another reader wrote goes on where the copies are equal to what is
//     continued. All others are emptied and closed at once, before anything can be
//     acknowledged without them, and filled. A node that cannot be reached then is left
//     out: it must not be readable any more by what the earlier reader sent (see below).
//   - Linger: an owner that the log has replaced is open for a while longer, since
//     others may still ask it. Then, and whenever it turns up with content of a partition
//     that is not its own, it is told to free that: the beginning of a fill (which
//     clears) that is then closed.
//
// # Fill (protocol: Resync)
//
// A fill is some partitions of one slot, from one source to one target:
//
//	slot's lock   fence to the source, held at the target    frames go on everywhere else
//	              fetch the dump (MethodDump)                  and wait for the target
//	              Rebuild, send as Fill                      no more than FillWindow unacknowledged
//	              held frames, as Fill, while more come
//	slot's lock   the last held frames, Fill(last), open
//
// The target opens the copy with Fill(last), when it has everything that was written
// before, so also everything that was acknowledged without it; whatever comes later is
// acknowledged with it. The stream does not pause (*), neither source nor others notice.
// With its own copy as source, dump and hold begin under the lock in a moment in which
// the index has applied all frames of the slot; such a moment is waited for without the
// lock, and after twenty attempts with it: the only pause. This node's own copies are
// filled by a writer of a worker; frames of the loop's writer come before (waited for)
// and after (flushed), never beside.
//
// A fill that fails (session lost, source closed, too many held frames, no
// acknowledgement for 5 s) leaves a closed copy and is tried again with another fence.
//
// # Acknowledgement
//
// Writer.Applied rises by checkpoints: one is what had been written, a mark of the local
// index, and the last number sent in each session. It is done when the index has passed
// the mark and each session has acknowledged the number or has lapsed (Handler.OnLapse:
// its receiver certainly does not answer from it). A session into which something did
// not go is waited for until it lapses. Coarse on purpose (rule L4): a checkpoint waits
// for all peers, also those that got nothing of a slot, and for targets of layout
// changes from their first fill on. So a node that stands still delays acknowledgements
// by the link's Timeout and Margin once, and frames not at all.
//
// # Layout changes
//
// When all copies of all slots of this node are open at the targets of a change, and
// what had been sent to them by then is acknowledged, Config.Report is called, again and
// again until the log no longer waits for this node; anew when its assignments change.
//
// # Simplifications
//
//   - (*) Hold-back instead of a paused stream. The queue of one fill is bounded
//     (HoldBytes); the target sees what the protocol prescribes.
//   - A node that an adopting reader can neither fence nor tell anything may answer from
//     what the earlier reader sent until its map is too old for reads. For so long
//     (Linger) nothing that this node's ingest writes is acknowledged.
//   - Two targets that lack the same get two dumps.
//   - A fill has one source; partitions that are open elsewhere come with the next.
//
// # Cost of a frame
//
// One map lookup by number, one lock that nobody else wants, one atomic addition, one
// packed copy of the words (cut from a 64 KiB piece that the frames of the same receivers
// share), one Send for each peer. No allocation but that of pieces.
package fanout
