package fanout

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// Fanout is the sending side of one node. All methods may be called from any goroutine.
//
// Locks, in the order in which they are taken:
//
//	build      tables are made
//	slot.mu    what is known and sent of one slot; taken for every frame
//	reports    may be taken before slot.mu
//	peers.mu, refills, writers, selfFills, checkpoints    leaves
type Fanout struct {
	cfg   Config
	log   *slog.Logger
	peers peers
	table atomic.Pointer[table]
	wake  chan struct{}
	freed chan struct{} // a worker has nothing to do
	token atomic.Uint64
	pacer pacer
	began time.Time

	heldBytes atomic.Int64 // of all queues
	unfenced  atomic.Int64 // until then (by clock) nothing is acknowledged: see heedUnfenced
	reporting atomic.Bool  // somebody waits for acknowledgements to report
	backlog   atomic.Int64 // fills that wait for a worker

	build struct {
		sync.Mutex
		linger map[lingering]time.Time
		routes map[string]*route
	}
	refills struct {
		mu   sync.Mutex
		list []refill
	}
	writers struct {
		mu  sync.Mutex
		all []*writer
	}
	// selfFills are the fills of this node's own copies that are under way.
	selfFills struct {
		mu  sync.Mutex
		all map[uint64]*fill // by slot
	}
	reports reports
	count   struct {
		strayed, renewals, refills, closedSources, overflows atomic.Uint64
	}
}

// refill is the word of a receiver that it had to close a copy.
type refill struct {
	peer string
	h    indexer.Header
}

// New returns a Fanout that sends nothing on its own before Run. Its writers work as
// soon as there is a view.
func New(cfg Config) (*Fanout, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	f := &Fanout{
		cfg: cfg, log: cfg.Logger.With("component", "fanout"), wake: make(chan struct{}, 1), freed: make(chan struct{}, 1),
		began: time.Now(),
	}
	f.peers.init(cfg.Name)
	f.table.Store(&table{})
	f.build.linger, f.build.routes = map[lingering]time.Time{}, map[string]*route{}
	f.reports.init()
	f.selfFills.all = map[uint64]*fill{}
	f.pacer.rate = cfg.Throttle
	// Tokens of fences do not repeat after a restart.
	f.token.Store(rand.Uint64())
	return f, nil
}

// clock is the time since New, in nanoseconds. A wall clock that is set forward must not
// cut a wait short that others rely on, nor one that is set back draw it out.
func (f *Fanout) clock() int64 { return int64(time.Since(f.began)) }

func (f *Fanout) wakeUp() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

// Refill takes note that a receiver had to close a copy, whose content is then sent
// again. For this node's own copies peer is its name. It does not wait.
func (f *Fanout) Refill(peer string, h indexer.Header) {
	f.refills.mu.Lock()
	f.refills.list = append(f.refills.list, refill{peer, h})
	f.refills.mu.Unlock()
	f.count.refills.Add(1)
	f.wakeUp()
}

func (s *slot) is(h indexer.Header) bool {
	return s.name.Group == h.Group && s.name.Slot == h.Slot && s.name.Life == h.Life && s.tenure == h.Tenure && int(h.Partition) < len(s.label)
}

// refillAll closes what receivers say that they have closed.
func (f *Fanout) refillAll(t *table) {
	f.refills.mu.Lock()
	list := f.refills.list
	f.refills.list = nil
	f.refills.mu.Unlock()
	for _, r := range list {
		s := t.slots[keyOf(r.h.Group, r.h.Slot)]
		if s == nil || !s.is(r.h) {
			continue
		}
		pe := f.peers.get(r.peer)
		one := newSet(t.partitions)
		one.add(int(r.h.Partition))
		s.mu.Lock()
		s.close(pe, one)
		// It is not to be opened as empty, whatever the receiver has.
		s.touched.add(int(r.h.Partition))
		s.cancel(pe, one) // what was sent may have been in vain
		s.mu.Unlock()
	}
}

// need is a slot of which a peer lacks something.
type need struct {
	s  *slot
	to *peer
}

const (
	// rescan is how often everything is looked at without a reason: retries fall due. Where
	// nothing is missing there are none, and it is restCalm.
	rescan   = 200 * time.Millisecond
	restCalm = time.Second
	// restTime is the least time between two looks. It is also restShare times what a look
	// takes, 4 ms for 2,000 slots and 8 nodes, so that they cost a fifth of a core at most.
	restTime  = 2 * time.Millisecond
	restShare = 4
)

// Run fills copies and reports until ctx is done; when it returns, its goroutines have
// ended.
func (f *Fanout) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	work := make(chan need)
	for range f.cfg.Workers {
		wg.Go(func() { f.worker(ctx, work) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	var needs []need
	last, rest := time.Time{}, restTime
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("fan-out %s: %w", f.cfg.Name, ctx.Err())
		default:
		}
		now := time.Now()
		if wait := rest - now.Sub(last); wait > 0 {
			if sleep(ctx, wait) != nil {
				continue
			}
			now = time.Now()
		}
		next := f.expire(now)
		t := f.table.Load()
		f.refillAll(t)
		var calm bool
		needs, calm = f.scan(t, now, needs[:0])
		f.report(ctx, &wg, t, now)
		due := now.Add(rescan)
		if calm && (t.view == nil || len(t.view.Jobs) == 0) {
			due = now.Add(restCalm)
		}
		if !next.IsZero() && next.Before(due) {
			due = next
		}
		last = time.Now()
		rest = max(restTime, restShare*last.Sub(now))
		timer.Reset(max(due.Sub(now), restTime))
		for waiting := true; waiting; {
			var to chan need
			var next need
			f.backlog.Store(int64(len(needs)))
			i := f.next(needs)
			if i >= 0 {
				to, next = work, needs[i]
			}
			select {
			case <-ctx.Done():
				waiting = false
			case to <- next:
				next.to.filling.Add(1)
				needs[i] = needs[0]
				needs = needs[1:]
			case <-f.freed:
			case <-f.wake:
				waiting = false
			case <-timer.C:
				waiting = false
			}
		}
	}
}

// next chooses what to fill next, -1 = nothing now. A target that takes nothing must not
// hold all workers.
func (f *Fanout) next(needs []need) int {
	most := int64(max(1, f.cfg.Workers-1))
	return slices.IndexFunc(needs, func(n need) bool { return n.to.filling.Load() < most })
}

// scan looks at every copy: it opens the empty ones, finds what is missing where, and
// what is nowhere any more. calm: nothing is.
func (f *Fanout) scan(t *table, now time.Time, needs []need) (_ []need, calm bool) {
	if t.view == nil {
		return needs, true
	}
	calm = true
	missing, covered := newSet(t.partitions), newSet(t.partitions)
	all := f.peers.all()
	for _, s := range t.own {
		s.mu.Lock()
		if s.gone || s.retired {
			s.mu.Unlock()
			continue
		}
		clear(covered)
		if s.pend.parts != nil {
			covered.or(s.pend.parts)
		}
		reachable := false
		for _, pe := range all {
			want := t.want(pe)
			if !want.empty() && pe.up() {
				s.openEmpty(t, pe)
			}
			if pe.index < len(s.copies) {
				if fl := s.copies[pe.index].fill; fl != nil && fl.complete {
					covered.or(fl.parts)
				}
			}
			stale := s.forget(t, pe)
			c := s.live(pe)
			if c == nil {
				continue
			}
			covered.or(c.open)
			calm = calm && !stale
			if stale && !now.Before(c.retryAt) {
				needs = append(needs, need{s, pe})
				continue
			}
			copy(missing, want)
			missing.and(s.touched)
			missing.andNot(c.open)
			if !missing.empty() {
				calm = false
				reachable = true
				if c.fill == nil && !now.Before(c.retryAt) && !c.sess.lapsed.Load() {
					needs = append(needs, need{s, pe})
				}
			}
		}
		copy(missing, s.touched)
		missing.andNot(covered)
		calm = calm && missing.empty()
		if !missing.empty() && reachable && !now.Before(s.renewAt) {
			s.renewAt = now.Add(f.cfg.RenewEvery)
			f.count.renewals.Add(1)
			f.log.Warn("content of a slot is nowhere any more: a new life begins", "slot", s.name, "partitions", missing.count())
			f.cfg.Renew(s.name.Group, s.name.Slot, s.name.Life)
		}
		s.mu.Unlock()
	}
	return needs, calm
}
