// Package snapshot keeps the copies of a node on disk, so that a cluster whose nodes are
// all started again still has its content (rule T7).
//
// A file has, for every slot, the copies that were whole at this node, each as it was
// between two frames, with the label of the last of them, and a cursor: how far the slot
// had come. So it is a dump of what the node could have given to a takeover at that moment,
// and it is used for nothing else: what is loaded is closed, no query sees it, and only a
// takeover opens it, after the engine has shown that it is still the same run (rules T2,
// T3). An old file therefore costs a longer replay, or the content; never a wrong answer.
//
// # What it does not do
//
// It repairs nothing: a file that is damaged in one bit, belongs to another node or
// another cluster, or was written by a later version is refused as a whole and moved
// aside (copies.bad), and the node is filled by the others. It knows nothing of the log:
// which lives are over is told to Loaded.Keep.
//
// # The file
//
// All numbers are little-endian; every part is padded to 8 bytes, so that the dumps in it
// can be read without being copied.
//
//	file     head, record ..., foot; nothing behind it
//
//	head     "KVCSNAP\n"
//	         version (32) | bytes of the fields (32)
//	         fields:  log index at which it was taken
//	                  time, ns since 1970
//	                  partitions (32) | bytes of the cluster id (16) | of the server id (16)
//	                  cluster id, server id, zeros up to 8
//	         checksum
//
//	record   1 (32) | copies (32)
//	         bytes of the dump
//	         group (32) | slot (32)
//	         life
//	         cursor: life (0 = none), tenure, sequence, digest
//	         dump (copywire.Encoder): partition, label, runs and stretches of every copy
//	         checksum
//
//	foot     2 (32) | 0 (32)
//	         records
//	         copies
//	         bytes of all records
//	         checksum
//
// A checksum is the XXH3-64 of everything in its part before it, seeded with the offset of
// the part in the file: parts that were moved or repeated are found, too. Without the foot
// a file is cut off.
//
// # Writing
//
// One slot at a time is dumped into memory, at most MaxSlotBytes, and written; nobody waits
// for the disk but the snapshot itself. The file has another name until it is complete and
// on disk (copies.tmp), and is renamed then: there is always one whole generation, and two
// only while the second is being written.
//
// # Cost
//
// A held block is 8 bytes of engine hash, and 8 of local hash once for the runs that share
// it; a stretch is 16 and a run 32. A copy without content is 32 bytes.
// BenchmarkSnapshot prints bytes and seconds for a million blocks.
package snapshot
