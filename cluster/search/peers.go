package search

import (
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// costHalf is after how long half of what a slow answer costs its owner is forgotten,
	// so that an owner that was slow is tried again.
	costHalf = time.Second
	// probeAfter is how often a peer that is not thought to be alive is asked all the same
	// when there is no other.
	probeAfter = time.Second
	// hedgePart is how many calls pay for one hedge, hedgeSaved how many hedges may be
	// saved up: when everything is slow, asking everything twice makes it slower.
	hedgePart, hedgeSaved = 10, 20
	// sampled calls are remembered for the percentile.
	sampled = 256
)

// peer is what is known of another node as an answerer of reads.
type peer struct {
	name   string
	flying atomic.Int64 // calls under way
	mu     struct {
		sync.Mutex
		cost   float64 // latency in ns: rises at once, falls slowly
		at     time.Time
		probed time.Time
	}
}

// peer returns the peer of a name.
func (s *Search) peer(name string) *peer {
	if p, ok := s.peers.Load(name); ok {
		return p.(*peer)
	}
	p, _ := s.peers.LoadOrStore(name, &peer{name: name})
	return p.(*peer)
}

// note takes one latency; of a call that was given up, how long it had gone on.
func (p *peer) note(took time.Duration, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.cost = max(float64(took), 0.9*p.costLocked(now)+0.1*float64(took))
	p.mu.at = now
}

func (p *peer) costLocked(now time.Time) float64 {
	return p.mu.cost * math.Exp2(-float64(now.Sub(p.mu.at))/float64(costHalf))
}

// price orders owners: what a call is expected to take, times those that wait already.
func (p *peer) price(now time.Time) float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return (p.costLocked(now) + float64(50*time.Microsecond)) * float64(1+p.flying.Load())
}

// probe reports whether a peer that seems dead may be asked now.
func (p *peer) probe(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now.Sub(p.mu.probed) < probeAfter {
		return false
	}
	p.mu.probed = now
	return true
}

// pacer decides when to hedge.
type pacer struct {
	fixed    time.Duration // 0 = by percentile, negative = never
	deadline time.Duration
	p95      atomic.Int64
	saved    atomic.Int64 // calls that pay for hedges

	mu struct {
		sync.Mutex
		last []time.Duration // the latest latencies, a ring
		next int
		n    int
	}
}

func newPacer(fixed, deadline time.Duration) *pacer {
	p := &pacer{fixed: fixed, deadline: deadline}
	p.p95.Store(int64(deadline / 4)) // until there are calls
	p.saved.Store(hedgePart * hedgeSaved)
	return p
}

// note takes the latency of an answered call.
func (p *pacer) note(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.mu.last) < sampled {
		p.mu.last = append(p.mu.last, took)
	} else {
		p.mu.last[p.mu.next] = took
		p.mu.next = (p.mu.next + 1) % sampled
	}
	p.mu.n++
	if p.mu.n%32 == 0 {
		sorted := slices.Clone(p.mu.last)
		slices.Sort(sorted)
		p.p95.Store(int64(sorted[len(sorted)*95/100]))
	}
}

// delay returns after how long a second owner is asked: once too much has been hedged, only
// what has waited for half of the deadline. earn is called for each first call, spend for
// each hedge.
func (p *pacer) delay() time.Duration {
	switch {
	case p.fixed < 0 || p.saved.Load() < hedgePart:
		return p.deadline / 2
	case p.fixed > 0:
		return min(p.fixed, p.deadline/2)
	}
	return min(max(time.Duration(p.p95.Load()), time.Millisecond), p.deadline/2)
}

func (p *pacer) earn() {
	if p.saved.Load() < hedgePart*hedgeSaved {
		p.saved.Add(1)
	}
}

func (p *pacer) spend() {
	if p.saved.Load() >= hedgePart {
		p.saved.Add(-hedgePart)
	}
}
