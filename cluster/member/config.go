package member

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/control"
	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/search"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport"
)

// Protocol is the version of everything that nodes say to each other: gossip, log
// entries, links, calls. Nodes of different ones do not work together.
const Protocol = 2

// Config of a Member. Zero durations mean the defaults of the packages.
type Config struct {
	// Self is this node as it introduces itself. Boot is its present process. Link is
	// where it listens; the port may be 0.
	Self      state.Member
	ClusterID string
	// Found makes this node begin the cluster, with so many partitions and owners of each.
	Found      bool
	Partitions uint32
	Replicas   int

	Ingest      ingest.Config // Layout and Tenure are taken from the log
	StaleReads  search.StaleReads
	Deadline    time.Duration // of a query
	TServe      time.Duration // age of the map that reads may rest on
	LinkTimeout time.Duration // silence after which a session is not current
	Heartbeat   time.Duration // of raft
	Grace       time.Duration // from dead to gone
	Settle      time.Duration // after an arrival, until copies for balance begin
	// Dir is the folder for the snapshot of this node's copies, "" = none is kept.
	// SnapshotEvery is how often one is written, 0 = at the end and when asked for.
	Dir           string
	SnapshotEvery time.Duration
	// Bounded: the index has a memory limit, and readers are asked for room (rule N8).
	Bounded bool
	Logger  *slog.Logger // nil = discard

	// Broken are rules to switch off, for simulations that must be able to fail: "link.",
	// "owner.", "fanout." or "search." and the name of a mutant of that package.
	Broken []string
}

// breakRules switches off what Broken names of a package, by its Config's Break.
func (c *Config) breakRules(pkg string, off func(rule string) bool) error {
	for _, name := range c.Broken {
		if rule, ok := strings.CutPrefix(name, pkg+"."); ok && !off(rule) {
			return fmt.Errorf("member: no rule %q can be switched off", name)
		}
	}
	return nil
}

// Gossip is package gossip as far as a member needs it.
type Gossip interface {
	Peers() []gossip.Peer
	// Watch delivers when Peers may have changed; every call gives a channel of its own.
	Watch() <-chan struct{}
	Meta() gossip.Meta
	SetMeta(gossip.Meta) error
}

// Deps is what a member works with. All but LowSpace and Logger are required.
type Deps struct {
	Links   transport.MeshNetwork // between nodes
	Network transport.Network     // to engines
	Raft    raft.Transport
	Stores  raftlog.Stores
	Gossip  Gossip
	// OpenIndex opens the index with the fault handler of the member, which closes it at
	// the end of Run.
	OpenIndex func(onFault indexer.FaultHandler) (indexer.Index, error)
	// LowSpace reports that the disk of the log is nearly full; nil = never.
	LowSpace func() bool
}

// peers makes gossip's nodes those of control.
type peers struct {
	g       Gossip
	changed <-chan struct{}
}

func (p peers) Peers() (out []control.Peer) {
	for _, x := range p.g.Peers() {
		m := x.Meta
		out = append(out, control.Peer{
			Meta: control.Meta{
				Name: m.Name, ServerID: m.ServerID, ClusterID: m.ClusterID, Boot: m.Boot, Raft: m.Raft, Link: m.Link, HTTP: m.HTTP,
				Zone: m.Zone, Weight: m.Weight, Version: m.Version, Protocol: m.Protocol, HasData: m.HasData,
			},
			Address: x.Address, Alive: x.Alive, Since: x.Since,
		})
	}
	return out
}

func (p peers) Changed() <-chan struct{} { return p.changed }
