package tree

import (
	"cmp"
	"fmt"
	"io/fs"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// machine is what lanes need to know of the hardware: the CPUs that the process may
// use, with their cores and NUMA nodes, and how much CPU time it may take.
type machine struct {
	cpus  []cpuInfo
	quota int // CPUs worth of time by the cgroup, rounded up; 0 = no limit
}

type cpuInfo struct{ id, core, socket, node int }

// readMachine reads /sys and /proc through sys, which has the form of /. allowed are
// the CPUs of the affinity mask; nil = all.
func readMachine(sys fs.FS, allowed []int) (machine, error) {
	online, err := readList(sys, "sys/devices/system/cpu/online")
	if err != nil {
		return machine{}, fmt.Errorf("read topology: %w", err)
	}
	nodes := map[int]int{}
	if list, err := readList(sys, "sys/devices/system/node/online"); err == nil {
		for _, n := range list {
			of, err := readList(sys, fmt.Sprintf("sys/devices/system/node/node%d/cpulist", n))
			if err != nil {
				return machine{}, fmt.Errorf("read topology: node %d: %w", n, err)
			}
			for _, c := range of {
				nodes[c] = n
			}
		}
	}
	var m machine
	for _, c := range online {
		if allowed != nil && !slices.Contains(allowed, c) {
			continue
		}
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/topology/", c)
		// Without these every CPU is a core of one socket.
		m.cpus = append(m.cpus, cpuInfo{
			id: c, core: readInt(sys, dir+"core_id", c), socket: readInt(sys, dir+"physical_package_id", 0), node: nodes[c],
		})
	}
	if len(m.cpus) == 0 {
		return machine{}, fmt.Errorf("read topology: no usable CPU among %v", online)
	}
	m.quota = readQuota(sys)
	return m, nil
}

// readQuota reads the CPU limit of the control group: version 2, then version 1.
func readQuota(sys fs.FS) int {
	quota, period := 0, 0
	dir := "sys/fs/cgroup"
	if b, err := fs.ReadFile(sys, "proc/self/cgroup"); err == nil {
		for line := range strings.Lines(string(b)) {
			if own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/"); ok && own != "" {
				dir += "/" + strings.TrimPrefix(own, "../")
			}
		}
	}
	for ; ; dir = dir[:strings.LastIndexByte(dir, '/')] {
		if b, err := fs.ReadFile(sys, dir+"/cpu.max"); err == nil {
			if n, _ := fmt.Sscan(string(b), &quota, &period); n == 2 {
				break
			}
		}
		if dir == "sys/fs/cgroup" {
			quota = readInt(sys, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", 0)
			period = readInt(sys, "sys/fs/cgroup/cpu/cpu.cfs_period_us", 0)
			break
		}
	}
	if quota <= 0 || period <= 0 {
		return 0
	}
	return (quota + period - 1) / period
}

func readInt(sys fs.FS, name string, or int) int {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return or
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return or
	}
	return n
}

// readList reads a list in the kernel's form: 0-3,8,10-11.
func readList(sys fs.FS, name string) (list []int, err error) {
	b, err := fs.ReadFile(sys, name)
	if err != nil {
		return nil, err
	}
	text := strings.TrimSpace(string(b))
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		a, err := strconv.Atoi(from)
		if err != nil {
			return nil, fmt.Errorf("%s: %q: %w", name, text, err)
		}
		z := a
		if isRange {
			if z, err = strconv.Atoi(to); err != nil || z < a {
				return nil, fmt.Errorf("%s: %q: bad range", name, text)
			}
		}
		for ; a <= z; a++ {
			list = append(list, a)
		}
	}
	return list, nil
}

// order is the CPUs in the order in which lanes take them: all on one NUMA node, one
// hardware thread of every core first. node < 0 = the node with most usable cores.
func (m *machine) order(node int) []int {
	if node < 0 {
		count := map[int]int{}
		for _, c := range m.cpus {
			count[c.node]++
		}
		for n, k := range count {
			if node < 0 || k > count[node] || k == count[node] && n < node {
				node = n
			}
		}
	}
	type ranked struct {
		id, thread int // thread: which of its core's
	}
	var list []ranked
	threads := map[[2]int]int{}
	for _, c := range m.cpus {
		if c.node == node {
			k := [2]int{c.socket, c.core}
			list = append(list, ranked{c.id, threads[k]})
			threads[k]++
		}
	}
	slices.SortFunc(list, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.thread, b.thread), cmp.Compare(a.id, b.id))
	})
	out := make([]int, len(list))
	for i := range list {
		out[i] = list[i].id
	}
	return out
}

// place decides how many lanes there are and on which cores. A lane is a busy thread,
// so one core of every four stays free of them for the network and the collector.
func (c *Config) place() (lanes int, cpus []int, err error) {
	usable := runtime.GOMAXPROCS(0)
	cpus = c.CPUs
	if c.Pin && len(cpus) == 0 {
		m, err := readMachine(c.System, affinity())
		if err != nil {
			return 0, nil, err
		}
		if cpus = m.order(c.NUMANode); len(cpus) == 0 {
			return 0, nil, fmt.Errorf("%w: NUMA node %d has no usable CPU", ErrConfig, c.NUMANode)
		}
		usable = min(usable, len(cpus))
		if m.quota > 0 {
			usable = min(usable, m.quota)
		}
	}
	switch {
	case c.Lanes > 0:
		lanes = c.Lanes
	case len(c.CPUs) > 0:
		lanes = len(c.CPUs)
	default:
		lanes = max(1, usable-(usable+3)/4)
	}
	if len(cpus) > 0 && lanes > len(cpus) {
		return 0, nil, fmt.Errorf("%w: %d lanes on %d CPUs", ErrConfig, lanes, len(cpus))
	}
	return lanes, cpus, nil
}

// affinity returns the CPUs that the process may use, nil if that is not known.
func affinity() (cpus []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(0, &set) != nil {
		return nil
	}
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}

// pinThread puts the calling thread on one core.
func pinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}
