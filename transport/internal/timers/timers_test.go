package timers

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestAgainstList compares the heap with a list that is searched: the same timers
// run, in the same order, whatever is set, stopped and run in between.
func TestAgainstList(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type entry struct {
			id int
			at time.Time
			tm *Timer
		}
		var (
			h        Heap
			list     []entry
			ran      []int
			next     int
			now      = time.Unix(0, 0)
			add      func(d time.Duration)
			finished []*Timer
		)
		add = func(d time.Duration) {
			id := next
			next++
			again := d%7 == 3
			e := entry{id: id, at: now.Add(d)}
			e.tm = h.Add(e.at, func() {
				ran = append(ran, id)
				if again {
					add(0)
				}
			})
			list = append(list, e)
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				add(time.Duration(rapid.IntRange(0, 20).Draw(t, "in")))
			},
			"stop": func(t *rapid.T) {
				if len(list) == 0 {
					return
				}
				i := rapid.IntRange(0, len(list)-1).Draw(t, "which")
				if !list[i].tm.Stop() {
					t.Fatal("Stop of a waiting timer reports false")
				}
				finished = append(finished, list[i].tm)
				list = slices.Delete(list, i, i+1)
			},
			"run": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 10).Draw(t, "later")))
				var want []int
				due := slices.Clone(list)
				slices.SortStableFunc(due, func(a, b entry) int { return a.at.Compare(b.at) })
				for _, e := range due {
					if !e.at.After(now) {
						want = append(want, e.id)
					}
				}
				ran = nil
				h.Run(now)
				if !slices.Equal(ran, want) {
					t.Fatalf("ran %v, want %v", ran, want)
				}
				list = slices.DeleteFunc(list, func(e entry) bool {
					if slices.Contains(want, e.id) {
						finished = append(finished, e.tm)
						return true
					}
					return false
				})
			},
			"": func(t *rapid.T) {
				var earliest time.Time
				for _, e := range list {
					if earliest.IsZero() || e.at.Before(earliest) {
						earliest = e.at
					}
				}
				if at, ok := h.Next(); ok != (len(list) > 0) || !at.Equal(earliest) {
					t.Fatalf("the next timer is at %v (%v), want %v", at, ok, earliest)
				}
				for _, tm := range finished {
					if tm.Stop() {
						t.Fatal("Stop of a finished timer reports true")
					}
				}
			},
		})
		h.Clear()
		for _, e := range list {
			if e.tm.Stop() {
				t.Fatal("Stop of a cleared timer reports true")
			}
		}
	})
	if Expired().Stop() {
		t.Error("Stop of an expired timer reports true")
	}
}
