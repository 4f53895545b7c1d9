// Package gossip tells who is alive and where: hashicorp/memberlist with names,
// identities and errors that an operator can use.
//
// What it says is a hint. Nothing may be decided by it alone: members, owners and
// readers of sources are entries of the replicated log, and a node that gossip calls dead
// keeps them until the log says otherwise. Gossip is for finding nodes, for introducing
// them to the leader, for not asking a dead node, and for the leader's clock of a grace
// period. It carries no events and no application messages.
//
// # Names
//
// memberlist knows a node as ServerID@boot, so each run of a node is a node of its own
// to it: a restart at another address is seen at once instead of after the death of the
// old run, an old run's "alive" or "dead" can never be taken for the new one's, and a
// wiped folder is a stranger. Peers folds the runs of one ServerID into one Peer, the
// latest that is alive. The operator's name is only a field: two nodes of one name are
// found here, with a clear error, and not by memberlist, which would let them take turns.
//
// # Joining
//
// Before memberlist exchanges anything with a seed, the two greet each other on the same
// port (greeting.go has the format). The greeting is what finds a wrong key, another
// label, cluster or protocol, a name or a server id that is taken, and clocks that
// disagree, and tells them apart; memberlist would end the connection. A conflict that
// somebody remembers is checked by greeting the other one itself, so that a node that
// just died holds no name. Nodes of another cluster or protocol are also refused when
// they are only heard of.
//
// Seeds, and nodes that were alive once, are tried again every Config.Rejoin while they
// are not alive: memberlist forgets the dead after 25 beats, and after a longer
// cut neither side would ever look for the other. Forget ends that for a node that was
// removed.
//
// # Invariants
//
//   - Callbacks of memberlist come under its lock: they touch only the table, never
//     memberlist, and never wait.
//   - Peers and Changed never wait for the network or for memberlist's lock.
//   - A Meta is at most 512 bytes, checked before memberlist sees it: it panics on more.
//   - memberlist's messages are warnings at most, and at most one of a kind in ten
//     seconds.
//
// Package memory has a network without sockets for tests and simulations; everything
// here runs in a testing/synctest bubble on it.
package gossip
