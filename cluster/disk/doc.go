// Package disk is the data folder of a node: who it is, its raft log and snapshots,
// and a watch over the space they need.
//
//	dir/lock           held with flock while a process uses the folder; has its pid
//	dir/identity.json  server id, name, cluster id; written as a whole or not at all
//	dir/raft.db        raft's log, term and vote (raft-boltdb)
//	dir/snapshots/     raft's snapshots, two are kept
//	dir/ballast        bytes that nobody needs, to be given up when the disk is full
//	dir/peers.json     gossip addresses seen last; a hint, may be lost
//	dir/copies.snap    what this node held (cluster/snapshot, which alone reads and writes it)
//
// It stores no block and no index itself. It knows
// nothing of the cluster's state, and it never repairs: a folder that is damaged is
// refused with the file's name and what to do, because a server that forgets a vote or
// an entry that it confirmed breaks the log for everybody. The way back is always the
// same: move the folder away and join again.
//
// # Invariants
//
//   - One process at a time. The lock goes with the process, whatever ends it.
//   - A server id belongs to a folder and never changes. A name and a cluster id are
//     set once.
//   - Everything is read once and checked when the stores are opened, in a way that a
//     truncated file is an error and not a bus error (bbolt maps its file).
//   - Every entry has a checksum in its extensions, because bbolt checks none of its data
//     pages: an entry that has changed is an error and never another entry.
//   - Term and vote have a checksum too, and no entry is of a later term than the one that
//     is stored.
//   - raft.db that was there once must be there again: bbolt would make a new one out of
//     a missing or an empty file without a word, so identity.json remembers.
//   - Snapshot and log join: the newest snapshot can be read, and the log begins no
//     later than right behind it.
//
// # A full disk
//
// raft gives an append that fails back as an error, but panics when it cannot write its
// term. So appends are refused while the space is below the reserve, and a write of the
// term or the vote that finds no space gives up the ballast and tries again. Above that,
// LowSpace tells the node to hand leadership over long before. The ballast comes back
// when there is space again.
//
//	free space
//	   |  normal
//	   +-- LowSpace.Above (default 320 MiB): LowSpace turns false again
//	   +-- LowSpace.Below (default 256 MiB): LowSpace turns true
//	   +-- Reserve (default 32 MiB): appends are refused
//	   |  ballast (default 16 MiB) is given up for a term or a vote
package disk
