package control

import "time"

// Meta is what a node says of itself in gossip.
type Meta struct {
	Name, ServerID, ClusterID string
	Boot                      uint64
	Raft, Link, HTTP          string // host:port
	Zone                      string
	Weight                    float64
	Version                   string
	Protocol                  int
	HasData                   bool // its data folder belongs to a cluster
}

// Peer is a node as gossip sees it.
type Peer struct {
	Meta
	Address string // of its gossip, host:port
	Alive   bool
	Since   time.Time // when Alive became what it is, as seen here
}
