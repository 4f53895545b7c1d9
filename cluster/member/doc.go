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
//	start   listen, open the log, lead or follow (control), be taken in by the leader,
//	        then search and ingest: nothing is read from an engine and nothing answered
//	        before the log calls this process a member
//	end     in reverse: ingest, fan-out, owner, search, control, log, links
//
// A member whose removal the log has decided ends with control.ErrRemoved.
package member
