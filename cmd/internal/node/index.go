package node

import (
	"fmt"
	"log/slog"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
)

// openIndex makes and starts the index. want, if not nil, says how many blocks should
// go for the memory bound.
func openIndex(cfg IndexConfig, logger *slog.Logger) (idx indexer.Index, want func(indexer.Stats) int, err error) {
	onFault := func(h indexer.Header, err error) {
		logger.Error("frame refused; the copy is closed until its slot starts over", "group", h.Group, "partition", h.Partition, "slot", h.Slot, "sequence", h.Sequence, "error", err)
	}
	switch cfg.Kind {
	case "reference":
		return reference.New(reference.Config{OnFault: onFault}), nil, nil
	}
	return nil, nil, fmt.Errorf("unknown kind of index %q", cfg.Kind)
}
