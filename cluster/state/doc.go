// Package state is the replicated state machine: what the Raft log decides, and
// nothing else. Members, the worker catalog, owners of partitions, the ingest
// assignment with tenures, and layout changes in progress. Block events never come
// here.
//
// It is pure: Apply(index, command) changes it and returns a result; no I/O, no clock,
// no goroutines, no randomness. Equal logs give equal states on every node.
//
// Invariants
//   - Commands carry an id. A command whose id is among the last ones applied returns
//     the same result and changes nothing (an unknown outcome is normal in Raft, so
//     every command may come twice).
//   - A life, a tenure and a job are named by the log index of the entry that began them.
//   - An owner of a partition is ready only under the boot id for which the log says so
//     (rule Q4): a restarted process has an empty tree and must be filled again.
//   - The number of a slot comes back when the present process of every member has purged
//     the life that ended (rule G2): one that was started since does so once more.
//   - A job commits by itself when every ingest node has reported (rule M3); until then
//     the layout that may be read does not change (rule I4).
//   - A job waits for whoever reads sources, and for sources that nobody reads until
//     they have a reader: a dead ingest node is waited for until its sources are read
//     elsewhere, and no longer.
//   - A source whose engines connect to its reader (catalog.Binds) does not move while
//     that member exists.
//   - At least one member stays: the last one that is not leaving can neither leave nor
//     be removed. The process of a removed member never comes in again. A removal names the
//     processes that it is about, and does nothing to a member that has started again.
//   - Copy jobs that run together touch disjoint partitions (rule M1).
package state
