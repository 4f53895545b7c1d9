// Package node assembles a node from its parts: network, index, log, cluster node,
// router. It is the one place that knows them all; it decides nothing.
package node

import (
	"errors"
	"fmt"
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
	in := c.Ingest
	in.Layout = shard.Layout{Partitions: max(1, c.Partitions)}
	return errors.Join(append(errs, in.Validate(), c.Router.Validate(), c.ZMQ.Validate())...)
}

// shedPeriod is how often the memory bound is looked at.
const shedPeriod = 250 * time.Millisecond
