// Package raftlog is the replicated log: hashicorp/raft around package state.
//
// It does not know gossip, placement or ingest. What is above it proposes commands and
// subscribes to views; what is below it stores entries.
//
// Rules
//   - A cluster is founded once, by one node, on an empty data folder; everybody else is
//     added by the leader. A node with data never founds.
//   - At most MaxVoters vote; further members follow as non-voters. A new server is
//     added as a non-voter and promoted when it has caught up.
//   - Commands carry ids and are idempotent, so an unknown outcome may be proposed again.
//   - A leader proposes nothing and answers no ReadIndex before a barrier of its term: its
//     state machine may still be behind.
//   - A server id belongs to a data folder and never changes; addresses may. So whoever
//     connects says which cluster and which server he means, and is refused by others
//     (Wire): raft itself takes entries from anybody, and votes of anybody. A server that
//     is new under the address of one that was removed would vote in its place, and with
//     others that have missed the removal elect one that has not what was committed. Every
//     transport given to Open has to see to that.
package raftlog
