package bench

import (
	"time"

	"golang.org/x/sys/unix"
)

// allowedCPUs returns the cores that the process may use.
func allowedCPUs() []int {
	var all unix.CPUSet
	if unix.SchedGetaffinity(0, &all) != nil {
		return nil
	}
	var out []int
	for cpu := 0; len(out) < all.Count(); cpu++ {
		if all.IsSet(cpu) {
			out = append(out, cpu)
		}
	}
	return out
}

// pinThread puts the calling thread, to which the goroutine must be locked for good,
// on the n-th of the cores that the process may use. With fewer cores, or where
// pinning is not allowed, the thread stays where the system puts it: figures then have
// more spread, answers are the same.
func pinThread(n int) {
	cpus := allowedCPUs()
	if n >= len(cpus) {
		return
	}
	var one unix.CPUSet
	one.Set(cpus[n])
	_ = unix.SchedSetaffinity(0, &one) // not allowed in some containers
}

// nap blocks the calling thread. time.Sleep is no use for less than a millisecond: when
// nothing else is to do, the runtime waits in epoll, which counts in milliseconds.
func nap(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil) // cut short by a signal: callers look at the clock again
}
