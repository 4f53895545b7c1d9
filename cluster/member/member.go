package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/cluster"
	"github.com/kvcluster/kvcluster/cluster/control"
	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/fanout"
	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cluster/owner"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
	"github.com/kvcluster/kvcluster/cluster/search"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/link"
)

// Member is one node of several. New makes it, Run runs it; the methods that return its
// parts may be called once serve (see Run) has been.
type Member struct {
	cfg  Config
	deps Deps
	log  *slog.Logger

	index   indexer.Index
	hub     *link.Hub
	owner   *owner.Owner
	fanout  *fanout.Fanout
	raft    *raftlog.Log
	control *control.Control
	search  *search.Search
	node    *cluster.Node

	living atomic.Pointer[map[string]bool] // nodes that gossip hears, by name

	// life ends with Run; pending are the goroutines that end with it.
	life    context.Context
	pending sync.WaitGroup
	saving  saving
	shed    shedding
	began   time.Time // this node's part in reading and owning
}

// New returns a member that does nothing until Run.
func New(cfg Config, deps Deps) (*Member, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Links == nil || deps.Network == nil || deps.Raft == nil || deps.Gossip == nil || deps.OpenIndex == nil || deps.Stores.Log == nil {
		return nil, errors.New("member: links, network, raft transport, stores, gossip and index are required")
	}
	m := &Member{cfg: cfg, deps: deps, log: cfg.Logger.With("component", "member", "node", cfg.Self.Name)}
	m.saving.kept = make(chan struct{})
	m.living.Store(&map[string]bool{})
	return m, nil
}

// handler gives what comes over links to its halves.
type handler struct {
	*owner.Owner
	*fanout.Fanout
}

// Run makes this process a member, calls serve while it is one, and ends everything when
// serve has returned, ctx is done, or a part has failed.
func (m *Member) Run(ctx context.Context, serve func(ctx context.Context) error) (err error) {
	closing := func(what string, fn func() error) {
		if cerr := fn(); cerr != nil {
			err = errors.Join(err, fmt.Errorf("close %s: %w", what, cerr))
		}
	}
	m.index, err = m.deps.OpenIndex(m.onFault)
	if err != nil {
		return err
	}
	defer closing("index", m.index.Close)
	life, end := context.WithCancel(context.Background())
	m.life = life
	defer m.pending.Wait()
	defer end()
	if err := m.makeParts(); err != nil {
		return err
	}
	if err := m.load(ctx); err != nil {
		return err
	}
	defer m.saving.loaded.Close()
	g := newGroup(ctx)
	defer func() { err = errors.Join(err, g.stop()) }()

	if m.cfg.Self.Link, err = m.hub.Listen(); err != nil {
		return fmt.Errorf("listen for other nodes: %w", err)
	}
	g.run("links", m.hub.Run)
	forwarder := control.NewForwarder(m.hub, peers{g: m.deps.Gossip})
	m.raft, err = raftlog.Open(raftlog.Config{ServerID: m.cfg.Self.ServerID, Heartbeat: m.cfg.Heartbeat, Logger: m.cfg.Logger}, m.deps.Stores, m.deps.Raft, forwarder)
	if err != nil {
		return err
	}
	g.onStop("log", m.raft.Close)
	forwarder.Serve(m.raft)
	if err := m.announce(m.cfg.ClusterID); err != nil {
		return err
	}
	m.control, err = control.New(control.Config{
		Self: m.cfg.Self, ClusterID: m.cfg.ClusterID, Protocol: Protocol, Grace: m.cfg.Grace, Settle: m.cfg.Settle, Logger: m.cfg.Logger,
	}, control.Deps{Log: m.raft, Gossip: peers{m.deps.Gossip, m.deps.Gossip.Watch()}, Calls: m.hub, LowSpace: m.deps.LowSpace})
	if err != nil {
		return err
	}
	if m.cfg.Found {
		_, err := control.Found(ctx, m.raft, peers{g: m.deps.Gossip}, control.Founding{
			First: m.cfg.Self, ClusterID: m.cfg.ClusterID, Partitions: m.cfg.Partitions, Replicas: m.cfg.Replicas,
		})
		if err != nil && !errors.Is(err, raftlog.ErrFounded) {
			return err
		}
	}
	g.run("peers", m.followPeers)
	g.run("control", m.control.Run)
	if err := m.awaitMembership(g.ctx); err != nil {
		return errors.Join(g.cause(), err)
	}
	if err := m.keep(g.ctx); err != nil {
		return errors.Join(g.cause(), err)
	}
	m.began = time.Now()
	if err := m.makeNode(); err != nil {
		return err
	}
	g.run("search", m.search.Run)
	g.onStop("searchers", func() error { m.search.Close(); return nil })
	g.run("node", m.node.Run)
	g.run("snapshots", m.saveEvery)
	if m.cfg.Bounded {
		g.run("memory bound", m.askForRoom)
	}
	g.run("serve", serve)
	<-g.ctx.Done()
	return nil
}

// makeParts makes what needs nothing but the index.
func (m *Member) makeParts() error {
	calls := map[string]error{}
	for _, codes := range []map[string]error{control.CallErrors(), owner.Errors()} {
		for code, err := range codes {
			calls[code] = err
		}
	}
	h := &handler{}
	links := link.Config{
		Name: m.cfg.Self.Name, Cluster: m.cfg.ClusterID, Boot: m.cfg.Self.Boot, Bind: m.cfg.Self.Link,
		Timeout: m.cfg.LinkTimeout, Errors: calls, Logger: m.cfg.Logger,
	}
	owning := owner.Config{
		Name: m.cfg.Self.Name, Index: m.index, Broken: m.broken, Logger: m.cfg.Logger,
		FlushLocal: func(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
			return m.fanout.FlushLocal(ctx, g, s)
		},
	}
	sending := fanout.Config{
		Name: m.cfg.Self.Name, Boot: m.cfg.Self.Boot, Index: m.index, Logger: m.cfg.Logger,
		Report: func(ctx context.Context, r state.Report) error {
			res, err := m.control.Propose(ctx, state.Command{Report: &r})
			return errors.Join(err, res.Err())
		},
		Renew: func(g indexer.GroupID, s indexer.Slot, life uint64) { m.renew(uint32(g), uint32(s), life) },
	}
	if m.cfg.TServe > 0 {
		sending.Linger = m.cfg.TServe + m.cfg.TServe/5 // the margin that the default has over the default lease
	}
	err := errors.Join(m.cfg.breakRules("link", links.Break), m.cfg.breakRules("owner", owning.Break), m.cfg.breakRules("fanout", sending.Break))
	if err != nil {
		return err
	}
	if m.hub, err = link.New(links, m.deps.Links, h); err != nil {
		return err
	}
	owning.Links = m.hub
	if m.owner, err = owner.New(owning); err != nil {
		return err
	}
	sending.Owner, sending.Links = m.owner, m.hub
	if m.fanout, err = fanout.New(sending); err != nil {
		return err
	}
	h.Owner, h.Fanout = m.owner, m.fanout
	for method, fn := range m.owner.Methods() {
		m.hub.Handle(method, m.whenKept(fn))
	}
	m.hub.Handle(copywire.MethodRefill, m.fanout.ServeRefill)
	return nil
}

// makeNode makes what needs the log's state.
func (m *Member) makeNode() (err error) {
	name := m.cfg.Self.Name
	reading := search.Config{
		Name: name, Boot: m.cfg.Self.Boot, Deadline: m.cfg.Deadline, TServe: m.cfg.TServe, StaleReads: m.cfg.StaleReads, Logger: m.cfg.Logger,
	}
	if err := m.cfg.breakRules("search", reading.Break); err != nil {
		return err
	}
	m.control.Subscribe(m.fences())
	m.search, err = search.New(reading, search.Deps{
		View: m.control.View, Index: m.index, Owner: m.owner, Call: m.hub.Call,
		Handle: func(method string, fn func(context.Context, string, []byte) ([]byte, error)) {
			m.hub.Handle(method, fn)
		},
		Alive:     m.seemsAlive,
		ReadIndex: m.control.ReadIndex, WaitApplied: m.raft.WaitApplied, Peek: m.peek,
	})
	if err != nil {
		return err
	}
	m.hub.Handle(methodShed, m.serveShed)
	m.node, err = cluster.New(cluster.Config{Name: name, Boot: m.cfg.Self.Boot, Ingest: m.cfg.Ingest}, cluster.Deps{
		Log: m.control, Index: m.index, Network: m.deps.Network, Logger: m.cfg.Logger,
		Spread: &cluster.Spread{
			Fanout: m.fanout, Owner: m.owner, Takeover: &takeover{m: m, room: make(chan struct{}, adoptAtOnce)}, Quiet: m.saveLast,
			Cursor: func(c ingest.Cursor) {
				m.fanout.AppendCursor(copywire.Cursor{
					SlotLife: copywire.SlotLife{Group: c.Group, Slot: c.Slot, Life: c.Life}, Tenure: c.Tenure, Sequence: c.Sequence, Digest: c.Digest,
				})
			},
		},
	})
	return err
}

// waitReport is how often a node that waits to be taken in says so.
const waitReport = 2 * time.Second

func (m *Member) awaitMembership(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- m.control.WaitMember(ctx) }()
	start, t := time.Now(), time.NewTicker(waitReport)
	defer t.Stop()
	for {
		select {
		case err := <-done:
			return err
		case <-t.C:
			leader, known := m.raft.Leader()
			m.log.Info("waiting to be taken in by the leader", "for", time.Since(start).Round(time.Second), "leader_known", known, "leader", string(leader))
		}
	}
}

// announce tells the others where this node is.
func (m *Member) announce(cluster string) error {
	meta := m.deps.Gossip.Meta()
	meta.ClusterID, meta.Link, meta.Raft, meta.HTTP = cluster, m.cfg.Self.Link, m.cfg.Self.Raft, m.cfg.Self.HTTP
	return m.deps.Gossip.SetMeta(meta)
}

// SetHTTP tells the others where this node answers clients.
func (m *Member) SetHTTP(address string) error {
	meta := m.deps.Gossip.Meta()
	meta.HTTP = address
	return m.deps.Gossip.SetMeta(meta)
}

// broken tells the reader of a slot that its copy here had to be closed.
func (m *Member) broken(ctx context.Context, peer string, h indexer.Header) error {
	if peer == m.cfg.Self.Name {
		m.fanout.Refill(peer, h)
		return nil
	}
	_, err := m.hub.Call(ctx, peer, copywire.MethodRefill, copywire.AppendRefill(nil, h))
	return err
}

// renewTimeout bounds one attempt; the fan-out asks again.
const renewTimeout = 10 * time.Second

func (m *Member) renew(group, slot uint32, life uint64) {
	m.pending.Go(func() {
		ctx, cancel := context.WithTimeout(m.life, renewTimeout)
		defer cancel()
		if err := m.node.Renew(ctx, group, slot, life); err != nil && m.life.Err() == nil {
			m.log.Warn("a slot cannot start over yet", "group", group, "slot", slot, "life", life, "error", err)
		}
	})
}

// maxDump bounds what one peer sends of one slot, in bytes.
const maxDump = 512 << 20

// peek visits what another owner has of a slot.
func (m *Member) peek(ctx context.Context, peer string, g indexer.GroupID, s indexer.Slot, life uint64, partitions []indexer.PartitionID, visit func(indexer.PartitionID, indexer.Stretch) error) error {
	call := func(ctx context.Context, method string, req []byte) ([]byte, error) {
		return m.hub.Call(ctx, peer, method, req)
	}
	copies, err := copywire.Peek(ctx, call, copywire.PeekRequest{SlotLife: copywire.SlotLife{Group: g, Slot: s, Life: life}, Partitions: partitions}, maxDump)
	if err != nil {
		return err
	}
	have := map[indexer.PartitionID]bool{}
	for _, c := range copies {
		have[c.Partition] = true
		for _, st := range c.Stretches {
			if err := visit(c.Partition, st); err != nil {
				return err
			}
		}
	}
	for _, p := range partitions {
		if !have[p] {
			return fmt.Errorf("%s has no complete copy of slot %d in partition %d", peer, s, p)
		}
	}
	return nil
}

// alive reports whether gossip hears of a member.
func (m *Member) alive(name string) bool {
	for _, p := range m.deps.Gossip.Peers() {
		if p.Name == name && p.Alive {
			return true
		}
	}
	return false
}

// seemsAlive is alive as of the last change that gossip told. Every read asks.
func (m *Member) seemsAlive(name string) bool { return (*m.living.Load())[name] }

// noteLiving takes note of who is alive.
func (m *Member) noteLiving() {
	living := map[string]bool{}
	for _, p := range m.deps.Gossip.Peers() {
		if p.Alive {
			living[p.Name] = true
		}
	}
	m.living.Store(&living)
}
