// Package sim runs a whole cluster in virtual time: several nodes, each of which is a
// cluster/member.Member as it is run in production, on twins of everything that is
// outside of it, inside one testing/synctest bubble.
//
//	links, engine sockets   transport/memory
//	raft                    a transport of its own, so that each direction can be cut; like
//	                        raftlog.Wire it reaches nobody but the server that is meant
//	disk                    cluster/disk/memory: what was synced survives a kill
//	gossip                  a stand-in: who cannot be reached is dead after a while
//	index                   indexer/reference, in some schedules indexer/tree
//
// A schedule is a list of steps that a seed decides: joins, leaves, kills, pauses, cuts,
// bad weather on the links, layout changes, restarts and losses of engines. Engines
// publish and clients ask at random nodes all the time. Steps name their subjects by
// number and take whoever has it then, so any part of a schedule is a schedule. In a Churn
// members come and go all the time, voters are cut off from each other, and little else
// happens.
//
// # What is judged
//
//   - Envelope: every answer lies, claim by claim, between what its engine held at all
//     times from the last acknowledged state on, and what it held at any (promises 1, 2).
//     An answer that says partial may be lower, one that says stale is under no promise.
//   - Parity: when all faults are over, every owner holds exactly what the model says,
//     nobody else holds anything, and every node answers so.
//   - Nothing stuck: then all changes end, all copies can be read, every source is read,
//     all nodes have the same members and the same view, and every process ends when it
//     is told to.
//   - Not vacuous: over all schedules of a run every kind of fault happened, answers were
//     judged under way, some were marked, and changes and takeovers took place.
//
// # Acknowledged
//
// Some batches carry a marker for each partition. The state after such a batch counts as
// acknowledged when, at one moment of virtual time in which nothing runs, every running
// node shows the marker for every partition that it may answer for, or is about to, or has
// been out of reach of the reader for longer than a session lives; and knows the life of
// the slot, or has missed it for longer than a map may be old. A node whose map is that
// old need not show what it gets no frames of any more. So a node that keeps on
// answering after it was cut off is found out. That a copy cannot be read does not count
// alone: what opens it may be under way, and then what comes behind that is waited for.
//
// Nothing is acknowledged in a life whose reader says that it began late because the
// replay failed: what older batches brought is unknown then, and said to be.
//
// A life that ended ends its claims: the lower bound begins again with the next
// acknowledged state. The upper bound is that of everything since the engine began, until
// then: the new life is filled by a replay, in public.
//
// MUTANTS.md lists the rules of the data path, with the test that finds each missing.
//
// # Kept out
//
// What is known to lower scores, or needs an operator, does not happen here, so that
// everything that fails is news: engines drop leaves first wherever sources may change
// their reader (see Config.Holes), and nothing waits for a parent; one member that is up
// stays when another one leaves.
// What a former owner still has of a life that was taken over since is tolerated.
//
// # Repeating a run
//
// Time is virtual, but the order of goroutines and raft's time-outs are not decided by
// the seed. A failing seed fails again often, not always; the schedule is printed, and
// made shorter where that keeps it failing.
package sim
