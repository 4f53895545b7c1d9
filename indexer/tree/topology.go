package tree

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// place decides how many lanes there are and on which cores.
func (c *Config) place() (lanes int, cpus []int, err error) {
	lanes, cpus = c.Lanes, c.CPUs
	if lanes == 0 {
		lanes = len(cpus)
	}
	if lanes == 0 {
		n := runtime.GOMAXPROCS(0)
		lanes = max(1, n-(n+3)/4)
	}
	return lanes, cpus, nil
}

// pinThread puts the calling thread on one core.
func pinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}
