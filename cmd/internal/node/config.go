// Package node assembles a node from its parts: network, index, log, cluster node,
// router. It is the one place that knows them all; it decides nothing.
package node

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cluster/member"
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

// The ports of membership, log and links where nothing else is said.
const (
	DefaultGossipPort = "7946"
	DefaultRaftPort   = "7947"
	DefaultLinkPort   = "7948"
)

// DefaultReplicas is how many owners a partition has where nothing else is said.
const DefaultReplicas = 2

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
	QueryDeadline      time.Duration // for what other nodes are asked; 0 = the default of search
	Grace              time.Duration // from dead to gone
	SnapshotEvery      time.Duration // 0 = only at the end and when asked for
	// Failure detection and lease, for tests; 0 = the defaults of the packages.
	Probe, TServe, LinkTimeout, Heartbeat time.Duration
}

// maxLabel is gossip's bound. maxZone leaves room for the rest of what a node says about
// itself in one packet.
const (
	maxLabel = 64
	maxZone  = 100
)

func (c *ClusterConfig) validate() error {
	var errs []error
	if c.Label == "" || len(c.Label) > maxLabel {
		errs = append(errs, fmt.Errorf("the name of the cluster has %d bytes, must be 1 to %d", len(c.Label), maxLabel))
	}
	if len(c.Zone) > maxZone {
		errs = append(errs, fmt.Errorf("the zone has %d bytes, at most %d", len(c.Zone), maxZone))
	}
	for _, seed := range c.Seeds {
		if host, port, err := net.SplitHostPort(seed); err != nil || host == "" {
			errs = append(errs, fmt.Errorf("%q is no address of a member: write host or host:port", seed))
		} else if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			errs = append(errs, fmt.Errorf("%q is no address of a member: the port %q is no number from 1 to 65535", seed, port))
		}
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
	if c.QueryDeadline != 0 && c.QueryDeadline < time.Millisecond {
		errs = append(errs, fmt.Errorf("query deadline is %v, must be at least 1ms", c.QueryDeadline))
	}
	if c.Grace < 0 {
		errs = append(errs, fmt.Errorf("grace period is %v", c.Grace))
	}
	for flag, addr := range map[string]string{"gossip": c.Gossip, "raft": c.Raft, "link": c.Link} {
		if addr == "" {
			continue
		}
		if _, port, err := net.SplitHostPort(addr); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %q is not host:port", flag, addr))
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			errs = append(errs, fmt.Errorf("--%s: the port %q is no number up to 65535", flag, port))
		}
	}
	return errors.Join(errs...)
}

// IndexConfig says how the index uses the machine.
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
	seen := map[string]bool{}
	for _, r := range c.Workers {
		if r.Instance == "" || r.Group.Model == "" || r.BlockSize == 0 || r.Endpoint == "" {
			errs = append(errs, fmt.Errorf("worker %q needs an id, a model name, a block size above 0 and an address", r.Instance))
		}
		key := fmt.Sprintf("%s rank %d", r.Instance, r.Rank)
		if seen[key] {
			errs = append(errs, fmt.Errorf("worker %s is given twice", key))
		}
		seen[key] = true
	}
	if _, err := parseCPUs(c.Index.CPUs); err != nil {
		errs = append(errs, err)
	}
	in := c.Ingest
	in.Layout = shard.Layout{Partitions: max(1, c.Partitions)}
	return errors.Join(append(errs, in.Validate(), c.Router.Validate(), c.ZMQ.Validate())...)
}

// shedPeriod is how often the memory bound is looked at.
const shedPeriod = member.ShedPeriod
