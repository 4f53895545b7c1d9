// Package catalog is the state machine of the workers: index groups, instances and
// their ranks, lives, slots, and the sources that feed them. It is pure: commands
// go in with their log index, an immutable View comes out; no I/O, no clock, no
// goroutines. On one node the log is a counter; in a cluster it is Raft's.
//
// Invariants
//   - A life is the log index of the command that began it; it never repeats.
//   - Every life has a fresh slot (rule G1). A slot number is given again only after
//     Purged was applied for it (rule G2).
//   - A group fixes its block size at the first registration and is dropped with its
//     last worker.
//   - A source belongs to one instance; its members are ranks of that instance.
package catalog
