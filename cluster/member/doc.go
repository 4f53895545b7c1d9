// Package member puts the parts of a node of several together: log, leader's duties,
// links, owner, fan-out, search, and the node with its ingest. It is given sockets,
// stores and gossip, real ones by cmd/internal/node and twins by simulations, so that
// both run the same code.
//
//	gossip, disk (given)
//	link.Hub ---- incoming ---> owner ----> index
//	         <--- outgoing ---- fanout <--- ingest (cluster.Node)
//	         ---- calls ------> control (log), owner (dumps), fanout (refill), search (reads), node (streams)
//
// # Order
//
//	start   load the snapshot of this node's copies, if there is one, into the index; listen, open the log, lead or follow (control), be taken in by the leader,
//	        then search and ingest: nothing is read from an engine and nothing answered
//	        before the log calls this process a member; then keep of what was loaded what the
//	        log still knows, closed
//	end     in reverse: ingest, then a last snapshot, fan-out, owner, search, control, log, links
//
// # Restarts (rule T7)
//
// A process that comes back gets a new tenure for every source it reads, so each of its
// slots is taken over like that of a dead node: all members say which copies they have and
// with which labels, those from snapshots among them, and the highest label is continued.
// Copies with that label are carried on, others are filled from them; what other nodes
// read is filled by the job that makes this node a ready owner again. When all nodes are
// started, the first waits a little for the others (absentWait, lostWait), since one of
// them may be further, or alone have a part.
//
// Until keep, calls for copies wait (whenKept): nobody may be told that there are none. A
// takeover tells the owners at once from where it goes on (retell), so that another
// restart finds a cursor everywhere.
//
// A member whose removal the log has decided ends with control.ErrRemoved.
package member
