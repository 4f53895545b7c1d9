// Package memory is a network without sockets for memberlist: packets that may be lost
// and late, streams, cuts between nodes and nodes that die. It waits on channels and
// timers only, so it runs in a testing/synctest bubble; memberlist's own mock network
// does not, because its channels are unbuffered and nobody can leave it.
//
// A Network is a value. Addresses are IP:port texts, as memberlist wants them; they need
// not exist. A Transport belongs to an address until Shutdown or Kill; then the address
// can be taken again, as by the next run of a node.
//
// # What it does as a network does
//
//   - Packets may overtake each other when they are delayed, and are lost without a word
//     when nobody is there, on a cut, by Loss, or when the receiver is behind by 256.
//   - A stream to an address that nobody has is refused at once; across a cut or to a
//     paused node it waits for the time-out. A cut breaks streams.
//   - A node that is paused gets nothing and sends nothing, and does not know.
//
// Sockets differ in that a stream has buffers; here a write waits for its reader
// (net.Pipe).
package memory
