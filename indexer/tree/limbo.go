package tree

import (
	"sync"
	"sync/atomic"
	"time"
)

// Storage that readers may still be looking at goes into limbo with the epoch of its
// lane. The lane counts its epoch up now and then; what was retired in an epoch is
// free once every pinned reader has pinned a later one. All of it happens in the
// lane, a little at a time, never in a query.

const (
	// reclaimTicks is how many operations pass between two looks at the readers.
	reclaimTicks = 32
	// reclaimBudget is how many pieces one look frees at most, so that no frame waits
	// long; it is several times what 32 operations retire on average.
	reclaimBudget = 512
)

type retired struct {
	epoch uint64
	ref   ref
	units uint32
	purpose
}

// limbo is a queue, oldest first. It holds no pointers.
type limbo struct {
	queue []retired
	head  int
	bytes uint64
}

func (l *Lane) retire(r ref, units uint32, p purpose) {
	l.limbo.queue = append(l.limbo.queue, retired{l.epoch.Load(), r, units, p})
	l.limbo.bytes += retiredBytes(units, p)
}

func retiredBytes(units uint32, p purpose) uint64 {
	if p == forChains {
		return 64 + sideBytes
	}
	return uint64(roundUp(units)) * unitBytes
}

// reclaim frees what no reader can see any more, at most budget pieces.
func (l *Lane) reclaim(budget int) {
	l.ticks = 0
	q := &l.limbo
	if q.head < len(q.queue) {
		l.epoch.Add(1)
		safe := l.pins.oldest(l.id, l.epoch.Load())
		if q.bytes > l.cfg.LimboLimit && q.queue[q.head].epoch >= safe {
			// A reader has been pinned for so long that memory runs away: it loses its
			// pin, throws away what it has and asks again.
			l.pins.revoke(l.id, l.epoch.Load())
			safe = l.pins.oldest(l.id, l.epoch.Load())
		}
		for q.head < len(q.queue) && budget > 0 && q.queue[q.head].epoch < safe {
			e := q.queue[q.head]
			q.head++
			budget--
			q.bytes -= retiredBytes(e.units, e.purpose)
			if e.purpose == forChains {
				l.arena.releaseChain(e.ref)
			} else {
				l.arena.release(e.ref, e.units, e.purpose)
			}
		}
		switch {
		case q.head == len(q.queue):
			q.queue, q.head = q.queue[:0], 0
			if cap(q.queue) > 1<<16 {
				q.queue = nil
			}
		case q.head > 1024 && q.head > len(q.queue)/2:
			q.queue = q.queue[:copy(q.queue, q.queue[q.head:])]
			q.head = 0
		}
	}
	l.arena.shrink(4)
}

// pin is the place where one reader says what it is looking at: lane (16) | epoch
// (48), 0 = nothing. Only its reader and, to revoke, lanes write it.
type pin struct {
	_    [64]byte
	word atomic.Uint64
	_    [56]byte
}

const (
	epochBits = 48
	revoked   = ^uint64(0)
)

// pinSet is the pins of all readers of an index.
type pinSet struct {
	all atomic.Pointer[[]*pin]
	mu  struct {
		sync.Mutex
		free []*pin
		seen map[*pin]sighting
	}
}

// sighting is since when a pin has had a value, as far as anyone looked.
type sighting struct {
	word  uint64
	since time.Time
}

func newPinSet() *pinSet {
	s := &pinSet{}
	s.all.Store(new([]*pin))
	s.mu.seen = map[*pin]sighting{}
	return s
}

// take gives a reader its pin.
func (s *pinSet) take() *pin {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.mu.free); n > 0 {
		p := s.mu.free[n-1]
		s.mu.free = s.mu.free[:n-1]
		return p
	}
	p := new(pin)
	next := append(append([]*pin{}, *s.all.Load()...), p)
	s.all.Store(&next)
	return p
}

func (s *pinSet) give(p *pin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.free = append(s.mu.free, p)
}

// oldest returns the lowest epoch in which a reader is pinned to the lane, or now.
func (s *pinSet) oldest(lane, now uint64) uint64 {
	for _, p := range *s.all.Load() {
		if w := p.word.Load(); w != 0 && w != revoked && w>>epochBits == lane {
			now = min(now, w&(1<<epochBits-1))
		}
	}
	return now
}

// revoke takes their pins from all readers that are pinned to the lane in an epoch
// before now.
func (s *pinSet) revoke(lane, now uint64) {
	for _, p := range *s.all.Load() {
		if w := p.word.Load(); w != 0 && w != revoked && w>>epochBits == lane && w&(1<<epochBits-1) < now {
			p.word.CompareAndSwap(w, revoked)
		}
	}
}

// age returns for how long the oldest pin has been held, as far as calls of age saw.
func (s *pinSet) age(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	longest := time.Duration(0)
	for _, p := range *s.all.Load() {
		w := p.word.Load()
		seen := s.mu.seen[p]
		if w == 0 || w == revoked || seen.word != w {
			s.mu.seen[p] = sighting{w, now}
			continue
		}
		longest = max(longest, now.Sub(seen.since))
	}
	return longest
}
