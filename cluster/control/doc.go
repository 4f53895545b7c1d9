// Package control is what a node does about the cluster as a whole: the duties of the
// leader, and the part of everybody else.
//
//	gossip ---> tracker ---> Health --+
//	                                  +--> plan.Next --> commands --> log (leader only)
//	log   ----> View -----------------+
//
// The leader takes in members that gossip shows, keeps raft's voters in order, gives
// sources to readers, begins and aborts copies, lets members go. Everybody else
// forwards its commands to the leader. What may be decided is decided by the state
// machine; a leader that is wrong or late is refused.
//
// It does not copy anything (fanout does), serve reads or know what gossip is made of.
//
// Rules
//   - Gossip is a hint. A member that gossip calls dead loses its sources at once and
//     its copies after the grace period (Dead -> Gone). A process that has just started
//     holds nobody for dead whom it may simply not have met yet (Config.StartGrace).
//   - A process is a member when the log says so under its boot id. Nodes of another
//     cluster, protocol or data folder are refused, with a reason that they can ask for.
//     The process of a removed member never comes back; another one of the same data
//     folder may, empty. A removal is about the processes that were known when it was
//     asked for: a member that has started again by the time that it is decided stays.
//   - At most raftlog.MaxVoters vote, an odd number, spread over zones. A server is added
//     without a vote and gets one when it has caught up: it knows that everything is
//     committed that the leader had when it was asked. One that lags would know an older
//     set of voters, and refuse its own vote to those that came since. For the same
//     reason a voter that lags does not count as alive when the voters are changed. A voter that is gone is replaced
//     as soon as another server can take its place, never before; one that leaves loses
//     its vote before it goes, and the process of one that is removed stays until its vote
//     is taken away: the log may need it. No step leaves less than a majority of the voters alive.
//     With two members one votes, since with two voters the death of either would stop
//     the log.
//   - Copies for balance wait until no member has come in for Config.Settle.
//   - A leader that leaves, or whose disk is nearly full, gives the lead to another voter
//     first.
//   - A node with data never founds, one that was told to join never founds, and nobody
//     founds while gossip shows a node with data.
//   - A source whose engines connect to its reader (catalog.Binds) stays with the member
//     for which it was registered, dead or alive, until that is removed; meanwhile
//     nobody waits for it.
//
// Simplification: raft knows its servers by address. When all voters come back at once
// under other addresses they do not find each other; give --advertise names that stay.
package control
