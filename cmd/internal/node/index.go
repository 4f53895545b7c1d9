package node

import (
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

// openIndex opens the configured kind of index; closed, if not nil, is told of every
// frame that was refused.
func openIndex(c Config, logger *slog.Logger, closed indexer.FaultHandler) (indexer.Index, error) {
	idx, err := newIndex(c.Index, func(h indexer.Header, err error) {
		logger.Error("frame refused; the copy is closed until it is filled again", "group", h.Group, "partition", h.Partition, "slot", h.Slot, "sequence", h.Sequence, "error", err)
		if closed != nil {
			closed(h, err)
		}
	})
	if err == nil && c.WrapIndex != nil {
		idx = c.WrapIndex(idx)
	}
	return idx, err
}

func newIndex(cfg IndexConfig, onFault indexer.FaultHandler) (indexer.Index, error) {
	switch cfg.Kind {
	case "reference":
		return reference.New(reference.Config{OnFault: onFault}), nil
	case "tree":
		cpus, err := parseCPUs(cfg.CPUs)
		if err != nil {
			return nil, err
		}
		return tree.Open(tree.Config{
			Lanes: cfg.Lanes, CPUs: cpus, Pin: cfg.NUMANode >= 0, NUMANode: cfg.NUMANode,
			MemoryLimit: cfg.MemoryLimit, OnFault: onFault,
		})
	}
	return nil, fmt.Errorf("unknown kind of index %q: tree or reference", cfg.Kind)
}

// parseCPUs reads a list of cores as taskset writes it: 2-5,8.
func parseCPUs(s string) ([]int, error) {
	var out []int
	for _, part := range strings.Split(s, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA != nil || errB != nil || a < 0 || b < a || b >= 1<<16 {
			return nil, fmt.Errorf("cores %q: %q is not a core or a range such as 2-5", s, part)
		}
		for c := a; c <= b; c++ {
			out = append(out, c)
		}
	}
	return out, nil
}
