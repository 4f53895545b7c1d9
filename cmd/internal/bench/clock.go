package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
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

// residentBytes returns the resident set of the process after garbage was collected
// and free memory given back.
func residentBytes() (int64, error) {
	runtime.GC()
	debug.FreeOSMemory()
	raw, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return 0, fmt.Errorf("resident memory: %w", err)
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		f := bytes.Fields(sc.Bytes())
		if len(f) >= 2 && string(f[0]) == "Rss:" {
			kb, err := strconv.ParseInt(string(f[1]), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("resident memory: no Rss line in smaps_rollup")
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
		if len(samples) > 0 {
			at := min(len(samples)-1, int(p/100*float64(len(samples))))
			out[i] = float64(samples[at]) * c.nsPerTick
		}
	}
	return out
}
