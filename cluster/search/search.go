package search

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// viewPause is how long to wait for a view whose log entry is applied.
const viewPause = time.Millisecond

// Search answers questions about the whole cluster. All methods may be called from any
// goroutine.
type Search struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	lease   *lease
	pacer   *pacer
	current atomic.Pointer[plan]
	peers   sync.Map // name to *peer
	servers chan *server
	turn    atomic.Uint32 // of owners that cost the same
	count   counters

	calls struct { // goroutines of calls
		sync.Mutex
		n     int
		ended bool
		idle  chan struct{} // closed when ended and n is 0
	}
}

// New returns a search that serves other nodes from now on, and answers by itself; until
// Run has renewed the lease all answers are stale.
func New(cfg Config, deps Deps) (*Search, error) {
	cfg.applyDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := deps.validate(); err != nil {
		return nil, err
	}
	s := &Search{
		cfg: cfg, deps: deps, log: cfg.Logger.With("component", "search"),
		lease: newLease(cfg.TServe, cfg.broken.noLease), pacer: newPacer(cfg.Hedge, cfg.Deadline),
		servers: make(chan *server, maxIdleServers),
	}
	s.calls.idle = make(chan struct{})
	deps.Handle(Method, s.serve)
	return s, nil
}

// Run keeps the lease until ctx is done, and returns when no call is under way any more
// and none can begin. Searchers and Close come after.
func (s *Search) Run(ctx context.Context) error {
	s.keepLease(ctx)
	s.calls.Lock()
	s.calls.ended = true
	if s.calls.n == 0 {
		close(s.calls.idle)
	}
	s.calls.Unlock()
	<-s.calls.idle
	return nil
}

// begin accounts for a goroutine of a call; false when the search has ended.
func (s *Search) begin() bool {
	s.calls.Lock()
	defer s.calls.Unlock()
	if s.calls.ended {
		return false
	}
	s.calls.n++
	return true
}

func (s *Search) end() {
	s.calls.Lock()
	defer s.calls.Unlock()
	if s.calls.n--; s.calls.n == 0 && s.calls.ended {
		close(s.calls.idle)
	}
}

// Close gives back the handles on the index. No call may be served any more.
func (s *Search) Close() {
	for {
		select {
		case x := <-s.servers:
			x.reader.Close()
		default:
			return
		}
	}
}

// catchUp waits until the view is at or above a map index.
func (s *Search) catchUp(ctx context.Context, index uint64) error {
	for s.deps.View().Index < index {
		err := s.deps.WaitApplied(ctx, index)
		if err == nil && s.deps.View().Index < index { // applied, but its view is not out yet
			select {
			case <-ctx.Done():
				err = ctx.Err()
			case <-time.After(viewPause):
			}
		}
		if err != nil {
			return fmt.Errorf("node %s has applied the log to %d, not to %d: %w", s.cfg.Name, s.deps.View().Index, index, err)
		}
	}
	return nil
}

// read answers a question from the trees of this node. Everything that justifies the
// answer is checked after they were read.
func (s *Search) read(r indexer.Reader, scratch *scratch, q *question, a *answer) {
	before := s.plan()
	a.index, a.unreadable, a.current, a.age = before.view.Index, a.unreadable[:0], false, 0
	if a.status = s.ownership(before, q.query.Partition); a.status != statusOK {
		return
	}
	early := s.cfg.broken.leaseFirst && s.lease.held()
	mark := s.deps.Owner.Mark()
	switch q.kind {
	case kindMatch:
		r.Match(q.query, &a.scores)
	case kindExplain:
		a.states = r.Explain(q.query, q.slot, a.states[:0])
	case kindPath:
		a.path = r.AppendPath(a.path[:0], indexer.SequenceQuery{
			Group: q.query.Group, Partition: q.query.Partition, Anchor: q.query.Anchor, Before: q.before, Sequence: q.query.Locals,
		})
	case kindPrefix:
		a.prefixes = a.prefixes[:0]
		for _, row := range q.rows {
			var p indexer.Prefix
			p, scratch.states = indexer.ReadPrefix(r, q.query, row.Slot, row.Depth, scratch.states)
			a.prefixes = append(a.prefixes, p)
		}
	}
	if s.cfg.broken.lateMark {
		mark = s.deps.Owner.Mark()
	}
	if !s.cfg.broken.unreadable {
		scratch.plan, scratch.group = before, q.query.Group
		a.unreadable = s.deps.Owner.Unreadable(a.unreadable, mark, a.index, q.query.Group, q.query.Partition, scratch.lives)
	}
	if after := s.plan(); after != before {
		if a.status = s.ownership(after, q.query.Partition); a.status != statusOK {
			a.index = after.view.Index
			return
		}
	}
	if a.current = s.lease.held() || early; !a.current {
		a.age = s.lease.age()
	}
}

// ownership says whether this process may answer for a partition (rule Q4).
func (s *Search) ownership(p *plan, id indexer.PartitionID) status {
	if p.segment(id).here {
		return statusOK
	}
	if int(id) < len(p.view.Owners) {
		for _, o := range p.view.Owners[id] {
			if o.Name == s.cfg.Name {
				return statusNotReady
			}
		}
	}
	return statusNotOwner
}

// scratch is memory for read.
type scratch struct {
	states []indexer.BlockState
	plan   *plan
	group  indexer.GroupID
	lives  func(yield func(indexer.Slot, uint64) bool) // the live slots of group in plan
}

func newScratch() *scratch {
	s := &scratch{}
	s.lives = s.yieldLives
	return s
}

func (s *scratch) yieldLives(yield func(indexer.Slot, uint64) bool) {
	g, ok := s.plan.view.Catalog.GroupByID(uint32(s.group))
	if !ok {
		return
	}
	for slot := range uint32(g.NumSlots()) {
		if h, live := g.Holder(slot); live && !yield(indexer.Slot(slot), h.Life) {
			return
		}
	}
}
