package owner

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/transport/link"
)

// Owner is the receiving side of one node: the table of its copies, and the sessions
// that write to them. All methods may be called from any goroutine.
//
// Locks, in the order in which they are taken:
//
//	mu          sessions, and what Run has yet to begin
//	slot.mu     the life of a slot
//	table.mu    growth of the table
//	dumps.mu    dumps
//	pending.mu  what a session has received and not yet taken up
//
// None is held while anything is waited for or called from outside. The locks of
// faults and settling are taken alone.
type Owner struct {
	cfg   Config
	log   *slog.Logger
	table table

	// routes and carriers are replaced under mu. A carrier's place is freed when no
	// record names it any more.
	routes   atomic.Pointer[map[uint64]*worker] // by number of the session, which the hub never repeats
	carriers atomic.Pointer[[]*carrier]
	version  atomic.Uint64 // rises with every copy that becomes open

	wake chan struct{}

	mu struct {
		sync.Mutex
		peers   map[string]*worker // the last session of each
		workers []*worker          // those whose goroutines are not gone
		begin   []*worker          // Run has yet to start them
		retires []retirement
		ended   bool
	}
	dumps  dumps
	faults faults
	count  counters
}

// carrier is what writes to copies: a session, or this node itself.
type carrier struct {
	session link.Session
	over    atomic.Bool // a newer session has taken its place

	// The link may be current again before this node has applied what it received. So:
	// the carrier is silent as long as resumed, which follows when everything that came
	// before the resumption is applied, is behind silences.
	silences  atomic.Uint64
	resumed   atomic.Uint64
	resumedAt atomic.Uint64 // version
}

func (c *carrier) silent() bool { return c.silences.Load() != c.resumed.Load() }

// resume ends a silence, unless there has been another one.
func (o *Owner) resume(c *carrier, silence uint64) {
	c.resumedAt.Store(o.version.Add(1))
	c.resumed.Store(silence)
}

// New returns an owner without copies.
func New(cfg Config) (*Owner, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	o := &Owner{cfg: cfg, log: cfg.Logger.With("component", "owner", "node", cfg.Name), wake: make(chan struct{}, 1)}
	o.mu.peers = map[string]*worker{}
	o.routes.Store(&map[uint64]*worker{})
	o.carriers.Store(&[]*carrier{nil, {}})
	o.dumps.mu.kept = map[dumpKey]*dump{}
	o.faults.mu.pending = map[string][]fault{}
	return o, nil
}

func (o *Owner) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// Run works until ctx is done; it returns when every goroutine of the owner is gone.
// What sessions hand over before it is kept until it runs.
func (o *Owner) Run(ctx context.Context) error {
	var all sync.WaitGroup
	busy := false // a retirement is under way
	finished := make(chan struct{}, 1)
	timer := time.NewTimer(o.cfg.DumpTTL)
	defer timer.Stop()
	for ctx.Err() == nil {
		o.mu.Lock()
		begin := o.mu.begin
		o.mu.begin = nil
		var retires []retirement
		if !busy {
			retires, o.mu.retires = o.mu.retires, nil
		}
		o.mu.Unlock()
		for _, w := range begin {
			all.Go(func() { w.run(ctx) })
		}
		if len(retires) > 0 {
			busy = true
			all.Go(func() {
				o.retire(ctx, retires)
				finished <- struct{}{}
			})
		}
		for _, peer := range o.faults.begin() {
			all.Go(func() { o.tellBroken(ctx, peer) })
		}
		select {
		case <-ctx.Done():
		case <-o.wake:
		case <-finished:
			busy = false
		case <-timer.C:
			o.dumps.expire(time.Now())
			timer.Reset(o.cfg.DumpTTL / 4)
		}
	}
	o.mu.Lock()
	o.mu.ended = true
	rest := o.mu.retires
	o.mu.retires = nil
	o.mu.Unlock()
	o.routes.Store(&map[uint64]*worker{})
	all.Wait()
	o.dumps.end()
	for _, r := range rest {
		r.done(fmt.Errorf("retire slot %d of group %d: %w", r.slot.Slot, r.slot.Group, ErrClosed))
	}
	return nil
}

// carrier returns the carrier of an id, nil if it is free.
func (o *Owner) carrier(id uint32) *carrier {
	if c := *o.carriers.Load(); int(id) < len(c) {
		return c[id]
	}
	return nil
}

// addCarrier finds a place. Called with mu.
func (o *Owner) addCarrier(s link.Session) uint32 {
	next := slices.Clone(*o.carriers.Load())
	id := localCarrier + 1
	for id < len(next) && next[id] != nil {
		id++
	}
	if id == len(next) {
		next = append(next, nil)
	}
	next[id] = &carrier{session: s}
	o.carriers.Store(&next)
	return uint32(id)
}

// remove forgets a worker and its carrier, which no record names any more.
func (o *Owner) remove(w *worker) {
	o.mu.Lock()
	defer o.mu.Unlock()
	next := slices.Clone(*o.carriers.Load())
	next[w.id] = nil
	o.carriers.Store(&next)
	o.mu.workers = slices.DeleteFunc(o.mu.workers, func(v *worker) bool { return v == w })
}
