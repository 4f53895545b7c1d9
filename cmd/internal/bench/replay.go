package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

// replay plays an op list open loop: every operation has a deadline and is issued
// then, whatever became of those before it.
//
//	issuer (last core)             ingest (first core)        lane (a core before the last)
//	sleeps and spins to the   -->  translates event,     -->  applies frames
//	deadline, asks queries         writes frames,
//	itself, hands over events      watches them applied
//
// The queue between issuer and ingest is the schedule itself, so that it cannot
// overflow. Latencies count from the deadline.
type replay struct {
	tape     *Tape
	clock    tickClock
	window   int64 // ns
	schedule []scheduled
	events   int
	index    *tree.Index
	arm      *indexArm // its translators only

	origin uint64        // tick of deadline 0
	issued atomic.Uint64 // entries of the schedule that the issuer is through with

	// The issuer's.
	lag, service, query *hdrhistogram.Histogram // ns
	issueEnd            uint64                  // tick
	issuerCPU           time.Duration
	depthAtStop         int

	// The ingest thread's.
	accepted  []uint64                // tick, by entry; written by the issuer before issued
	update    *hdrhistogram.Histogram // ns from the deadline until applied
	apply     *hdrhistogram.Histogram // ns from accepted until applied
	handled   atomic.Uint64           // entries through the ingest
	drained   uint64                  // tick
	processed time.Duration           // CPU of the process from start to drained
}

// scheduled is one operation and its time.
type scheduled struct {
	deadline int64 // ns after the start
	op       uint32
	query    bool
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(10*time.Minute), 3) }

// newReplay makes the schedule and opens the index. Each worker's operations are
// shifted to 0 and stretched so that the last lands at the end of the window.
func newReplay(tape *Tape, window int64, clock tickClock) (*replay, error) {
	p := &replay{
		tape: tape, clock: clock, window: window,
		lag: newHistogram(), service: newHistogram(), query: newHistogram(),
		update: newHistogram(), apply: newHistogram(),
	}
	p.makeSchedule()
	p.accepted = make([]uint64, len(p.schedule))
	var err error
	if p.arm, err = newIndexArm(tape.Workers()); err != nil {
		return nil, err
	}
	cfg := tree.Config{Lanes: max(1, runtime.NumCPU()-2)}
	if cpus := allowedCPUs(); len(cpus) > 1 {
		// One lane shares the core of the ingest thread where there are only two.
		cfg.CPUs = cpus[min(1, len(cpus)-2) : len(cpus)-1]
		cfg.Lanes = len(cfg.CPUs)
	}
	if p.index, err = tree.Open(cfg); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *replay) makeSchedule() {
	type span struct{ first, last uint64 }
	spans := make([]span, p.tape.Workers())
	for w := range spans {
		spans[w].first = ^uint64(0)
	}
	var op oplist.Op
	for i := range p.tape.Len() {
		p.tape.At(i, &op)
		s, at := &spans[op.Worker], p.tape.times[op.Request]
		s.first, s.last = min(s.first, at), max(s.last, at)
	}
	p.schedule = make([]scheduled, p.tape.Len())
	for i := range p.tape.Len() {
		p.tape.At(i, &op)
		s := spans[op.Worker]
		deadline := float64(p.window)
		if s.last > s.first {
			deadline *= float64(p.tape.times[op.Request]-s.first) / float64(s.last-s.first)
		}
		query := op.Kind == oplist.Query
		if !query {
			p.events++
		}
		p.schedule[i] = scheduled{int64(deadline), uint32(i), query}
	}
	// Queries before writes at equal deadlines, then by worker; the sort is stable, so
	// a worker's own order stays.
	slices.SortStableFunc(p.schedule, func(a, b scheduled) int {
		if c := cmp.Compare(a.deadline, b.deadline); c != 0 {
			return c
		}
		if a.query != b.query {
			if a.query {
				return -1
			}
			return 1
		}
		return cmp.Compare(p.worker(a), p.worker(b))
	})
}

func (p *replay) worker(s scheduled) uint32 { return uint32(p.tape.ops[tapeOp*int(s.op)] >> 32) }

// ns is the time from tick a to tick b.
func (p *replay) ns(a, b uint64) int64 {
	if b <= a {
		return 0
	}
	return int64(float64(b-a) * p.clock.nsPerTick)
}

// run plays the schedule and returns when the last event is applied.
func (p *replay) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	cpu := processCPU()
	p.origin = ticks() + uint64(2e6/p.clock.nsPerTick) // both threads are up by then
	done := make(chan error, 2)
	for _, f := range []func(context.Context) error{p.ingest, p.issue} {
		go func() {
			runtime.LockOSThread() // pinned: ends with the goroutine
			err := f(ctx)
			if err != nil {
				cancel(err)
			}
			done <- err
		}()
	}
	err := errors.Join(<-done, <-done)
	p.processed = processCPU() - cpu
	return err
}

// issue walks the schedule.
func (p *replay) issue(ctx context.Context) error {
	pinThread(runtime.NumCPU() - 1)
	reader := p.index.NewReader()
	defer reader.Close()
	cpu := threadCPU()
	var scores indexer.Scores
	var op oplist.Op
	for i := range p.schedule {
		s := &p.schedule[i]
		deadline := p.origin + uint64(float64(s.deadline)/p.clock.nsPerTick)
		now := p.awaitTick(deadline)
		_ = p.lag.RecordValue(p.ns(deadline, now)) // within range by construction
		if s.query {
			if p.tape.At(int(s.op), &op); len(op.Contents) > 0 {
				reader.Match(queryOf(op.Contents), &scores)
			}
			end := ticks()
			_ = p.service.RecordValue(p.ns(now, end))
			_ = p.query.RecordValue(p.ns(deadline, end))
		} else {
			p.accepted[i] = now
		}
		p.issued.Store(uint64(i + 1))
		if i&1023 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	p.issueEnd = ticks()
	p.depthAtStop = len(p.schedule) - int(p.handled.Load())
	p.issuerCPU = threadCPU() - cpu
	return nil
}

// awaitTick sleeps until shortly before a tick and then spins; it returns the tick at
// which it went on.
func (p *replay) awaitTick(deadline uint64) uint64 {
	const spin = 100_000 // ns
	for {
		now := ticks()
		if now >= deadline {
			return now
		}
		if left := p.ns(now, deadline); left > 2*spin {
			nap(time.Duration(left - spin))
		}
	}
}

// flight is an event whose frames have been written.
type flight struct {
	entry  int
	frames uint64 // applied when the writer has applied so many
}

// ingest translates events as they are issued, and watches them being applied.
func (p *replay) ingest(ctx context.Context) error {
	pinThread(0)
	writer := p.index.NewWriter()
	defer writer.Close()
	p.arm.apply = writer.Write
	var flights []flight
	var op oplist.Op
	settle := func() {
		applied := writer.Applied()
		n := 0
		for n < len(flights) && flights[n].frames <= applied {
			n++
		}
		if n == 0 {
			return
		}
		now := ticks()
		for _, f := range flights[:n] {
			deadline := p.origin + uint64(float64(p.schedule[f.entry].deadline)/p.clock.nsPerTick)
			_ = p.update.RecordValue(p.ns(deadline, now)) // within range by construction
			_ = p.apply.RecordValue(p.ns(p.accepted[f.entry], now))
		}
		flights = flights[:copy(flights, flights[n:])]
	}
	for i := 0; i < len(p.schedule) || len(flights) > 0; {
		if i == int(p.issued.Load()) {
			settle()
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			p.restUntilNext(i, len(flights) > 0)
			continue
		}
		if s := p.schedule[i]; !s.query {
			p.tape.At(int(s.op), &op)
			if op.Kind == oplist.Stored {
				p.arm.store(op.Worker, op.HasParent, op.Parent, op.Contents, op.Keys)
			} else {
				p.arm.remove(op.Worker, op.Keys)
			}
			flights = append(flights, flight{i, writer.Written()})
			if len(flights)%16 == 0 {
				settle()
			}
		}
		i++
		p.handled.Store(uint64(i))
	}
	p.drained = ticks()
	return p.arm.err
}

// restUntilNext sleeps until entry i is due, or briefly while events are to be seen
// applied. It never spins: the lane may be on this core.
func (p *replay) restUntilNext(i int, watching bool) {
	rest := int64(20_000)
	if i < len(p.schedule) && !watching {
		deadline := p.origin + uint64(float64(p.schedule[i].deadline)/p.clock.nsPerTick)
		rest = max(rest, min(p.ns(ticks(), deadline), int64(10*time.Millisecond)))
	}
	nap(time.Duration(rest))
}

// report judges the replay by its rules and sets the figures.
func (p *replay) report(b *bencher) {
	total := p.ns(p.origin, p.drained)
	issueTime := p.ns(p.origin, p.issueEnd)
	ops := float64(p.tape.BlockOps())
	valid := float64(issueTime) <= 1.01*float64(p.window)
	kept := valid && float64(total) <= 1.10*float64(p.window)
	flag := func(v bool) float64 {
		if v {
			return 1
		}
		return 0
	}
	b.set("valid", flag(valid))
	b.set("kept", flag(kept))
	b.set("offered", ops/float64(p.window)*1e9)
	b.set("issued", ops/float64(issueTime)*1e9)
	b.set("achieved", ops/float64(total)*1e9)
	b.set("drain", float64(max(0, total-issueTime)))
	b.set("depth", float64(p.depthAtStop))
	for _, h := range []struct {
		key string
		h   *hdrhistogram.Histogram
	}{{"lag", p.lag}, {"service", p.service}, {"query", p.query}, {"update", p.update}, {"apply", p.apply}} {
		b.set(h.key+".p50", float64(h.h.ValueAtQuantile(50)))
		b.set(h.key+".p99", float64(h.h.ValueAtQuantile(99)))
		b.set(h.key+".p999", float64(h.h.ValueAtQuantile(99.9)))
	}
	// The issuer's waiting is not the index's work, its queries are.
	asked := time.Duration(p.service.Mean() * float64(p.service.TotalCount()))
	b.set("cpu", float64(p.processed-p.issuerCPU+asked)/ops)
}

// close checks that everything issued is in the index, and closes it.
func (p *replay) close() error {
	s := p.index.Stats()
	want := uint64(len(p.tape.keys) - len(p.tape.evicted))
	var err error
	if s.Held[indexer.Device] != want || s.Faults != 0 || int(p.update.TotalCount()) != p.events || int(p.service.TotalCount()) != p.tape.Queries() {
		err = fmt.Errorf("%w: %d blocks held, want %d; %d faults; %d of %d updates seen applied", ErrWrongAnswers, s.Held[indexer.Device], want, s.Faults, p.update.TotalCount(), p.events)
	}
	for _, t := range p.arm.workers {
		t.Close()
	}
	p.arm.reader.Close()
	return errors.Join(err, p.arm.lane.Close(), p.index.Close())
}
