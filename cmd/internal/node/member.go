package node

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/cluster/control"
	"github.com/kvcluster/kvcluster/cluster/disk"
	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/member"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/search"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/router"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport"
)

// raftConnections to each server are kept, and raftTimeout bounds one message of raft.
const (
	raftConnections = 3
	raftTimeout     = 10 * time.Second
)

// joinTimeout bounds the first contact with a cluster.
const joinTimeout = 30 * time.Second

// leaveTimeout bounds the farewell in gossip, which saves the others the detection.
const leaveTimeout = time.Second

// runMember runs a member of a cluster: what it has on disk and on the wire is opened
// here, the rest is package member's.
func runMember(ctx context.Context, cfg Config, sockets transport.Network, links transport.MeshNetwork, logger *slog.Logger) (err error) {
	c := cfg.Cluster
	folder, err := disk.Open(c.Data, logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, folder.Close()) }()
	if err := folder.SetName(cfg.Name); err != nil {
		return err
	}
	stores, err := folder.Stores()
	if err != nil {
		return err
	}
	// Whoever joins gets partitions: what would end this process soon is found out before.
	if err := router.Probe(ctx, cfg.Router); err != nil {
		return err
	}
	idx, faults, err := openIndexEarly(cfg, logger)
	if err != nil {
		return err
	}
	taken := false // by the member, which closes it
	defer func() {
		if !taken {
			err = errors.Join(err, idx.Close())
		}
	}()
	at, err := chooseAddresses(c)
	if err != nil {
		return err
	}
	if err := at.save(c.Data); err != nil {
		return err
	}
	self := state.Member{
		Name: cfg.Name, ServerID: folder.Identity().ServerID, Raft: at.Raft, Link: "tcp://" + at.Link, HTTP: cfg.Router.Address,
		Zone: c.Zone, Weight: c.Weight, Version: cfg.Version, Boot: newBoot(),
	}
	raftNet, err := raftlog.NewWire(raftlog.WireConfig{ServerID: self.ServerID, Bind: at.Raft, Pool: raftConnections, Timeout: raftTimeout, Logger: logger})
	if err != nil {
		return fmt.Errorf("--raft: cannot listen on %s: %w", at.Raft, err)
	}
	defer func() { err = errors.Join(err, raftNet.Close()) }()

	identity := folder.Identity()
	g, err := gossip.New(gossip.Config{
		Meta: gossip.Meta{
			Name: self.Name, ServerID: self.ServerID, ClusterID: identity.ClusterID, Boot: self.Boot, Raft: self.Raft, HTTP: self.HTTP,
			Zone: self.Zone, Weight: self.Weight, Version: self.Version, Protocol: member.Protocol, HasData: folder.HasData(),
		},
		Bind: at.Gossip, Advertise: at.Gossip, Label: c.Label, Key: c.Key, Seeds: append(append([]string(nil), c.Seeds...), folder.Peers()...),
		Probe: c.Probe, Logger: logger,
	})
	if err != nil {
		return err
	}
	if err := g.Start(); err != nil {
		return err
	}
	gossiping, stopGossip := context.WithCancel(context.WithoutCancel(ctx))
	gossipEnded := make(chan error, 1)
	go func() { gossipEnded <- g.Run(gossiping) }()
	defer func() {
		_ = g.Leave(leaveTimeout) // a courtesy: without it the others find out by themselves
		stopGossip()
		if gerr := <-gossipEnded; gerr != nil && !errors.Is(gerr, context.Canceled) {
			err = errors.Join(err, gerr)
		}
	}()
	go func() { _ = folder.Run(gossiping) }() // ends with the gossip

	id, found, err := findCluster(ctx, c, folder, g, logger)
	if err != nil {
		return err
	}
	raftNet.SetCluster(id)
	go rememberPeers(gossiping, folder, g)

	staleReads := search.StaleMark
	if c.RefuseStale {
		staleReads = search.StaleRefuse
	}
	m, err := member.New(member.Config{
		Self: self, ClusterID: id, Found: found, Partitions: cfg.Partitions, Replicas: c.Replicas,
		Ingest: cfg.Ingest, StaleReads: staleReads, Deadline: c.QueryDeadline, TServe: c.TServe, LinkTimeout: c.LinkTimeout, Heartbeat: c.Heartbeat, Grace: c.Grace, Logger: logger,
		Dir: folder.Dir(), SnapshotEvery: c.SnapshotEvery, Bounded: cfg.Index.MemoryLimit > 0,
	}, member.Deps{
		Links: links, Network: sockets, Raft: raftNet, Stores: stores, Gossip: g, LowSpace: folder.LowSpace,
		OpenIndex: func(onFault indexer.FaultHandler) (indexer.Index, error) {
			taken = true
			faults.Store(&onFault)
			return idx, nil
		},
	})
	if err != nil {
		return err
	}
	err = m.Run(ctx, func(ctx context.Context) error {
		b := newClusterBackend(cfg, m, folder)
		warnOfFounding(cfg, m.Node().View(), logger)
		if err := registerWorkers(ctx, b, cfg.Workers, logger); err != nil {
			return err
		}
		routerCfg, onListen := cfg.Router, cfg.Router.OnListen
		routerCfg.OnListen = func(a net.Addr) {
			if err := m.SetHTTP(reachable(a, at.Gossip)); err != nil {
				logger.Warn("other nodes do not know where this one serves", "error", err)
			}
			if onListen != nil {
				onListen(a)
			}
		}
		return router.New(routerCfg, b, logger).Run(ctx)
	})
	if errors.Is(err, control.ErrLeft) {
		// A clean end: what watches over the process must not start it again.
		logger.Info("this node has left the cluster", "data", folder.Dir())
		return nil
	}
	return err
}

// openIndexEarly opens the index before there is who handles its faults: he is stored
// later, and before anything is written.
func openIndexEarly(cfg Config, logger *slog.Logger) (indexer.Index, *atomic.Pointer[indexer.FaultHandler], error) {
	faults := &atomic.Pointer[indexer.FaultHandler]{}
	idx, err := openIndex(cfg, logger, func(h indexer.Header, err error) { (*faults.Load())(h, err) })
	return idx, faults, err
}

// reachable is where others reach what listens at an address: one that is every address
// of the machine is none that helps them.
func reachable(listening net.Addr, gossip string) string {
	at := listening.String()
	host, port, err := net.SplitHostPort(at)
	if err != nil {
		return at
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
		return at
	}
	if other, _, err := net.SplitHostPort(gossip); err == nil && other != "" {
		return net.JoinHostPort(other, port)
	}
	return at
}

// registerWorkers tells the cluster about the workers that this node was started with.
// What the cluster knows better is no reason to end: partitions were given to this node.
func registerWorkers(ctx context.Context, b *clusterBackend, workers []catalog.Registration, logger *slog.Logger) error {
	for _, r := range workers {
		for {
			err := b.Register(ctx, r)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if !errors.Is(err, router.ErrUnavailable) {
				logger.Error("a worker of --workers is not registered; the cluster refuses it", "worker", r.Instance, "rank", r.Rank, "endpoint", r.Endpoint, "error", err)
				break
			}
			logger.Warn("workers are not registered yet; trying again", "worker", r.Instance, "rank", r.Rank, "error", err)
		}
	}
	return nil
}

// warnOfFounding says which flags are not what the cluster was founded with: they are
// fixed for its life. A flag that has its default was probably not given.
func warnOfFounding(cfg Config, v *state.View, logger *slog.Logger) {
	if cfg.Partitions != shard.DefaultPartitions && cfg.Partitions != v.Cluster.Partitions {
		logger.Warn("--partitions is not used: it is fixed when a cluster is founded", "given", cfg.Partitions, "cluster_has", v.Cluster.Partitions)
	}
	if r := cfg.Cluster.Replicas; r != DefaultReplicas && r != v.Cluster.Replicas {
		logger.Warn("--replicas is not used: it is fixed when a cluster is founded", "given", r, "cluster_has", v.Cluster.Replicas)
	}
}

// findCluster returns the cluster that this node belongs to, and whether it is to found
// it. A node that was told to join waits for that; one that comes back does not.
func findCluster(ctx context.Context, c *ClusterConfig, folder *disk.Folder, g *gossip.Gossip, logger *slog.Logger) (id string, found bool, err error) {
	id = folder.Identity().ClusterID
	jctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	switch {
	case id != "" && folder.HasData():
		if len(c.Seeds) > 0 {
			if err := g.Join(jctx, c.Seeds); err != nil {
				if !errors.Is(err, gossip.ErrNobody) && !errors.Is(err, gossip.ErrUnresolved) {
					return "", false, err
				}
				logger.Warn("the seed does not answer; going on with what this node knows, and trying again", "error", err)
			}
		}
		return id, false, nil
	case len(c.Seeds) == 0:
		if id == "" {
			id = rand.Text()
		}
		return id, true, folder.SetClusterID(id)
	}
	logger.Info("joining", "seeds", c.Seeds)
	if err := g.Join(jctx, c.Seeds); err != nil {
		return "", false, err
	}
	for _, p := range g.Peers() {
		if p.Alive && p.ClusterID != "" && p.ServerID != folder.Identity().ServerID {
			id = p.ClusterID
		}
	}
	if id == "" {
		return "", false, fmt.Errorf("nobody at %v belongs to a cluster yet: start one node with `kvcluster serve --data DIR`, then join it", c.Seeds)
	}
	return id, false, folder.SetClusterID(id)
}

// rememberPeers keeps the addresses of living nodes on disk, so that this one finds them
// after a restart without a seed.
func rememberPeers(ctx context.Context, folder *disk.Folder, g *gossip.Gossip) {
	changed := g.Watch()
	for {
		var addrs []string
		for _, p := range g.Peers() {
			if p.Alive && p.ServerID != folder.Identity().ServerID {
				addrs = append(addrs, p.Address)
			}
		}
		if len(addrs) > 0 {
			_ = folder.SavePeers(addrs) // a hint; a disk that is full is reported by its watcher
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

func newBoot() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails (it aborts the process)
	return binary.LittleEndian.Uint64(b[:]) | 1
}
