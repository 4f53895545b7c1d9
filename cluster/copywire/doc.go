// Package copywire is what nodes say to each other about copies: the payloads of
// links, the requests and answers of calls, the form of a dump, and the frames that
// make an empty copy equal to a dumped one. It is pure: no I/O, no state, no clock.
//
// A copy is what one slot (in one life) has in one partition at one node.
//
// # What it does not do
//
// It does not know which copies are open, who may write, or how often something is
// sent: that is cluster/owner (receiving) and cluster/fanout (sending). It does not
// check the operations of frames: the index does, when they are written to it.
//
// # Messages
//
// One payload of a link is one message. Little-endian, words of 8 bytes.
//
//	head       kind: u8 | flags: u8 | 0: u16 | count: u32
//	life       group: u32 | slot: u32, then life: u64
//
//	1 Frame    head | frame ...                              as indexer.Frame says
//	2 Fill     head | frame ...                              flags: 1 first, 2 last
//	3 Open     head | life | tenure | partitions: count x u32, padded with 0
//	4 Close    head | life | tenure | partitions
//	5 Fence    head | life | token  | partitions
//	6 Cursor   head | life | tenure | sequence | digest
//	7 Carry    head | life | tenure | count x { partition | tenure | sequence }
//	8 packed   kind: u8 | the frame of a Frame, see AppendPacked
//
// A frame begins at byte 8, so a payload in memory that is aligned to 8 bytes is
// looked at in place.
//
//   - Frame: all operations of one engine batch for one copy. It goes packed.
//   - Fill: a copy is made anew. The first frame of a fill begins with a clear of all
//     tiers; with the last one the copy is complete, up to the sequence in its header.
//   - Open: copies of a fresh life, which are complete because they are empty.
//   - Close: the sender sends no more frames for these copies.
//   - Fence: asks for a dump of the copies as they are after all frames before it. The
//     dump is fetched by MethodDump with the same token. Tokens do not repeat, not even
//     after a restart of the sender.
//   - Carry: copies that have these labels, as the sender has seen with MethodAdopt, are
//     its own to write from now on. They go on without a fill (rule T2).
//   - Cursor: all batches up to the sequence are in the frames before it.
package copywire
