// Package memory is the twin of transport/zmq without sockets: the same interfaces
// and the same promises, inside one process and in whatever time the process lives
// in. It waits on channels and timers only, so it runs in a testing/synctest
// bubble, where a heartbeat time-out of 15 s costs nothing.
//
// A Network is a value; two networks know nothing of each other. Addresses are
// names: any text without blanks, taken as it is, so that a test can use the
// endpoints of a real fleet. A name to bind that ends in "*" or ":0" gets a number
// in its place.
//
// # What it does as libzmq does
//
//   - A publisher without subscribers forgets; topics are byte prefixes.
//   - Each message is copied per receiver. Its frames are overwritten when the
//     handler returns, so that a handler that keeps one is found out.
//   - A receiver that falls behind loses messages beyond both high-water marks
//     together, without a word, in order, and goes on with the next that fits.
//   - A lost connection comes back by itself when the address is bound, after
//     Config.Reconnect. What was on its way is lost, unless the peer closed in good
//     order. A frame above MaxMessage ends the connection.
//   - Replay requests wait until there is a peer.
//
// # What it does not do
//
// It has no wildcard hosts and no limits of the operating system, and a replay is
// complete unless a fault says otherwise: libzmq's ROUTER drops replies beyond its
// high-water mark, see ReplayFault.HighWater.
//
// # Meshes
//
// A mesh is perfect until SetMeshFault, CutMesh or PauseMesh say otherwise: they
// lose, delay, repeat and reorder messages by direction between two names. What is
// on its way to an address reaches whoever is bound there when it arrives.
//
// # Locks
//
// Network.mu guards who is connected to whom and what is on its way; loop.mu guards
// the posts and inboxes of one loop. The order is Network.mu, then loop.mu. No
// handler is called and nothing is waited for under either.
package memory
