// Package node assembles a node from its parts: network, index, log, cluster node,
// router. It is the one place that knows them all; it decides nothing.
package node

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/router"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

// Config of a whole node.
type Config struct {
	Name       string
	Version    string
	Partitions uint32
	Router     router.Config
	Ingest     ingest.Config
	ZMQ        zmq.Config
	Index      IndexConfig
	// Cluster makes the node a member of a cluster with a log on disk; nil = alone.
	Cluster *ClusterConfig
	// Workers are registered at the start.
	Workers []catalog.Registration
	// MinWorkers keeps the node from being ready until so many workers are registered.
	MinWorkers int
	// WrapIndex and WrapNetwork, when set, put something around these parts: tests
	// break them on purpose and see that it is noticed.
	WrapIndex   func(indexer.Index) indexer.Index
	WrapNetwork func(transport.Network) transport.Network
}

// IndexConfig says how the index uses the machine.
// The ports of membership, log and links where nothing else is said.
const (
	DefaultGossipPort = "7946"
	DefaultRaftPort   = "7947"
	DefaultLinkPort   = "7948"
)

// ClusterConfig is what a member of a cluster needs. Addresses are host:port; "" means
// Host with the port of last time, or the default port when the cluster is founded
// here, or any free port.
type ClusterConfig struct {
	Data               string // folder
	Label              string // name of the cluster
	Key                []byte // of gossip; nil = in the open
	Host               string
	Gossip, Raft, Link string
	Seeds              []string // membership addresses of members; empty = found, or go on
	Zone               string
	Weight             float64
	Replicas           int
	RefuseStale        bool
	Grace              time.Duration // from dead to gone
	SnapshotEvery      time.Duration // 0 = only at the end and when asked for
	// Failure detection and lease, for tests; 0 = the defaults of the packages.
	Probe, TServe, LinkTimeout, Heartbeat time.Duration
}

func (c *ClusterConfig) validate() error {
	var errs []error
	if c.Label == "" {
		errs = append(errs, errors.New("the name of the cluster is empty"))
	}
	if c.Weight <= 0 || c.Weight > 1000 {
		errs = append(errs, fmt.Errorf("weight is %g, must be above 0 and at most 1000", c.Weight))
	}
	if c.Replicas < 1 || c.Replicas > 7 {
		errs = append(errs, fmt.Errorf("replicas is %d, must be 1 to 7", c.Replicas))
	}
	if c.SnapshotEvery < 0 || c.SnapshotEvery > 0 && c.SnapshotEvery < time.Second {
		errs = append(errs, fmt.Errorf("a snapshot every %v, must be 0 (never) or at least 1s", c.SnapshotEvery))
	}
	if c.Grace < 0 {
		errs = append(errs, fmt.Errorf("grace period is %v", c.Grace))
	}
	for flag, addr := range map[string]string{"gossip": c.Gossip, "raft": c.Raft, "link": c.Link} {
		if addr == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %q is not host:port", flag, addr))
		}
	}
	return errors.Join(errs...)
}

type IndexConfig struct {
	Kind        string // "tree", or "reference": the plain model, for judging
	Lanes       int    // 0 = by the machine
	CPUs        string // cores for lanes as in taskset ("2-5,8"); "" = not pinned
	NUMANode    int    // cores of this NUMA node; -1 = any
	MemoryLimit uint64 // bytes of blocks; 0 = no bound
}

// Defaults returns the configuration of a node that was told nothing.
func Defaults() Config {
	return Config{Name: "node", Partitions: shard.DefaultPartitions, Index: IndexConfig{Kind: "tree", NUMANode: -1}}
}

// Validate reports everything that is wrong.
func (c Config) Validate() error {
	var errs []error
	if c.Name == "" {
		errs = append(errs, errors.New("node name is empty"))
	}
	if c.Partitions == 0 || c.Partitions > 1<<16 {
		errs = append(errs, fmt.Errorf("partitions is %d, must be 1 to 65536", c.Partitions))
	}
	if c.Index.Lanes < 0 || c.Index.Lanes > 256 {
		errs = append(errs, fmt.Errorf("lanes is %d, must be 1 to 256, or 0 to choose by the machine", c.Index.Lanes))
	}
	if c.MinWorkers < 0 {
		errs = append(errs, fmt.Errorf("minimum of workers is %d", c.MinWorkers))
	}
	if c.Cluster != nil {
		errs = append(errs, c.Cluster.validate(), transport.CheckNodeName(c.Name))
	}
	in := c.Ingest
	in.Layout = shard.Layout{Partitions: max(1, c.Partitions)}
	return errors.Join(append(errs, in.Validate(), c.Router.Validate(), c.ZMQ.Validate())...)
}

// shedPeriod is how often the memory bound is looked at.
const shedPeriod = 250 * time.Millisecond
