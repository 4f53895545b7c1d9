package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/cluster/control"
	"github.com/kvcluster/kvcluster/cluster/disk/memory"
	"github.com/kvcluster/kvcluster/cluster/gossip"
	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cluster/member"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

// What a cluster is configured with. Times are shorter than in production, and in the
// same order: detection, session, lease, grace.
const (
	heartbeat   = 300 * time.Millisecond // raft's
	linkTimeout = time.Second
	tServe      = 2 * time.Second
	grace       = 4 * time.Second
	settle      = 300 * time.Millisecond
	deadline    = 200 * time.Millisecond // of a query
)

// node is a name with a disk; its processes come and go. Everything but what says so is
// touched by the driver alone.
type node struct {
	w        *world
	name     string
	serverID string
	disk     *memory.Disk
	leaving  bool                    // it has been told to leave
	left     bool                    // it has left, and comes back only when told to
	removed  atomic.Pointer[process] // the latest one when an operator removed it: its disk is not used again
	*process                         // the latest one
}

// process is one run of a node.
type process struct {
	node    *node
	boot    uint64
	member  *member.Member
	index   *watched
	stop    context.CancelFunc
	serving atomic.Bool    // clients may ask it
	serves  atomic.Bool    // it has been a member, so others may ask it
	queries sync.WaitGroup // of clients
	ended   chan struct{}
	err     error       // after ended
	killed  atomic.Bool // by the driver
	told    bool        // to stop
	gone    bool        // it has ended and the driver knows

}

// up reports whether queries may be sent to it.
func (p *process) up() bool { return p.running() && p.serving.Load() }

// answers reports whether anybody could get an answer from it.
func (p *process) answers() bool { return p.serves.Load() && !p.killed.Load() && !p.gone }

// running reports whether it has neither ended nor been told to.
func (p *process) running() bool { return !p.killed.Load() && !p.told && !p.gone }

func (w *world) newNode(name string) *node {
	w.servers++
	n := &node{w: w, name: name, serverID: fmt.Sprintf("%s-%d", name, w.servers)}
	n.disk = memory.New(n.serverID, w.cfg.Seed+uint64(w.servers))
	for _, other := range w.nodes {
		w.net.connect(name, other.name)
	}
	return n
}

// start begins a process of the node. An earlier one has ended.
func (n *node) start(found bool) error {
	w := n.w
	w.boots++
	p := &process{node: n, boot: w.boots, ended: make(chan struct{})}
	folder, err := n.disk.Open()
	if err != nil {
		return err
	}
	if err := errors.Join(folder.SetName(n.name), folder.SetClusterID(clusterID)); err != nil {
		return err
	}
	stores, err := folder.Stores()
	if err != nil {
		return err
	}
	w.net.setDead(n.name, false)
	logger := w.logger(n.name)
	trans := w.raft.listen(n.name, n.serverID)
	talk := w.rumours.begin(gossip.Meta{
		Name: n.name, ServerID: n.serverID, ClusterID: clusterID, Boot: p.boot, Raft: n.name, Protocol: member.Protocol, HasData: folder.HasData(),
	})
	m, err := member.New(member.Config{
		Self:      state.Member{Name: n.name, ServerID: n.serverID, Boot: p.boot, Raft: n.name, Link: "link-" + n.name},
		ClusterID: clusterID, Found: found, Partitions: w.cfg.Partitions, Replicas: w.cfg.Replicas,
		Ingest: ingest.Config{
			RestartBackoff: time.Millisecond, RestartBackoffMax: 200 * time.Millisecond, RetryMin: 50 * time.Millisecond, RetryMax: time.Second,
			ProbeAfter: 500 * time.Millisecond, ProbeMax: 2 * time.Second, ReplayTimeout: time.Second, CursorEvery: 200 * time.Millisecond,
			AdoptTimeout: 3 * time.Second,
		},
		Deadline: deadline, TServe: tServe, LinkTimeout: linkTimeout, Heartbeat: heartbeat, Grace: grace, Settle: settle, Logger: logger, Broken: w.cfg.Broken,
	}, member.Deps{
		Links: w.net.mem, Network: w.net.mem, Raft: trans, Stores: stores, Gossip: talk, LowSpace: folder.LowSpace,
		OpenIndex: func(onFault indexer.FaultHandler) (indexer.Index, error) {
			x, err := w.openIndex(func(h indexer.Header, err error) {
				w.faults.Add(1)
				onFault(h, err)
			})
			if err != nil {
				return nil, err
			}
			p.index = &watched{Index: x, reader: x.NewReader()}
			return p.index, nil
		},
	})
	if err != nil {
		return err
	}
	p.member = m
	w.latest.add(p)
	n.process = p
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	go func() {
		defer close(p.ended)
		p.err = m.Run(ctx, func(ctx context.Context) error {
			p.serves.Store(true)
			p.serving.Store(true)
			<-ctx.Done()
			p.serving.Store(false)
			p.queries.Wait()
			return nil
		})
		p.err = errors.Join(p.err, trans.Close(), folder.Close())
	}()
	return nil
}

// openIndex opens what the schedule asks for.
func (w *world) openIndex(onFault indexer.FaultHandler) (indexer.Index, error) {
	if w.cfg.Tree {
		return tree.Open(tree.Config{Lanes: 1, OnFault: onFault})
	}
	return reference.New(reference.Config{OnFault: onFault, EvictionLog: -1}), nil
}

// kill ends the process without a word: from now on nobody hears of it.
func (n *node) kill() {
	n.killed.Store(true)
	n.w.net.setDead(n.name, true)
	n.w.rumours.end(n.name, false)
	n.disk.Kill()
	n.process.stop()
	n.w.changed()
}

// shutDown ends the process in good order.
func (n *node) shutDown() {
	n.told = true
	n.process.stop()
}

// reap takes notice of a process that has ended.
func (n *node) reap() {
	if n.process == nil || n.gone {
		return
	}
	select {
	case <-n.ended:
	default:
		return
	}
	n.gone = true
	switch {
	case n.killed.Load():
	case n.told && (n.err == nil || errors.Is(n.err, context.Canceled)):
	case errors.Is(n.err, control.ErrRemoved):
		n.left = n.leaving
		n.w.logf("%s has been removed from the cluster and ended", n.name)
	default:
		n.w.fail("node %s ended by itself: %v", n.name, n.err)
	}
	if !n.killed.Load() {
		n.w.rumours.end(n.name, true)
		n.w.changed()
	}
}

// watched is an index into which the driver looks.
type watched struct {
	indexer.Index
	reader indexer.Reader
}

// Close implements indexer.Index.
func (x *watched) Close() error {
	x.reader.Close()
	return x.Index.Close()
}
