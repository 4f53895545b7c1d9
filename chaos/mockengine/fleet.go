package mockengine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/chaos/driver"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport"
)

// ErrState is wrapped when a method is called at the wrong time.
var ErrState = errors.New("wrong state")

// Fleet is a set of mock engines that play one trace. New, Open and Run are called
// once each, in this order; everything else may be called from any goroutine after
// Open.
type Fleet struct {
	cfg        Config
	plan       *driver.Plan
	publishers []*publisher
	http       *http.Client
	done       chan struct{}
	opened     bool
	left       atomic.Int64 // publishers that still play
}

// New checks the configuration, makes the traffic and the empty caches. It does no
// I/O.
func New(cfg Config) (*Fleet, error) {
	cfg.SetDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	t := cfg.Trace
	if t == nil {
		var err error
		if t, err = trace.Generate(cfg.Generate); err != nil {
			return nil, err
		}
	}
	plan, err := driver.New(t, cfg.Driver)
	if err != nil {
		return nil, err
	}
	f := &Fleet{cfg: cfg, plan: plan, done: make(chan struct{}), http: &http.Client{Timeout: 10 * time.Second}}
	for i := range cfg.Workers * cfg.Ranks {
		p, err := f.newPublisher(i)
		if err != nil {
			return nil, err
		}
		f.publishers = append(f.publishers, p)
	}
	return f, nil
}

func (f *Fleet) newPublisher(i int) (*publisher, error) {
	format := f.cfg.Formats[i%len(f.cfg.Formats)]
	prof, err := profileOf(format)
	if err != nil {
		return nil, err
	}
	enc, err := f.cfg.NewEncoder(format)
	if err != nil {
		return nil, fmt.Errorf("encoder of %s: %w", format, err)
	}
	var hasher Hasher = &fastHasher{salt: formatSalt(format)}
	if f.cfg.Hash == HashEngine {
		if hasher, err = f.cfg.NewHasher(format); err != nil {
			return nil, fmt.Errorf("engine hashes of %s: %w", format, err)
		}
	}
	p := &publisher{
		cfg: &f.cfg, index: i, prof: prof, enc: enc, log: f.cfg.Logger,
		at: Endpoint{
			Instance: f.cfg.FirstInstance + uint64(i/f.cfg.Ranks), Rank: uint32(i % f.cfg.Ranks),
			Format: format, BlockSize: f.cfg.BlockSize,
		},
		commands: make(chan command), ended: make(chan struct{}), onFinish: f.played,
	}
	p.topic = strings.NewReplacer("{instance}", strconv.FormatUint(p.at.Instance, 10),
		"{rank}", strconv.FormatUint(uint64(p.at.Rank), 10), "{model}", f.cfg.Model).Replace(f.cfg.Topic)
	for _, fault := range f.cfg.Faults {
		if fault.Worker < 0 || fault.Worker == i {
			p.faults = append(p.faults, fault)
		}
	}
	slices.SortStableFunc(p.faults, func(a, b Fault) int {
		switch {
		case a.Batch < b.Batch:
			return -1
		case a.Batch > b.Batch:
			return 1
		}
		return 0
	})
	p.mu.sched = newScheduler(&f.cfg, prof, f.plan, i, hasher)
	return p, nil
}

// formatSalt keeps the fast hashes of different formats apart, as those of
// different engines are.
func formatSalt(f Format) uint64 {
	return uint64(slices.Index(Formats(), f) + 1)
}

// Plan returns who serves what, with every prompt.
func (f *Fleet) Plan() *driver.Plan { return f.plan }

// Open opens all sockets.
func (f *Fleet) Open(net transport.Network) error {
	if f.opened {
		return fmt.Errorf("open fleet: %w: it is open", ErrState)
	}
	for i, p := range f.publishers {
		p.net = net
		if err := p.open(); err != nil {
			for _, q := range f.publishers[:i] {
				err = errors.Join(err, q.pub.Close())
			}
			return err
		}
	}
	f.opened = true
	return nil
}

// Endpoints says where the publishers are: instance by instance, rank by rank.
func (f *Fleet) Endpoints() []Endpoint {
	out := make([]Endpoint, len(f.publishers))
	for i, p := range f.publishers {
		out[i] = p.at
	}
	return out
}

// Done is closed when every publisher has played its part of the trace, all its
// events published. With Stay, Run goes on after that.
func (f *Fleet) Done() <-chan struct{} { return f.done }

// Run registers the publishers, plays the trace and closes the sockets. It returns
// nil when the trace has been played (with Stay: when ctx is done) or ctx is done.
func (f *Fleet) Run(ctx context.Context) error {
	if !f.opened {
		return fmt.Errorf("run fleet: %w: it is not open", ErrState)
	}
	f.left.Store(int64(len(f.publishers)))
	err := f.enter(ctx)
	if err == nil {
		err = f.play(ctx)
	} else {
		for _, p := range f.publishers {
			close(p.ended)
		}
		if ctx.Err() != nil {
			err = nil
		}
	}
	if f.cfg.Register != "" && f.cfg.Unregister {
		err = errors.Join(err, f.leave(ctx))
	}
	for _, p := range f.publishers {
		if !p.stopped {
			err = errors.Join(err, p.pub.Close())
		}
	}
	f.http.CloseIdleConnections()
	return err
}

// enter registers everyone, a few at a time, and lets the connections settle.
func (f *Fleet) enter(ctx context.Context) error {
	if f.cfg.Register != "" {
		err := f.each(8, func(p *publisher) error { return f.register(ctx, p) })
		if err != nil {
			return err
		}
	}
	if f.cfg.Settle == 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(f.cfg.Settle):
		return nil
	}
}

// leave unregisters all instances. The context of the run may be done already, so
// it has a time limit of its own.
func (f *Fleet) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return f.each(8, func(p *publisher) error {
		if p.at.Rank != 0 {
			return nil
		}
		return f.unregister(ctx, p.at.Instance)
	})
}

// play runs all publishers; the first failure ends the others.
func (f *Fleet) play(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wait sync.WaitGroup
	errs := make([]error, len(f.publishers))
	for i, p := range f.publishers {
		wait.Go(func() {
			if errs[i] = p.run(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// played counts a publisher that has come to the end of its trace.
func (f *Fleet) played() {
	if f.left.Add(-1) == 0 {
		close(f.done)
	}
}

// each calls fn for every publisher, n at a time, and joins the errors.
func (f *Fleet) each(n int, fn func(*publisher) error) error {
	var wait sync.WaitGroup
	errs := make([]error, len(f.publishers))
	slots := make(chan struct{}, n)
	for i, p := range f.publishers {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			errs[i] = fn(p)
		})
	}
	wait.Wait()
	return errors.Join(errs...)
}

// Inject applies a fault now, between two batches, and returns when it has
// happened. Fault.Batch is not used.
func (f *Fleet) Inject(ctx context.Context, fault Fault) error {
	if err := fault.validate(len(f.publishers)); err != nil {
		return err
	}
	var errs []error
	for i, p := range f.publishers {
		if fault.Worker >= 0 && fault.Worker != i {
			continue
		}
		c := command{fault: fault, reply: make(chan error, 1)}
		select {
		case p.commands <- c:
			errs = append(errs, <-c.reply)
		case <-p.ended:
			errs = append(errs, fmt.Errorf("publisher %d: %s: %w: it has ended", i, fault.Kind, ErrState))
		case <-ctx.Done():
			return fmt.Errorf("publisher %d: %s: %w", i, fault.Kind, ctx.Err())
		}
	}
	return errors.Join(errs...)
}

// Stats returns the sum over all publishers.
func (f *Fleet) Stats() Stats {
	var sum Stats
	for i := range f.publishers {
		s := f.PublisherStats(i)
		sum.merge(&s)
		if i == 0 || s.TraceTime < sum.TraceTime {
			sum.TraceTime = s.TraceTime
		}
	}
	return sum
}

// PublisherStats returns the counts of one publisher.
func (f *Fleet) PublisherStats(i int) Stats {
	p := f.publishers[i]
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.mu.stats
	s.schedulerStats = p.mu.sched.stats
	s.Running, s.Waiting = len(p.mu.sched.running), len(p.mu.sched.waiting)
	s.Held[indexer.Device] = uint64(len(p.mu.sched.pool.resident))
	s.Held[indexer.Host] = uint64(len(p.mu.sched.host.place))
	s.TraceTime = p.mu.sched.now
	return s
}
