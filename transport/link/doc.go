// Package link makes sessions and calls out of a transport.Mesh, which loses,
// delays, repeats and reorders messages.
//
// A Hub has the links of one node to all peers. In each direction between two nodes
// there is at most one session at a time: numbered frames, delivered exactly once
// and in order, acknowledged when they have been applied, resent when they were
// lost. Beside the sessions there are calls: a request, an answer, a deadline.
//
// It does not know what frames mean, keeps nothing on disk, and does not find peers:
// SetPeers names them. It does not authenticate them either.
//
// # Sessions
//
//	sender a                                   receiver b
//	Open(boot of a, attempt, cluster) ------>  grants number N of this boot of b
//	       <------------- Accept(session, attempt, stamp, window)
//	OnPeer(s, true)
//	Data(session, echo, last, first) ------->  session is current: OnSession(s)
//	Data(..., first, frames) --------------->  OnFrame(s, first, ...), ...
//	                                           Hub.Ack(s, n)
//	OnAck(s, n) <------- Ack(session, stamp, applied, missing from-to)
//	Data(the missing frames) --------------->
//	Data(no frames, first = next) ---------->  heartbeat: finds a lost tail
//	       <------------------------ Unknown(session), for one that is over
//	OnPeer(s, false)
//
// Session = (boot of a, boot of b, N). Invariants:
//
//   - N rises within a boot of b, and b takes up a session only with a message that
//     carries it, if it was granted later than the current one. Such a message proves
//     that a lived after the grant. So what the network held back cannot bring an
//     older session back, and a session once unknown stays so.
//   - Frame numbers start at 1 in each session. b delivers n only after n-1.
//   - applied <= delivered at b; acked at a <= applied at b.
//   - a keeps at most Retention bytes, and none for longer than RetentionAge; b keeps
//     at most Window bytes ahead of a missing frame, and has handed out at most
//     Window bytes that are not acknowledged (or one frame, if that is larger).
//
// A session ends for a when b does not know it (b has restarted, or let a newer one
// in), when too much is retained, or when the peer is removed. It is then opened
// anew, with new numbers; what it had not acknowledged is the user's to send again.
//
// # Who counts on whom
//
// "b has applied it" may be waited for only as long as b is trusted to speak, and b
// may answer reads only as long as a still waits for it. Received heartbeats cannot
// decide that: a node that stood still for ten seconds finds ten seconds of them in
// its socket, and believes that all is well. Hence stamps:
//
//	b's clock   t0 --Ack(stamp t0)--> a: heardAt --Data(echo t0)--> b
//	            b is current until t0 + Timeout        (Hub.Current; then OnSilence)
//	            a counts on b until heardAt + Timeout + Margin       (then OnLapse)
//
// t0 was before heardAt, so b has stopped being current when a stops counting on
// it, whatever was on its way and whoever stood still. Only the rates of the two
// clocks must agree, to Margin in Timeout. Stamps mean nothing to a.
//
// The way back: before a echoes a stamp again, OnLapse(false) has returned. b
// resumes when it has delivered all frames that a had accepted when it sent that
// echo. So it has everything that was acknowledged without it, provided that the
// user goes on sending to a session that has lapsed.
//
// # Credits
//
// a has at most Window bytes of payload on the way that are not acknowledged. What
// else is accepted waits in the retention. Send never waits: when the retention is
// exceeded the session is over (ErrFull), so one slow peer costs its own session
// and nothing else.
//
// # When messages go
//
// A message wakes four threads, whatever is in it. So frames that are sent within
// FlushDelay of the last transmission wait for its end and go together, to all peers at
// once; one after a pause goes at once. An acknowledgement rides on the next Data to its
// peer, and goes alone when there is none for AckDelay. Where nothing is under way, all
// links of a hub say so at the same time, once in Idle: a Both, in which the stamp for one
// direction rides on the echo of the other. What is sent and not acknowledged is followed
// by a heartbeat after Heartbeat, which finds a lost tail.
//
// # Messages
//
// One message of the mesh each. Fixed numbers are little-endian, n is a number in groups of
// 7 bits, low ones first (encoding/binary's Uvarint).
//
//	header    | 'K' | 'L' | version | kind | cluster: u32 |           8 bytes
//	session   | boot of sender: u64 | boot of receiver | number: n | 17 or a few more
//
//	1 Open    header | boot | attempt | name of the cluster ...
//	2 Accept  header | session | attempt: u64 | stamp: u64 | window: u64
//	3 Data    header | session | frames
//	4 Ack     header | session | state
//	5 Unknown header | session
//	6 Refuse  header | reason ...          (the same in all versions)
//	7 Request header | boot | id | time left in ns | n: u8 | method | body ...
//	8 Answer  header | boot | id | 0 | body ...
//	                             | 1 | n: u8 | code | text ...
//	9 Cancel  header | boot | id
//	10 Both   header | session of the frames | number of the other session: n | state | frames
//
//	frames    | echo: n | first: n | last - first + 1: n | { length: n | payload ... } ...
//	state     | stamp: n | applied: n | from: n | to - from: n |
//
// cluster is the low half of xxh3 of the cluster's name. Stamps are milliseconds of the
// receiver's clock, rounded down. Frames are packed, up to 64 KiB and 1,024 of them in one
// message: a frame costs 2 bytes and its share of about 34, next to the 2 to 9 of ZMTP.
//
// A message of another cluster or version is answered with Refuse, counted, and
// logged once on both sides.
//
// # Calls
//
// A call is carried out at most once, and not resent. Its error goes over as a code
// (Config.Errors) and unwraps to the same sentinel at the caller. Answers that come
// after the end of the call are dropped. Each call that is served has a goroutine,
// at most CallsPerPeer for one peer; what exceeds that is answered ErrBusy.
//
// Over sockets one call at a time costs both ends together about 65 us of CPU, nearly
// all of it for waking threads: the caller's loop, libzmq's thread, the server's loop, the
// handler, and back. Calls at the same time share these: 32 of them cost about 20 us each
// (BenchmarkCall). Handlers run beside the loop although running them on it would save a
// tenth of that: a slow one would hold up every frame.
//
// # Goroutines
//
// One for each hub (Run: ticks, packing, acknowledgements) and the mesh's, on which
// messages are handled and the Handler is called; both take the turn. The machines
// of outgoing.go and incoming.go have no goroutines, locks or clock.
package link
