// Package memory is the twin of a data folder without files, for simulations: a Disk
// that outlives processes, and a Folder for each process that opens it. It waits on
// channels and timers only, so it runs in a testing/synctest bubble.
//
// # What survives
//
// A write is on the disk when its call returns, and not before: with SetSyncDelay a call
// takes that long, and a Kill in the middle of it leaves the write there or not, as a coin
// decides, as a whole, like a transaction of bbolt. Writes of one Folder come one after
// another. A snapshot is there when its sink has been closed.
//
// SetLying makes a disk that says "done" too early: a Kill takes back everything since
// Sync. raft is not safe on such a disk; it is for tests that must be able to fail.
//
// # A killed process
//
// Kill ends a Folder at once: its reads and writes fail with ErrKilled. Only the term is
// taken without effect, and entries of the log can be read, because raft panics when it
// cannot, and here that would be the end of the simulation instead of one process. So cut the process off from its
// network before Kill, and stop its raft after it.
package memory
