// Package transport moves bytes: the sockets that engines publish on, and the mesh
// of the nodes. It knows no trees and no placement.
//
//	transport/engine          what the bytes of an engine's batch mean
//	transport/zmq             libzmq: a few threads, thousands of sockets
//	transport/memory          the twin: same interfaces, no sockets, virtual time
//	transport/transporttest   the contract that both pass, as a test suite
//
// One Loop is one goroutine. All that belongs to a stream (socket, replay, timers,
// decoder, translator) lives on one loop and needs no lock.
package transport
