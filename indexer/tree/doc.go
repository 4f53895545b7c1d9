// Package tree is the index: chains of blocks stored once, coverage per slot, lanes
// that write them, readers that never wait.
//
// An Index has lanes, each an OS thread that owns some partitions and is the only
// writer of their trees. Frames reach a lane through one ring per writer. A Lane can
// also be used inline, by one goroutine, without threads or rings. Readers look at
// the same memory at the same time: no locks, no writes, no allocation.
//
// # What it does not do
//
// It knows no network, no engine format and no placement, decides no eviction (a
// memory limit only makes Stats ask for room, rule N8), and keeps nothing on disk.
//
// # Words
//
//	ref     names a piece of a lane's memory, in units of 16 bytes
//	chain   up to 4,096 consecutive blocks, stored once whoever holds them
//	place   a point between two positions: behind the first n blocks of a chain
//	cut     a slot holds the blocks of a chain before its cut, in the device tier
//	island  a stretch beyond the cut that the slot holds as well
//	piece   a stretch of live names of a run that lie side by side in one chain
//
// # Names and parents
//
// A run has pieces for its live names only (rule N6). A name that is dead can still
// be the parent of a store as long as a later name of its run is live, for then its
// position lies on the path to that one. Beyond the last live name of a run nothing
// is kept: a translator never names a parent there, because a parent is always a
// block that it maps, and what it maps is live. The same holds for extending a run:
// its last name must be live.
//
// # Faults
//
// A frame with an unknown name, or for which there is no memory, closes its copy:
// (slot, partition) then holds nothing and ignores frames until one that begins with
// a clear of all tiers, or Purge.
//
// # Invariants
//
//   - A position is covered for (slot, tier) if and only if a live name maps to it;
//     further names on it are counted as aliases.
//   - Positions of a chain never move, and published positions are never overwritten:
//     a tail that nobody covers is cut off by copying the rest.
//   - A chain is extended only by the one slot that holds all of it, when no other
//     does. A chain in which any slot has a bit is not extended.
//   - A chain without coverage and children is taken out at once, and then its
//     parent if the same is true of it.
//   - What readers could still see is not reused before they have gone, or lost
//     their pin. Nothing is reclaimed within a frame.
//   - No Go pointer is in a lane's memory, and no Go memory grows with blocks.
//
// The tag invariants audits all of this after frames. DESIGN.md in this folder tells
// how readers and lanes go together, and what was measured.
package tree
