// Package cluster is a node: the replicated log's state, the ingest of the sources
// that the log gave to this node, and the index, under one roof.
//
//	cluster/state    what the log decides (pure)
//	cluster/ingest   from an engine's socket to frames
//
// It serves no HTTP and hashes no prompt (router does), and it decides nothing about
// ownership by itself: every change is a command that goes through the Log and comes
// back as a View. A node alone has a log of its own (SoloLog); the rest of the code
// does not know the difference.
package cluster
