package bench

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// processCPU returns the CPU time of the whole process, garbage collector included.
func processCPU() time.Duration { return cpuClock(unix.CLOCK_PROCESS_CPUTIME_ID) }

// threadCPU returns the CPU time of the calling thread; the goroutine must be locked
// to it.
func threadCPU() time.Duration { return cpuClock(unix.CLOCK_THREAD_CPUTIME_ID) }

func cpuClock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("clock %d: %v", id, err)) // cannot fail on Linux for these clocks
	}
	return time.Duration(ts.Nano())
}

// memory is what the process uses at one moment, in bytes.
type memory struct {
	resident int64 // of the process, mapped files left out
	heap     int64 // live on the Go heap
}

// takeMemory collects garbage, gives free memory back and looks.
func takeMemory() (memory, error) {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	raw, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return memory{}, fmt.Errorf("resident memory: %w", err)
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		f := bytes.Fields(sc.Bytes())
		if len(f) >= 2 && string(f[0]) == "Anonymous:" {
			kb, err := strconv.ParseInt(string(f[1]), 10, 64)
			return memory{resident: kb << 10, heap: int64(m.HeapAlloc)}, err
		}
	}
	return memory{}, fmt.Errorf("resident memory: no line for anonymous memory in smaps_rollup")
}

// tickClock converts ticks of the time stamp counter, which costs a tenth of time.Now
// and so does not swamp a query of 400 ns.
type tickClock struct{ nsPerTick float64 }

// newTickClock calibrates for 20 ms.
func newTickClock() tickClock {
	t0, c0 := time.Now(), ticks()
	for time.Since(t0) < 20*time.Millisecond {
	}
	return tickClock{float64(time.Since(t0)) / float64(ticks()-c0)}
}

// percentiles returns the given percentiles of tick counts, in nanoseconds. It sorts
// samples.
func (c tickClock) percentiles(samples []uint32, ps ...float64) []float64 {
	slices.Sort(samples)
	out := make([]float64, len(ps))
	for i, p := range ps {
		out[i] = float64(percentile(samples, p)) * c.nsPerTick
	}
	return out
}

// percentile returns the smallest value that p percent of the sorted values do not
// exceed (nearest rank); 0 when there are none.
func percentile[T cmp.Ordered](sorted []T, p float64) T {
	var zero T
	if len(sorted) == 0 {
		return zero
	}
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// threadCPUOf returns the CPU time of f on this thread.
func threadCPUOf(f func()) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	from := threadCPU()
	f()
	return threadCPU() - from
}

// gcCycle returns the CPU time of one full collection, by the clock of the process
// while nothing else runs in it. The runtime's own estimate counts the time that a
// worker waits for a core as well, which on a shared machine is most of it.
func gcCycle() time.Duration {
	runtime.GC() // what the caller left is no part of it
	from := processCPU()
	const cycles = 10
	for range cycles {
		runtime.GC()
	}
	return (processCPU() - from) / cycles
}

// gcCycles returns the number of collections so far.
func gcCycles() uint64 {
	s := []metrics.Sample{{Name: "/gc/cycles/total:gc-cycles"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
