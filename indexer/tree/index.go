package tree

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// Index is an indexer.Index of several lanes, each on its own thread. All methods
// may be called from any goroutine.
type Index struct {
	cfg     Config
	pins    *pinSet
	lanes   []*Lane
	threads []*thread

	mu struct {
		sync.Mutex
		started, closed bool
		last            time.Time // of the last Stats
		idle            []int64   // per lane, then
		final           indexer.Stats
	}
}

var _ indexer.Index = (*Index)(nil)

// New returns an index that is not running yet. It starts nothing.
func New(cfg Config) (*Index, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("new index: %w", err)
	}
	return &Index{cfg: cfg.withDefaults(), pins: newPinSet()}, nil
}

// Open is New and Start.
func Open(cfg Config) (*Index, error) {
	x, err := New(cfg)
	if err != nil {
		return nil, err
	}
	if err := x.Start(); err != nil {
		return nil, err
	}
	return x, nil
}

// Start reserves the memory of the lanes and starts their threads. Close stops them.
func (x *Index) Start() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.closed {
		return fmt.Errorf("start index: %w", indexer.ErrClosed)
	}
	if x.mu.started {
		return errors.New("start index: already started")
	}
	n, cpus, err := x.cfg.place()
	if err != nil {
		return fmt.Errorf("start index: %w", err)
	}
	lc := LaneConfig{
		Reserve: x.cfg.Reserve, LimboLimit: x.cfg.LimboLimit,
		EvictionLog: x.cfg.EvictionLog, OnFault: x.cfg.OnFault,
	}
	for i := range n {
		l, err := openLane(lc, i, x.pins)
		if err != nil {
			x.stop()
			return fmt.Errorf("start index: %w", err)
		}
		cpu := -1
		if i < len(cpus) {
			cpu = cpus[i]
		}
		t := newThread(l, cpu)
		ready := make(chan error, 1)
		x.lanes, x.threads = append(x.lanes, l), append(x.threads, t)
		go t.run(ready)
		if err := <-ready; err != nil {
			x.stop()
			return fmt.Errorf("start lane %d on CPU %d: %w", i, cpu, err)
		}
	}
	x.mu.started, x.mu.last, x.mu.idle = true, time.Now(), make([]int64, n)
	return nil
}

// stop ends all threads and gives their memory back.
func (x *Index) stop() error {
	for _, t := range x.threads {
		t.stop.Store(true)
		t.nudge()
		<-t.done
	}
	var errs []error
	for _, l := range x.lanes {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Close implements indexer.Index.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.closed {
		return fmt.Errorf("close index: %w", indexer.ErrClosed)
	}
	x.mu.closed = true
	if err := x.stop(); err != nil {
		return fmt.Errorf("close index: %w", err)
	}
	return nil
}

// running returns an error once the index is closed, or before it is started.
func (x *Index) running() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.closed || !x.mu.started {
		return indexer.ErrClosed
	}
	return nil
}

// do has a lane call f between two frames and waits for it.
func (x *Index) do(ctx context.Context, lane int, f func(*Lane)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	t := x.threads[lane]
	done := make(chan struct{})
	t.request(func(l *Lane) {
		f(l)
		close(done)
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-t.done:
		return indexer.ErrClosed
	}
}

// NewReader implements indexer.Index. The index must have been started.
func (x *Index) NewReader() indexer.Reader { return newReader(x.lanes, x.pins) }

// Purge implements indexer.Index.
func (x *Index) Purge(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
	wrap := func(err error) error { return fmt.Errorf("purge slot %d of group %d: %w", s, g, err) }
	if err := x.running(); err != nil {
		return wrap(err)
	}
	for i := range x.lanes {
		var epoch uint64
		err := x.do(ctx, i, func(l *Lane) {
			l.Purge(g, s)
			epoch = l.epoch.Add(1)
		})
		if err != nil {
			return wrap(err)
		}
		// Queries that began before may still be about to report the slot.
		for wait := time.Microsecond; x.pins.oldest(uint64(i), epoch) < epoch; wait = min(2*wait, time.Millisecond) {
			select {
			case <-ctx.Done():
				return wrap(ctx.Err())
			case <-time.After(wait):
			}
		}
	}
	return nil
}

// Dump implements indexer.Index. The lane copies, visit is called afterwards.
func (x *Index) Dump(ctx context.Context, g indexer.GroupID, p indexer.PartitionID, s indexer.Slot, visit func(indexer.Stretch) error) error {
	wrap := func(err error) error { return fmt.Errorf("dump slot %d of group %d, partition %d: %w", s, g, p, err) }
	if err := x.running(); err != nil {
		return wrap(err)
	}
	var stretches []indexer.Stretch
	if err := x.do(ctx, laneOf(g, p, len(x.lanes)), func(l *Lane) { stretches = l.Dump(g, p, s) }); err != nil {
		return wrap(err)
	}
	for _, st := range stretches {
		if err := ctx.Err(); err != nil {
			return wrap(err)
		}
		if err := visit(st); err != nil {
			return err
		}
	}
	return nil
}
