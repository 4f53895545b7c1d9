package zmq

import (
	"container/heap"
	"time"
)

// timer is an entry of a loop's heap.
type timer struct {
	loop  *loop
	at    time.Time
	order uint64 // timers of the same instant run in the order they were set
	index int    // in the heap; -1 when it has run or was stopped
	fn    func()
}

// Stop implements transport.Timer.
func (t *timer) Stop() bool {
	if t.index < 0 {
		return false
	}
	heap.Remove(&t.loop.timers, t.index)
	t.fn = nil
	return true
}

type timerHeap []*timer

func (h timerHeap) Len() int { return len(h) }
func (h timerHeap) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].order < h[j].order
}
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *timerHeap) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}
func (h *timerHeap) Pop() any {
	old := *h
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	t.index = -1
	return t
}

// runTimers runs what is due at now. A timer that is set meanwhile waits for the
// next turn, so that a timer that sets itself again cannot hold the loop.
func (l *loop) runTimers(now time.Time) {
	limit := l.timerOrder
	for len(l.timers) > 0 {
		t := l.timers[0]
		if t.at.After(now) || t.order > limit {
			return
		}
		heap.Pop(&l.timers)
		fn := t.fn
		t.fn = nil
		fn()
	}
}

// untilTimer is how long epoll may wait, in milliseconds, rounded up so that the
// loop does not wake just before the time; -1 = for ever.
func (l *loop) untilTimer(now time.Time) int {
	if len(l.timers) == 0 {
		return -1
	}
	d := l.timers[0].at.Sub(now)
	if d <= 0 {
		return 0
	}
	const longest = time.Hour // keeps the value within 32 bits
	return int((min(d, longest) + time.Millisecond - 1) / time.Millisecond)
}
