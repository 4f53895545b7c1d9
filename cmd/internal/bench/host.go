package bench

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Host names the machine of a measurement.
type Host struct {
	CPU    string  `json:"cpu"`
	Cores  int     `json:"cores"`
	MHz    float64 `json:"mhz"`
	Memory int64   `json:"memory_bytes"`
	Kernel string  `json:"kernel"`
	Go     string  `json:"go"`
	Load   float64 `json:"load_1m"` // at the beginning: what else ran
}

// thisHost reads what the system says of itself; what it does not say stays empty.
func thisHost() Host {
	h := Host{Cores: runtime.NumCPU(), Go: runtime.Version() + " " + runtime.GOARCH}
	h.CPU = procField("/proc/cpuinfo", "model name")
	h.MHz, _ = strconv.ParseFloat(procField("/proc/cpuinfo", "cpu MHz"), 64)
	if f := strings.Fields(procField("/proc/meminfo", "MemTotal")); len(f) > 0 {
		kb, _ := strconv.ParseInt(f[0], 10, 64)
		h.Memory = kb << 10
	}
	if raw, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		h.Kernel = strings.TrimSpace(string(raw))
	}
	if raw, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(raw), " ")
		h.Load, _ = strconv.ParseFloat(first, 64)
	}
	return h
}

func procField(file, name string) string {
	raw, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	sc := bufio.NewScanner(bytes.NewReader(raw))
	for sc.Scan() {
		if k, v, ok := strings.Cut(sc.Text(), ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
