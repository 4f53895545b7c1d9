package tree

import (
	"errors"
	"slices"
	"testing"
	"testing/fstest"
)

func file(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }

// twoSockets has 2 nodes of 2 cores with 2 threads each; the threads of a core are 4
// apart, as on most servers.
func twoSockets() fstest.MapFS {
	sys := fstest.MapFS{
		"sys/devices/system/cpu/online":         file("0-7\n"),
		"sys/devices/system/node/online":        file("0-1\n"),
		"sys/devices/system/node/node0/cpulist": file("0-1,4-5\n"),
		"sys/devices/system/node/node1/cpulist": file("2-3,6-7\n"),
	}
	for c := range 8 {
		dir := "sys/devices/system/cpu/cpu" + string(rune('0'+c)) + "/topology/"
		sys[dir+"core_id"] = file(string(rune('0'+c%2)) + "\n")
		sys[dir+"physical_package_id"] = file(string(rune('0'+c%4/2)) + "\n")
	}
	return sys
}

func TestOrderOfCPUs(t *testing.T) {
	for _, c := range []struct {
		name    string
		allowed []int
		node    int
		want    []int
	}{
		{"first node", nil, 0, []int{0, 1, 4, 5}},
		{"second node", nil, 1, []int{2, 3, 6, 7}},
		{"any node", nil, -1, []int{0, 1, 4, 5}},
		{"the node with more CPUs", []int{1, 2, 3, 7}, -1, []int{2, 3, 7}},
		{"the second thread of a core alone", []int{4, 5, 0}, 0, []int{0, 5, 4}},
		{"no such node", nil, 5, []int{}},
	} {
		m, err := readMachine(twoSockets(), c.allowed)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := m.order(c.node); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	if _, err := readMachine(twoSockets(), []int{9}); err == nil {
		t.Error("a machine without usable CPUs")
	}
	if _, err := readMachine(fstest.MapFS{}, nil); err == nil {
		t.Error("a machine that says nothing of itself")
	}
}

func TestQuota(t *testing.T) {
	for _, c := range []struct {
		name  string
		files map[string]string
		want  int
	}{
		{"none", nil, 0},
		{"no limit", map[string]string{"sys/fs/cgroup/cpu.max": "max 100000\n"}, 0},
		{"two and a half", map[string]string{"sys/fs/cgroup/cpu.max": "250000 100000\n"}, 3},
		{"own group", map[string]string{"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/pod/box/cpu.max": "100000 100000\n"}, 1},
		{"group above", map[string]string{"proc/self/cgroup": "0::/pod/box\n", "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n", "sys/fs/cgroup/pod/cpu.max": "400000 100000\n"}, 4},
		{"version 1", map[string]string{"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 2},
		{"version 1 without limit", map[string]string{"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 0},
	} {
		sys := fstest.MapFS{}
		for name, text := range c.files {
			sys[name] = file(text)
		}
		if got := readQuota(sys); got != c.want {
			t.Errorf("%s: %d CPUs, want %d", c.name, got, c.want)
		}
	}
}

func TestReadList(t *testing.T) {
	for text, want := range map[string][]int{"0": {0}, "0-2,5\n": {0, 1, 2, 5}, "": nil, "\n": nil} {
		got, err := readList(fstest.MapFS{"list": file(text)}, "list")
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"a", "1-", "3-1", "1,,2"} {
		if got, err := readList(fstest.MapFS{"list": file(text)}, "list"); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"lanes":     {Lanes: -1},
		"too many":  {Lanes: maxLanes + 1},
		"CPUs":      {Lanes: 3, CPUs: []int{0, 1}},
		"same CPU":  {CPUs: []int{1, 1}},
		"ring":      {RingWords: 100},
		"tiny ring": {RingWords: 32},
	} {
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	sys := twoSockets()
	c := Config{Pin: true, NUMANode: 7, System: sys}.withDefaults()
	if _, _, err := c.place(); !errors.Is(err, ErrConfig) {
		t.Errorf("NUMA node 7: %v", err)
	}
}
