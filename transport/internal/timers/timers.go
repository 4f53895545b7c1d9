// Package timers is the timer heap of a loop. It has no goroutine and no clock:
// the loop says what time it is. A heap and its timers belong to one goroutine.
package timers

import (
	"container/heap"
	"time"
)

// Heap holds the timers of one loop. The zero value is empty.
type Heap struct {
	list  list
	order uint64
}

// Timer is one entry. It implements transport.Timer.
type Timer struct {
	heap  *Heap
	at    time.Time
	order uint64 // timers of the same instant run in the order they were set
	index int    // in the heap; -1 when it has run or was stopped
	fn    func()
}

// Add sets a timer.
func (h *Heap) Add(at time.Time, fn func()) *Timer {
	h.order++
	t := &Timer{heap: h, at: at, order: h.order, fn: fn}
	heap.Push(&h.list, t)
	return t
}

// Expired returns a timer that will never run.
func Expired() *Timer { return &Timer{index: -1} }

// Stop removes the timer and reports whether that prevented it.
func (t *Timer) Stop() bool {
	if t.index < 0 {
		return false
	}
	heap.Remove(&t.heap.list, t.index)
	t.fn = nil
	return true
}

// Run runs what is due at now. A timer that is set meanwhile waits for the next
// call, so one that sets itself again cannot hold up the loop.
func (h *Heap) Run(now time.Time) {
	limit := h.order
	for len(h.list) > 0 {
		t := h.list[0]
		if t.at.After(now) || t.order > limit {
			return
		}
		heap.Pop(&h.list)
		fn := t.fn
		t.fn = nil
		fn()
	}
}

// Next returns the time of the earliest timer.
func (h *Heap) Next() (at time.Time, ok bool) {
	if len(h.list) == 0 {
		return time.Time{}, false
	}
	return h.list[0].at, true
}

// Clear removes all timers without running them.
func (h *Heap) Clear() {
	for _, t := range h.list {
		t.index = -1
		t.fn = nil
	}
	h.list = nil
}

type list []*Timer

func (l list) Len() int { return len(l) }
func (l list) Less(i, j int) bool {
	if !l[i].at.Equal(l[j].at) {
		return l[i].at.Before(l[j].at)
	}
	return l[i].order < l[j].order
}

func (l list) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].index, l[j].index = i, j
}

func (l *list) Push(x any) {
	t := x.(*Timer)
	t.index = len(*l)
	*l = append(*l, t)
}

func (l *list) Pop() any {
	old := *l
	t := old[len(old)-1]
	old[len(old)-1] = nil
	*l = old[:len(old)-1]
	t.index = -1
	return t
}
