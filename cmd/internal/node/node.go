package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/kvcluster/kvcluster/cluster"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/router"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

// Run runs a node until ctx is done. It returns nil after a clean end.
//
// Start order: index, network, node, HTTP. Stop order is the reverse: no new query,
// then no new event, then the sockets, then the trees, so that nothing uses what is
// already gone.
func Run(ctx context.Context, cfg Config, logger *slog.Logger) (err error) {
	if err := cfg.Validate(); err != nil {
		return err
	}
	closing := func(what string, close func() error) {
		if cerr := close(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("close %s: %w", what, cerr))
		}
	}
	cfg.ZMQ.Logger = logger
	sockets, err := zmq.New(cfg.ZMQ)
	if err != nil {
		return err
	}
	defer closing("network", sockets.Close)
	var net transport.Network = sockets
	if cfg.WrapNetwork != nil {
		net = cfg.WrapNetwork(net)
	}
	if cfg.Cluster != nil {
		return runMember(ctx, cfg, net, sockets, logger)
	}
	idx, err := openIndex(cfg, logger, nil)
	if err != nil {
		return err
	}
	defer closing("index", idx.Close)
	solo, err := cluster.NewSoloLog(state.Member{Name: cfg.Name, ServerID: cfg.Name, Boot: rand.Uint64() | 1, Version: cfg.Version, HTTP: cfg.Router.Address}, cfg.Partitions)
	if err != nil {
		return err
	}
	n, err := cluster.New(cluster.Config{Name: cfg.Name, Ingest: cfg.Ingest}, cluster.Deps{Log: solo, Index: idx, Network: net, Logger: logger})
	if err != nil {
		return err
	}
	for _, r := range cfg.Workers {
		if err := n.Register(ctx, r); err != nil {
			return fmt.Errorf("register worker %s rank %d: %w", r.Instance, r.Rank, err)
		}
	}
	b := &backend{node: n, cfg: cfg}
	r := router.New(cfg.Router, b, logger)

	nodeCtx, stopNode := context.WithCancel(context.WithoutCancel(ctx))
	defer stopNode()
	ended := make(chan error, 1)
	go func() { ended <- n.Run(nodeCtx) }()
	if cfg.Index.MemoryLimit > 0 {
		go shedLoop(nodeCtx, n)
	}

	routerCtx, stopRouter := context.WithCancel(ctx)
	defer stopRouter()
	served := make(chan error, 1)
	go func() { served <- r.Run(routerCtx) }()

	select {
	case err = <-served:
		stopNode()
		return errors.Join(err, <-ended)
	case err = <-ended:
		stopRouter()
		return errors.Join(err, <-served)
	}
}

// shedLoop tells the translators how much the index wants to be rid of (rule N8).
func shedLoop(ctx context.Context, n *cluster.Node) {
	t := time.NewTicker(shedPeriod)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			st := n.Index().Stats()
			n.Ingest().Shed(st.ShedShare(), nil)
		}
	}
}
