package oplist

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvcluster/kvcluster/chaos/trace"
)

// ErrConfig is wrapped by errors about values that no list can be built with.
var ErrConfig = errors.New("invalid op list configuration")

// Config names a list; together with the trace it determines every byte of it.
type Config struct {
	Copies   int // D, disjoint copies of the trace
	Workers  int // W
	Capacity int // CAP, blocks in the cache of one worker
}

// String is the form used in tables: "D=4 W=128 CAP=8192".
func (c Config) String() string {
	return fmt.Sprintf("D=%d W=%d CAP=%d", c.Copies, c.Workers, c.Capacity)
}

// Validate names the first value that cannot be used.
func (c Config) Validate() error {
	// The highest copy's last block number must fit 32 bits, in which the builder
	// keeps it.
	const maxCopies = math.MaxUint32 / blocksPerID / idsPerCopy
	switch {
	case c.Copies < 1 || c.Copies > maxCopies:
		return fmt.Errorf("%w: %d copies, want 1 to %d", ErrConfig, c.Copies, maxCopies)
	case c.Workers < 1 || c.Workers > maxWorkers:
		return fmt.Errorf("%w: %d workers, want 1 to %d", ErrConfig, c.Workers, maxWorkers)
	case c.Capacity < 1 || c.Capacity > math.MaxInt32:
		return fmt.Errorf("%w: capacity of %d blocks, want 1 to 2^31-1", ErrConfig, c.Capacity)
	}
	return nil
}

// Build makes the list of a trace. It takes about a second for ten million block
// operations.
func Build(t *trace.Trace, cfg Config) (*List, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	ids, top := 0, 0
	for i := range t.Requests {
		for _, id := range t.Requests[i].IDs {
			if id >= idsPerCopy {
				return nil, fmt.Errorf("build op list: request %d: id %d: %w: copies are %d ids apart", i, id, trace.ErrRange, idsPerCopy)
			}
		}
		ids += len(t.Requests[i].IDs)
		for _, id := range t.Requests[i].IDs {
			top = max(top, int(id)+1)
		}
	}
	blocks := ids * blocksPerID * cfg.Copies
	if blocks > math.MaxUint32 {
		return nil, fmt.Errorf("build op list: %w: %d blocks", trace.ErrRange, blocks)
	}
	b := builder{
		list: &List{
			cfg:      cfg,
			ids:      top,
			ops:      make([]op, 0, 3*len(t.Requests)*cfg.Copies),
			contents: make([]uint64, 0, blocks),
			keys:     make([]uint64, 0, blocks),
		},
		caches: make([]lru, cfg.Workers),
	}
	for w := range b.caches {
		b.caches[w].init(cfg.Capacity)
	}
	for l := range t.Requests {
		for s := range cfg.Copies {
			b.request(t.Requests[l].IDs, uint32(l*cfg.Copies+s), uint32(s+l)%uint32(cfg.Copies))
		}
	}
	b.finish()
	return b.list, nil
}

type builder struct {
	list   *List
	caches []lru
	raw    []uint32 // block numbers of the request at hand
}

func (b *builder) request(ids []uint32, i, dup uint32) {
	b.raw = b.raw[:0]
	for _, id := range ids {
		for j := range uint32(blocksPerID) {
			b.raw = append(b.raw, (id+dup*idsPerCopy)*blocksPerID+j)
		}
	}
	l := b.list
	worker := i % uint32(l.cfg.Workers)
	cache := &b.caches[worker]
	from, n := uint32(len(l.contents)), uint32(len(b.raw))
	for _, r := range b.raw {
		c := Mix(uint64(r))
		l.contents = append(l.contents, c)
		l.keys = append(l.keys, Mix(c))
	}
	l.ops = append(l.ops, op{offset: from, length: n, request: i, head: uint32(Query)<<headKind | worker})

	k := uint32(0)
	for k < n && cache.holds(b.raw[k]) {
		k++
	}
	if k < n {
		head := uint32(Stored)<<headKind | worker
		if k > 0 {
			head |= headParent
		}
		l.ops = append(l.ops, op{offset: from + k, length: n - k, request: i, head: head})
		l.totals.StoredEvents++
		l.totals.StoredBlocks += int(n - k)
		l.totals.LargestStore = max(l.totals.LargestStore, int(n-k))
	} else {
		l.totals.RequestsWithoutStore++
	}
	l.totals.Queries++
	l.totals.QueryHashes += int(n)
	l.totals.LongestQuery = max(l.totals.LongestQuery, int(n))

	for j := len(b.raw) - 1; j >= 0; j-- {
		cache.touch(b.raw[j])
	}
	gone := uint32(len(l.evicted))
	for cache.len() > l.cfg.Capacity {
		l.evicted = append(l.evicted, Mix(Mix(uint64(cache.evict()))))
	}
	if m := uint32(len(l.evicted)) - gone; m > 0 {
		l.ops = append(l.ops, op{offset: gone, length: m, request: i, head: uint32(Removed)<<headKind | worker})
		l.totals.RemovedEvents++
		l.totals.RemovedBlocks += int(m)
		l.totals.LargestRemoval = max(l.totals.LargestRemoval, int(m))
	}
}

func (b *builder) finish() {
	l := b.list
	held := make([]bool, l.cfg.Copies*l.ids*blocksPerID)
	for w := range b.caches {
		l.totals.Held += b.caches[w].len()
		for r := range b.caches[w].place {
			if n := l.dense(uint64(r)); !held[n] {
				held[n] = true
				l.totals.Distinct++
			}
		}
	}
	l.totals.Workers = l.cfg.Workers
	l.totals.Checksum = l.checksum()
}

// lru is the cache of one worker: block numbers by recency of use.
type lru struct {
	place map[uint32]int32 // block number -> node
	nodes []lruNode        // node 0 is the head of the ring: next is the most recent
	free  int32            // list of unused nodes through next, 0 = none
}

type lruNode struct {
	raw        uint32
	prev, next int32
}

func (c *lru) init(capacity int) {
	c.place = make(map[uint32]int32)
	c.nodes = make([]lruNode, 1, min(capacity, 1<<14)+1)
	c.free = 0
}

func (c *lru) len() int { return len(c.place) }

func (c *lru) holds(raw uint32) bool { _, ok := c.place[raw]; return ok }

// touch makes raw the most recent block, inserting it when it is not there.
func (c *lru) touch(raw uint32) {
	n, ok := c.place[raw]
	switch {
	case ok:
		c.unlink(n)
	case c.free != 0:
		n = c.free
		c.free = c.nodes[n].next
		c.place[raw] = n
	default:
		n = int32(len(c.nodes))
		c.nodes = append(c.nodes, lruNode{})
		c.place[raw] = n
	}
	first := c.nodes[0].next
	c.nodes[n] = lruNode{raw: raw, prev: 0, next: first}
	c.nodes[first].prev = n
	c.nodes[0].next = n
}

func (c *lru) unlink(n int32) {
	p, q := c.nodes[n].prev, c.nodes[n].next
	c.nodes[p].next = q
	c.nodes[q].prev = p
}

// evict drops the least recent block and returns it.
func (c *lru) evict() uint32 {
	n := c.nodes[0].prev
	raw := c.nodes[n].raw
	c.unlink(n)
	delete(c.place, raw)
	c.nodes[n].next = c.free
	c.free = n
	return raw
}
