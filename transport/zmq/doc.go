// Package zmq is the real transport: SUB and DEALER sockets of libzmq on loops of
// one goroutine each, and a mock engine's PUB and ROUTER.
//
// It moves frames and connection events. It does not know what frames mean, does
// not check sequences and does not ask for replays by itself.
//
// # A loop
//
//	             epoll, edge-triggered
//	  +---------------+----------------+-----------+
//	ZMQ_FD of     ZMQ_FD of its     eventfd     time-out =
//	a socket      monitor (PAIR)    of Post     next timer
//	  |               |                |           |
//	  v               v                v           v
//	ready list ---> drain -------->  posts ---> timers      one at a time
//	                  |
//	             one cgo call: up to 64 messages, 1 MiB
//	                  v
//	  kv_batch   msgs   | zmq_msg_t x frames ........... |   own the bytes
//	             frames | data, size, more x frames .... |   what Go sees
//
// It waits in the runtime's poller, which has the epoll descriptor, and not in a system
// call: that keeps a processor of the runtime, and its monitor awake to take it back, 50
// short sleeps each time. A call over a mesh cost twice as much by that, and an idle node
// half as much again. A loop is a goroutine, so its sockets move between threads, which
// libzmq allows as long as there is a barrier in between: the scheduler is one.
//
// A turn is: posts, due timers, one look at all descriptors, then the ready
// sockets, at most 4 calls each and 5 ms in all; whoever is not done stays on the
// ready list. So one busy socket costs the others 256 messages, not its backlog.
//
// Frames alias libzmq's memory until the next receive call: nothing is copied and
// nothing allocated. A handler that keeps one reads freed memory; the twin in
// package memory overwrites frames to find that out.
//
// # The rule of the edge
//
// ZMQ_FD does not say that there are messages but that libzmq has commands to work
// off, and any call on the socket may do that and use up the edge. Hence: a socket
// is done only when a receive call has said so; whoever calls anything else on it
// (sends a request, a reply) puts it on the ready list; a new socket is on the list
// from the start; and a new monitor is read once before it is watched, because a
// pipe wakes its reader only after the reader has found it empty.
//
// # Connection events
//
// Only monitors report connections. One costs 2 descriptors and about 17 KiB and no
// thread (measured with 2,000 subscriptions: 4 descriptors and 47 KiB for each,
// 9 threads in all), so the open-file limit is what bounds a node: 4 for each
// stream, and as many again for its replay socket.
//
// libzmq keeps messages and events in different queues, and the messages of
// successive connections in one. To keep the promise that OnConnect is the border
// between two connections, a connecting socket remembers a frame of the connection
// that it read last: all messages of one connection share an object, and its
// address tells the first message of the next one. That is only looked at while an
// event is pending. An unread event is ruled out by time: a new connection cannot
// come earlier than 100 ms after the loss of the old one.
//
// Events are sent by a blocking call inside libzmq. So a monitor has no high-water
// mark, asks only for what it needs, and is closed only after libzmq was told to
// stop it; see also watchClosing.
//
// # What libzmq would not do by itself
//
//   - It gives up for good a connection on which the peer broke the protocol, be it
//     a frame above the limit. Such a socket is replaced after a second; see
//     checkRetry.
//   - It looks up names on its I/O threads, where one slow name server holds up
//     every stream. Names are looked up beside the loop, again every 5 s while there
//     is no connection; see lookup. (Publishers that connect leave it to libzmq.)
//   - It takes over an ipc file that another socket serves. Binding asks first.
//   - It gives a request that waits to whatever listens on the port. Requests wait
//     on our side until the handshake is done.
//
// # A mesh
//
// One loop with a bound ROUTER, which only receives, and a DEALER for each peer,
// which only sends. The routing id is the node's name and boot id; with
// ROUTER_HANDOVER a node is let in whatever seems to stand of its last connection.
// A message is copied once, from the parts that are sent into libzmq's buffer, on
// the sender's goroutine; the loop hands buffers over in batches. Nothing is queued
// for a peer without a connection (ZMQ_IMMEDIATE, and our own queue is dropped with
// the connection): it would be stale when it arrives. For one with a connection at
// most MeshConfig.QueueBytes wait on our side and meshHighWater messages inside
// libzmq, at either end.
//
// # Threads
//
// Config.IOThreads of libzmq for the whole network, one more that closes sockets,
// one for each running loop or mesh, and Config.PublisherLoops for all publishers together.
package zmq
