// Package cluster is a node: the replicated log's state, the ingest of the sources
// that the log gave to this node, and the index, under one roof.
//
//	cluster/state    what the log decides (pure)
//	cluster/ingest   from an engine's socket to frames
//
// A node of several has in addition a Spread: the way of its frames to all owners, and
// the copies that other nodes write here. Package member puts all of that together.
//
// It serves no HTTP and hashes no prompt (router does), and it decides nothing about
// ownership by itself: every change is a command that goes through the Log and comes
// back as a View. A node alone has a log of its own (SoloLog) and no Spread.
package cluster
