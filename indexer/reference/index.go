package reference

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/indexer"
)

// DefaultEvictionLog is the default of Config.EvictionLog.
const DefaultEvictionLog = 1 << 16

// Config has the few choices there are; the zero value is good.
type Config struct {
	// EvictionLog is the number of dropped blocks that Explain remembers; 0 means
	// DefaultEvictionLog, a negative number none.
	EvictionLog int
	// OnFault, if set, is told of every refused frame. It is called with the index
	// locked: it must neither block nor call back.
	OnFault indexer.FaultHandler
}

// Index is the reference index. All methods may be called from any goroutine.
type Index struct {
	onFault indexer.FaultHandler

	mu struct {
		sync.RWMutex
		closed    bool
		trees     map[treeKey]*tree
		copies    map[copyKey]*copyState
		bySlot    map[slotKey]map[indexer.PartitionID]*copyState
		evictions evictionLog
		held      [indexer.NumTiers]uint64
		distinct  uint64
		nodes     uint64
		names     uint64
		frames    uint64
		faults    uint64
	}
}

var _ indexer.Index = (*Index)(nil)

type treeKey struct {
	group     indexer.GroupID
	partition indexer.PartitionID
}

type copyKey struct {
	treeKey
	slot indexer.Slot
}

type slotKey struct {
	group indexer.GroupID
	slot  indexer.Slot
}

// New returns an empty index.
func New(c Config) *Index {
	x := &Index{onFault: c.OnFault}
	size := c.EvictionLog
	if size == 0 {
		size = DefaultEvictionLog
	}
	x.mu.evictions.limit = max(size, 0)
	x.reset()
	return x
}

func (x *Index) reset() {
	x.mu.trees = map[treeKey]*tree{}
	x.mu.copies = map[copyKey]*copyState{}
	x.mu.bySlot = map[slotKey]map[indexer.PartitionID]*copyState{}
	x.mu.evictions.reset()
	x.mu.held = [indexer.NumTiers]uint64{}
	x.mu.distinct, x.mu.nodes, x.mu.names = 0, 0, 0
}

// NewWriter implements indexer.Index.
func (x *Index) NewWriter() indexer.Writer { return &writer{index: x} }

// NewReader implements indexer.Index.
func (x *Index) NewReader() indexer.Reader { return &reader{index: x} }

// Purge implements indexer.Index.
func (x *Index) Purge(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("purge slot %d of group %d: %w", s, g, err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.closed {
		return fmt.Errorf("purge slot %d of group %d: %w", s, g, indexer.ErrClosed)
	}
	for p, c := range x.mu.bySlot[slotKey{g, s}] {
		x.empty(c)
		delete(x.mu.copies, copyKey{treeKey{g, p}, s})
	}
	delete(x.mu.bySlot, slotKey{g, s})
	x.mu.evictions.forget(g, s)
	return nil
}

// Stats implements indexer.Index.
func (x *Index) Stats() indexer.Stats {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := indexer.Stats{
		Held: x.mu.held, Distinct: x.mu.distinct, Stored: x.mu.nodes, Chains: x.mu.nodes,
		Frames: x.mu.frames, Faults: x.mu.faults,
		// Estimates: the collector's heap cannot be asked for a share.
		Bytes: map[string]uint64{"nodes": 200 * x.mu.nodes, "names": 17 * x.mu.names},
		Lanes: []indexer.LaneStats{{Frames: x.mu.frames}},
	}
	for _, c := range x.mu.copies {
		if len(c.runs) > 0 {
			s.Slots++
		}
	}
	return s
}

// Close implements indexer.Index.
func (x *Index) Close() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.mu.closed {
		return fmt.Errorf("close index: %w", indexer.ErrClosed)
	}
	x.mu.closed = true
	x.reset()
	return nil
}

// writer applies each frame before Write returns, so Applied is always Written.
type writer struct {
	index   *Index
	written atomic.Uint64
}

// Write implements indexer.Writer.
func (w *writer) Write(f indexer.Frame) error {
	if err := w.index.write(f); err != nil {
		return err
	}
	w.written.Add(1)
	return nil
}

// Written implements indexer.Writer.
func (w *writer) Written() uint64 { return w.written.Load() }

// Applied implements indexer.Writer.
func (w *writer) Applied() uint64 { return w.written.Load() }

// Flush implements indexer.Writer.
func (w *writer) Flush(ctx context.Context) error { return ctx.Err() }

// Close implements indexer.Writer.
func (w *writer) Close() {}
