package disk

import (
	"sync"

	"github.com/hashicorp/raft"
)

// cache keeps the last entries in memory, where followers ask for them. It is
// raft.LogCache, except that errors keep their kind.
type cache struct {
	*guard
	mu   sync.RWMutex
	ring []*raft.Log // entry i at i % len
}

func newCache(g *guard, entries int) *cache {
	return &cache{guard: g, ring: make([]*raft.Log, max(entries, 1))}
}

// GetLog implements raft.LogStore.
func (c *cache) GetLog(index uint64, log *raft.Log) error {
	c.mu.RLock()
	l := c.ring[index%uint64(len(c.ring))]
	c.mu.RUnlock()
	if l != nil && l.Index == index {
		*log = *l
		return nil
	}
	return c.guard.GetLog(index, log)
}

// StoreLog implements raft.LogStore.
func (c *cache) StoreLog(log *raft.Log) error { return c.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. What could not be stored is not kept: raft would
// take it for stored.
func (c *cache) StoreLogs(logs []*raft.Log) error {
	if err := c.guard.StoreLogs(logs); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		c.ring[l.Index%uint64(len(c.ring))] = l
	}
	return nil
}

// DeleteRange implements raft.LogStore.
func (c *cache) DeleteRange(first, last uint64) error {
	c.mu.Lock()
	clear(c.ring)
	c.mu.Unlock()
	return c.guard.DeleteRange(first, last)
}
