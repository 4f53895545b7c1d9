package tree

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// thread runs one lane: the only goroutine that applies its frames. It takes frames
// from the rings of all writers in turn, serves requests between batches, and parks
// on a channel when there is nothing to do.
type thread struct {
	lane *Lane
	cpu  int // core to run on, -1 = any

	rings atomic.Pointer[[]*ring]
	mu    struct {
		sync.Mutex
		requests []func(*Lane)
	}
	asked  atomic.Bool
	parked atomic.Bool
	wake   chan struct{}
	stop   atomic.Bool
	done   chan struct{}

	idle    atomic.Int64 // ns spent without work, up to the last change
	idleAt  atomic.Int64 // when the present idle time began, 0 = busy
	started time.Time

	frames uint64
	took   applyTimes
}

const (
	// batchFrames is how many frames of one ring are applied before the next ring's
	// turn, and before their room is given back.
	batchFrames = 32
	// spinRounds is how often an idle lane looks again before it parks: some
	// microseconds. Yielding in between would cost a locked thread two system calls.
	spinRounds = 500
)

func newThread(l *Lane, cpu int) *thread {
	t := &thread{lane: l, cpu: cpu, wake: make(chan struct{}, 1), done: make(chan struct{})}
	t.rings.Store(new([]*ring))
	return t
}

// run is the lane's thread. Once pinned it is never given back to the scheduler: it
// ends with the goroutine.
func (t *thread) run(ready chan<- error) {
	defer close(t.done)
	runtime.LockOSThread()
	if t.cpu >= 0 {
		if err := pinThread(t.cpu); err != nil {
			ready <- err
			return
		}
	}
	t.started = time.Now()
	ready <- nil
	spins := 0
	for {
		worked := t.batch()
		if t.asked.Load() {
			t.serve()
			worked = true
		}
		switch {
		case worked:
			if spins > 0 {
				t.leaveIdle()
				spins = 0
			}
		case t.stop.Load():
			return
		case spins < spinRounds:
			if spins == 0 {
				t.enterIdle()
			}
			spins++
		default:
			// What readers kept from being freed is freed now.
			for i := 0; i < 64 && t.lane.limbo.pieces > 0; i++ {
				t.lane.reclaim(reclaimBudget)
			}
			t.park()
		}
	}
}

func (t *thread) enterIdle() { t.idleAt.Store(int64(time.Since(t.started)) + 1) }

func (t *thread) leaveIdle() {
	if at := t.idleAt.Swap(0); at != 0 {
		t.idle.Add(int64(time.Since(t.started)) + 1 - at)
	}
}

// batch applies some frames of every ring.
func (t *thread) batch() (worked bool) {
	for _, r := range *t.rings.Load() {
		for range batchFrames {
			f := r.take()
			if f == nil {
				break
			}
			worked = true
			t.frames++
			if t.frames%sampleFrames == 0 {
				t.took.measure(t.lane, f)
			} else {
				t.lane.Apply(f)
			}
		}
		r.publish()
	}
	return worked
}

func (t *thread) park() {
	t.parked.Store(true)
	if t.pending() {
		t.parked.Store(false)
		return
	}
	timer := time.NewTimer(parkTime(t.lane))
	select {
	case <-t.wake:
	case <-timer.C:
	}
	timer.Stop()
	t.parked.Store(false)
}

// parkTime is how long a lane sleeps at most: while something waits for a reader, it
// looks after it.
func parkTime(l *Lane) time.Duration {
	if l.limbo.pieces > 0 {
		return time.Millisecond
	}
	return time.Second
}

func (t *thread) pending() bool {
	if t.asked.Load() || t.stop.Load() {
		return true
	}
	for _, r := range *t.rings.Load() {
		if r.next != r.head.Load() {
			return true
		}
	}
	return false
}

// nudge wakes the lane if it is parked.
func (t *thread) nudge() {
	if t.parked.Load() {
		select {
		case t.wake <- struct{}{}:
		default:
		}
	}
}

// request has the lane call f between two frames.
func (t *thread) request(f func(*Lane)) {
	t.mu.Lock()
	t.mu.requests = append(t.mu.requests, f)
	t.mu.Unlock()
	t.asked.Store(true)
	t.nudge()
}

func (t *thread) serve() {
	t.asked.Store(false)
	t.mu.Lock()
	requests := t.mu.requests
	t.mu.requests = nil
	t.mu.Unlock()
	for _, f := range requests {
		f(t.lane)
	}
}

func (t *thread) addRing(r *ring) {
	t.request(func(*Lane) {
		next := append(append([]*ring{}, *t.rings.Load()...), r)
		t.rings.Store(&next)
	})
}

// removeRings forgets rings whose writers are closed and that are empty.
func (t *thread) removeRings() {
	t.request(func(*Lane) {
		var next []*ring
		for _, r := range *t.rings.Load() {
			if !r.closed.Load() || r.next != r.head.Load() {
				next = append(next, r)
			}
		}
		t.rings.Store(&next)
	})
}
