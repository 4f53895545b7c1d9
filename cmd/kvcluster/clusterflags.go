package main

import (
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/node"
)

// clusterFlags make a node a member of a cluster; without a data folder it is alone.
type clusterFlags struct {
	Data          string        `help:"Folder for the cluster's log; with it the node founds a cluster that others can join, or goes on with the one that the folder belongs to. join without it: kvcluster-data/NAME below the working directory." type:"path" group:"cluster"`
	Cluster       string        `help:"Name of the cluster; nodes with another one are refused." default:"kvcluster" group:"cluster"`
	Host          string        `help:"Address at which other nodes reach this one; empty = loopback, or for join the address on the way to the seed." default:"" group:"cluster"`
	Gossip        string        `help:"Membership address host:port; empty = --host with the port of last time, else 7946 (for join a free one if that is taken)." default:"" group:"cluster"`
	Raft          string        `help:"Address of the replicated log, host:port; empty = as above, 7947." default:"" group:"cluster"`
	Link          string        `help:"Address of the links between nodes, host:port; empty = as above, 7948." default:"" group:"cluster"`
	KeyFile       string        `help:"File with the cluster's key (16, 24 or 32 bytes, raw, hex or base64): membership is encrypted and strangers are refused." type:"existingfile" group:"cluster"`
	Zone          string        `help:"Failure zone; copies of a partition lie in different ones." default:"" group:"cluster"`
	Weight        float64       `help:"Share of partitions and sources relative to other nodes." default:"1" group:"cluster"`
	Replicas      int           `help:"Owners of every partition, for a cluster that is founded." default:"2" group:"cluster"`
	QueryDeadline time.Duration `help:"How long a query waits for other nodes, all of them together; what has not come by then is missing from the answer, which says so." default:"100ms" group:"cluster"`
	StaleReads    string        `help:"What to do with a query when this node cannot prove that its map is current: answer and mark it, or refuse." enum:"mark,refuse" default:"mark" group:"cluster"`
	Grace         time.Duration `help:"After being dead for so long, a node's copies are made elsewhere." default:"60s" group:"cluster"`

	SnapshotEvery time.Duration `help:"How often this node's copies are written to --data, so that they outlive a restart of all nodes; 0 = never (still at the end of the process, and by kvcluster snapshot)." default:"5m" group:"cluster"`
}

// apply fills the node's configuration; seeds are members to join.
func (f *clusterFlags) apply(cfg *node.Config, seeds []string) error {
	if f.Data == "" {
		if len(seeds) > 0 {
			return errors.New("--data is required to join a cluster")
		}
		return nil
	}
	key, err := readKey(f.KeyFile)
	if err != nil {
		return err
	}
	c := &node.ClusterConfig{
		Data: f.Data, Label: f.Cluster, Host: f.Host, Gossip: f.Gossip, Raft: f.Raft, Link: f.Link, Key: key,
		Zone: f.Zone, Weight: f.Weight, Replicas: f.Replicas, RefuseStale: f.StaleReads == "refuse", QueryDeadline: f.QueryDeadline, Grace: f.Grace,
		Seeds: seeds, SnapshotEvery: f.SnapshotEvery,
	}
	cfg.Cluster = c
	return nil
}

// readKey reads a key as raw bytes, hexadecimal digits or base64.
func readKey(path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--key-file: %w", err)
	}
	fits := func(b []byte) bool { return len(b) == 16 || len(b) == 24 || len(b) == 32 }
	text := strings.TrimSpace(string(raw))
	if b, err := hex.DecodeString(text); err == nil && fits(b) {
		return b, nil
	}
	if b, err := base64.StdEncoding.DecodeString(text); err == nil && fits(b) {
		return b, nil
	}
	if fits(raw) {
		return raw, nil
	}
	return nil, fmt.Errorf("--key-file: %s has %d bytes; a key has 16, 24 or 32, raw, as hex or base64 (make one: openssl rand -hex 32)", path, len(raw))
}

// joinCmd is serve with a seed.
type joinCmd struct {
	Seed string `arg:"" help:"Membership address of any member, host:port (port 7946 if none is given)."`
	serveCmd
}

// Help shows the common starts.
func (joinCmd) Help() string {
	return `Runs a node as a member of an existing cluster: it takes its share of partitions and
worker streams, and answers for the whole index. All flags are those of serve.

Examples:
  kvcluster join 10.0.0.1
  kvcluster join 10.0.0.1:7946 --listen 0.0.0.0:8090 --data /var/lib/kvcluster --zone b
  kvcluster join 127.0.0.1 --name n2 --listen 127.0.0.1:8091`
}

// Run serves as a member until interrupted.
func (c *joinCmd) Run(a *app) error {
	seed := c.Seed
	if _, _, err := net.SplitHostPort(seed); err != nil {
		seed = net.JoinHostPort(strings.Trim(seed, "[]"), node.DefaultGossipPort)
	}
	return c.serveCmd.serve(a, []string{seed})
}
