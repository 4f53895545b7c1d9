package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport"
)

// purgeTimeout bounds one purge of a retired slot; it is tried again afterwards.
const purgeTimeout = 30 * time.Second

// Config of a Node.
type Config struct {
	Name   string        // member name
	Boot   uint64        // this process, as the log knows it; 0 = it does not matter
	Ingest ingest.Config // Layout is taken from the log
}

// Deps is what a node works with.
type Deps struct {
	Log     Log
	Index   indexer.Index
	Network transport.Network
	Spread  *Spread      // nil = this node is its whole cluster
	Logger  *slog.Logger // nil = discard
}

// Spread is what a node of several has in addition: the way of frames to all owners,
// and what comes from the ingest of other nodes. Both end after ingest has.
type Spread struct {
	Fanout   Fanout
	Owner    Owner
	Takeover ingest.Takeover     // nil = slots that others wrote start over
	Cursor   func(ingest.Cursor) // tells owners how far a slot has come
	// Quiet, if set, is called at the end, when ingest has written its last frame and the
	// fan-out and the owner still work.
	Quiet func()
}

// Fanout sends the frames of this node's ingest to every receiver (package fanout).
type Fanout interface {
	NewWriter() indexer.Writer
	// SetView is called with every view before ingest acts on it.
	SetView(*state.View)
	Run(ctx context.Context) error
}

// Owner holds copies that other nodes' ingest writes (package owner).
type Owner interface {
	// Retire ends a life: no frame of it is taken any more and what the index has of
	// its slot is dropped.
	Retire(r catalog.Retired, done func(error))
	Run(ctx context.Context) error
}

// Node runs one member. Register, Unregister and the read methods may be called from
// any goroutine, also before Run.
type Node struct {
	cfg    Config
	deps   Deps
	log    *slog.Logger
	ingest *ingest.Manager
	view   atomic.Pointer[state.View]
	// following is held while a view is acted on: views may come while New is not done.
	following sync.Mutex
	changed   watch
	purge     chan purgeRequest
	// purged are slots that the index has purged and of which the log does not know yet.
	// Touched only by Run: a second purge could hit the number's next life.
	purged  map[catalog.Retired]bool
	retired retirees
	// pending are the goroutines that carry ingest's commands to the log; life ends
	// when Run does.
	pending sync.WaitGroup
	life    context.Context
	end     context.CancelFunc
}

type purgeRequest struct {
	slot catalog.Retired
	done func(error)
}

// New returns a node that does nothing until Run.
func New(cfg Config, deps Deps) (*Node, error) {
	if deps.Log == nil || deps.Index == nil || deps.Network == nil {
		return nil, errors.New("node: log, index and network are required")
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	n := &Node{
		cfg: cfg, deps: deps, log: deps.Logger.With("component", "node", "node", cfg.Name),
		purge: make(chan purgeRequest), purged: map[catalog.Retired]bool{},
	}
	n.life, n.end = context.WithCancel(context.Background())
	deps.Log.Subscribe(n.onView)
	n.cfg.Ingest.Layout = shard.Layout{Partitions: n.View().Cluster.Partitions}
	n.cfg.Ingest.Tenure = func(s catalog.Source) uint64 { return n.View().Assignments[s.ID].Tenure }
	newWriter := deps.Index.NewWriter
	if deps.Spread != nil {
		newWriter = deps.Spread.Fanout.NewWriter
	}
	in := ingest.Deps{Network: deps.Network, Log: commands{n}, NewWriter: newWriter, Bigram: n.tellBigram, Logger: deps.Logger}
	if deps.Spread != nil {
		in.Takeover, in.Cursor = deps.Spread.Takeover, deps.Spread.Cursor
	}
	m, err := ingest.New(n.cfg.Ingest, in)
	if err != nil {
		return nil, fmt.Errorf("node: %w", err)
	}
	n.following.Lock()
	defer n.following.Unlock()
	n.ingest = m
	n.follow(n.View())
	return n, nil
}

// onView is called by the log with every new view.
func (n *Node) onView(v *state.View) {
	n.view.Store(v)
	n.following.Lock()
	if n.ingest != nil {
		n.follow(v)
	}
	n.following.Unlock()
	n.changed.notify()
}

// follow acts on a view: frames know their receivers before ingest makes any.
func (n *Node) follow(v *state.View) {
	mine := n.mine(v)
	if n.deps.Spread != nil {
		n.deps.Spread.Fanout.SetView(v)
		n.owe(v)
	}
	n.ingest.Reconcile(mine)
}

// mine leaves the sources that the log gave to this node.
func (n *Node) mine(v *state.View) *catalog.View {
	return v.Catalog.WithSources(func(s catalog.Source) bool { return v.Assignments[s.ID].Node == n.cfg.Name })
}

// View returns the replicated state as this node has applied it.
func (n *Node) View() *state.View { return n.view.Load() }

// Layout says how the key space is cut.
func (n *Node) Layout() shard.Layout { return n.cfg.Ingest.Layout }

// Index returns the node's own trees.
func (n *Node) Index() indexer.Index { return n.deps.Index }

// Ingest returns the node's sources.
func (n *Node) Ingest() *ingest.Manager { return n.ingest }

// Bigram reports whether engines of a group send EAGLE pages: this node has seen some, or
// the log knows of those that other nodes have.
func (n *Node) Bigram(group uint32) bool {
	if n.ingest.Bigram(indexer.GroupID(group)) {
		return true
	}
	g, ok := n.View().Catalog.GroupByID(group)
	return ok && g.Bigram
}

// Run works until ctx is done; it returns when every goroutine of the node is gone.
// Ingest ends first, so that what it still sends finds its way.
func (n *Node) Run(ctx context.Context) error {
	defer n.pending.Wait()
	defer n.end()
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	parts, stopParts := context.WithCancel(context.WithoutCancel(ctx))
	defer stopParts()
	running := 1
	ended := make(chan error, 3)
	go func() {
		defer stopParts()
		err := n.ingest.Run(reading)
		if sp := n.deps.Spread; sp != nil && sp.Quiet != nil {
			sp.Quiet()
		}
		ended <- err
	}()
	if sp := n.deps.Spread; sp != nil {
		running = 3
		go func() { ended <- sp.Fanout.Run(parts) }()
		go func() { ended <- sp.Owner.Run(parts) }()
	}
	var errs []error
	for running > 0 {
		select {
		case err := <-ended:
			running--
			stopReading() // the first to end takes the others with it
			if err != nil && !errors.Is(err, context.Canceled) {
				errs = append(errs, fmt.Errorf("node %s: %w", n.cfg.Name, err))
			}
		case r := <-n.purge:
			r.done(n.purgeSlot(ctx, r.slot))
		}
	}
	return errors.Join(errs...)
}

// purgeSlot drops what the index may still have of a retired slot, once, and tells the
// log, again and again if need be: when the outcome of that is not known, the number may
// have been given out already.
func (n *Node) purgeSlot(ctx context.Context, r catalog.Retired) error {
	pctx, cancel := context.WithTimeout(ctx, purgeTimeout)
	defer cancel()
	if !n.purged[r] {
		if err := n.endSlot(pctx, r); err != nil {
			return fmt.Errorf("purge slot %d of group %d: %w", r.Slot, r.Group, err)
		}
		n.purged[r] = true
	}
	_, err := n.propose(pctx, state.Command{Purged: &state.Purged{Member: n.cfg.Name, Boot: n.cfg.Boot, Slot: r}})
	if err == nil {
		delete(n.purged, r)
	}
	return err
}

// endSlot has the index drop a slot. In a cluster its owner does that, which takes nothing
// of the life any more from then on: a former reader that has not heard of the end may still
// send its content here.
func (n *Node) endSlot(ctx context.Context, r catalog.Retired) error {
	if n.deps.Spread == nil {
		return n.deps.Index.Purge(ctx, indexer.GroupID(r.Group), indexer.Slot(r.Slot))
	}
	done := make(chan error, 1)
	n.deps.Spread.Owner.Retire(r, func(err error) { done <- err })
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// propose gives the command an id and turns its outcome into an error.
func (n *Node) propose(ctx context.Context, c state.Command) (state.Result, error) {
	c.ID = newCommandID()
	r, err := n.deps.Log.Propose(ctx, c)
	if err != nil {
		return r, err
	}
	return r, r.Err()
}

// Register adds one rank of a worker. It returns when the catalog has it, before the
// stream is connected. In a cluster the leader gives its source to a node, unless its
// engines connect to this one.
func (n *Node) Register(ctx context.Context, r catalog.Registration) error {
	reader := n.cfg.Name
	if n.deps.Spread != nil && !catalog.Binds(r.Endpoint) {
		reader = ""
	}
	_, err := n.propose(ctx, state.Command{Register: &state.Registration{Registration: r, Node: reader}})
	return err
}

// Unregister removes a worker or a rank. It returns when no query sees any of its
// blocks and their slots are free again, or with ctx's error when that takes longer
// (the removal then goes on).
func (n *Node) Unregister(ctx context.Context, u catalog.Unregistration) error {
	r, err := n.propose(ctx, state.Command{Unregister: &state.Unregister{Unregistration: u}})
	if err != nil {
		return err
	}
	for {
		changed := n.changed.next()
		waiting := n.View().ToPurge[n.cfg.Name]
		if !slices.ContainsFunc(waiting, func(w catalog.Retired) bool { return slices.Contains(r.Retired, w) }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("unregister %s: its blocks are no longer credited; freeing them goes on: %w", u.Instance, ctx.Err())
		case <-changed:
		}
	}
}
