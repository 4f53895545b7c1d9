package tree

import (
	"sync"
	"sync/atomic"
	"time"
)

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
// before now, and returns how many.
func (s *pinSet) revoke(lane, now uint64) (n uint64) {
	for _, p := range *s.all.Load() {
		if w := p.word.Load(); w != 0 && w != revoked && w>>epochBits == lane && w&(1<<epochBits-1) < now {
			if p.word.CompareAndSwap(w, revoked) {
				n++
			}
		}
	}
	return n
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
