package tree

import (
	"fmt"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/indexer"
)

// LaneConfig is what a lane needs to know. The zero value is good.
type LaneConfig struct {
	// Reserve is the address space of the lane in bytes, which bounds what it can
	// hold; 0 = as much as a lane can name, 32 GiB. Memory is taken only when used.
	Reserve uint64
	// LimboLimit bounds the bytes that wait for readers; beyond it, stalled readers
	// lose their pin and ask again. 0 = 64 MiB.
	LimboLimit uint64
	// EvictionLog is the number of dropped ranges that Explain remembers; 0 = 4,096,
	// negative = none. With each come up to 256 bytes of what nobody holds any more.
	EvictionLog int
	// OnFault, if set, is told of every refused frame.
	OnFault indexer.FaultHandler
}

const (
	defaultLimbo       = 64 << 20
	defaultEvictionLog = 4096
)

// Lane is the core of the index: the trees of some partitions, written by one
// goroutine and read by anyone through a Reader. It starts nothing. An Index runs
// several of them, each on its thread; a benchmark can use one inline.
type Lane struct {
	cfg   LaneConfig
	id    uint64 // number in its index, in the pins of its readers
	arena arena
	pins  *pinSet

	// Readers load these; each has a cache line for itself.
	_        [64]byte
	children childTable
	_        [64]byte
	epoch    atomic.Uint64
	_        [64]byte
	drops    dropClock
	evicted  evictionLog
	_        [64]byte

	limbo    limbo
	dead     deadChains
	trees    map[treeKey]*tree
	treeList []*tree // by number
	lastTree *tree
	frames   uint64
	faults   uint64
	copies   uint64 // that hold anything
	held     [indexer.NumTiers]uint64
	distinct uint64
	stored   uint64
	chains   uint64
	revoked  uint64 // pins taken from readers that stalled
	ticks    uint32 // operations since the last reclamation

	scratch     []piece
	spans       []span
	tierScratch [indexer.NumTiers][]span
	marks       [maxChain / 64]uint64
}

type treeKey struct{ group, partition uint32 }

// tree is one (group, partition): only what is looked up once for each frame.
type tree struct {
	key    treeKey
	number uint32
	copies []ref // by slot
}

// OpenLane reserves the memory of a lane. Close gives it back.
func OpenLane(cfg LaneConfig) (*Lane, error) {
	return openLane(cfg, 0, newPinSet())
}

func openLane(cfg LaneConfig, id int, pins *pinSet) (*Lane, error) {
	if cfg.Reserve == 0 {
		cfg.Reserve = defaultReserve
	}
	if cfg.LimboLimit == 0 {
		cfg.LimboLimit = defaultLimbo
	}
	if cfg.EvictionLog == 0 {
		cfg.EvictionLog = defaultEvictionLog
	}
	l := &Lane{cfg: cfg, id: uint64(id), pins: pins, trees: map[treeKey]*tree{}}
	if err := l.arena.open(cfg.Reserve); err != nil {
		return nil, fmt.Errorf("open lane %d: %w", id, err)
	}
	l.evicted.init(cfg.EvictionLog)
	l.dead.init(cfg.EvictionLog)
	l.epoch.Store(1)
	l.drops.now.Store(2) // later than "never" in the table
	l.initTable()
	return l, nil
}

// Close gives all memory back. No reader may be in use.
func (l *Lane) Close() error {
	if err := l.arena.close(); err != nil {
		return fmt.Errorf("close lane %d: %w", l.id, err)
	}
	*l = Lane{cfg: l.cfg, id: l.id, pins: l.pins}
	return nil
}

func (l *Lane) treeOf(k treeKey) *tree {
	if t := l.lastTree; t != nil && t.key == k {
		return t
	}
	t := l.trees[k]
	if t == nil {
		t = &tree{key: k, number: uint32(len(l.treeList))}
		l.trees[k] = t
		l.treeList = append(l.treeList, t)
	}
	l.lastTree = t
	return t
}

func (l *Lane) copyOf(t *tree, s uint32) *copyRecord {
	if int(s) >= len(t.copies) {
		next := make([]ref, max(int(s)+1, len(t.copies)*3/2))
		copy(next, t.copies)
		t.copies = next
	}
	r := t.copies[s]
	if r == 0 {
		r = l.arena.alloc(copyUnits, forRuns)
		*(*copyRecord)(l.arena.at(r)) = copyRecord{pack(s, t.number)}
		t.copies[s] = r
	}
	return (*copyRecord)(l.arena.at(r))
}

// Apply applies one valid frame: one that a FrameBuilder made or Validate accepted.
// A frame that names unknown runs closes its copy and is reported to OnFault.
func (l *Lane) Apply(f indexer.Frame) {
	if l.ticks >= reclaimTicks {
		l.reclaim(reclaimBudget)
	}
	t := l.treeOf(treeKey{lo(f[1]), hi(f[1])})
	c := l.copyOf(t, lo(f[2]))
	var op indexer.Op
	for off := f.Next(0, &op); off != 0; off = f.Next(off, &op) {
		l.ticks++
		if op.Kind == indexer.OpClear && op.Tier == indexer.AllTiers {
			c[2] &^= copyClosed
		}
		if c.closed() {
			l.faults++
			return
		}
		if err := l.applyOp(t, c, &op); err != nil {
			l.clearCopy(t, c, indexer.AllTiers.Mask())
			c[2] |= copyClosed
			l.fault(f, err)
			return
		}
	}
	l.frames++
	l.audited()
}

func (l *Lane) fault(f indexer.Frame, err error) {
	l.faults++
	if l.cfg.OnFault != nil {
		h := f.Header()
		l.cfg.OnFault(h, fmt.Errorf("slot %d of group %d, partition %d, sequence %d: %w",
			h.Slot, h.Group, h.Partition, h.Sequence, err))
	}
}

func (l *Lane) applyOp(t *tree, c *copyRecord, op *indexer.Op) error {
	// The worst that an operation can take: its content, a row or a piece for each
	// range, one more child table.
	need := uint64(len(op.Locals))*64 + uint64(op.NumRanges())*256 + l.tableBytes()
	if !l.arena.room(need) && !l.makeRoom(need) {
		return ErrMemory
	}
	switch op.Kind {
	case indexer.OpStore:
		return l.storeRun(t, c, op)
	case indexer.OpClear:
		l.clearCopy(t, c, op.Tier.Mask())
		return nil
	case indexer.OpDrop:
		l.drops.begin(t, c.slot())
		defer l.drops.end()
	}
	for i := range op.NumRanges() {
		if err := l.changeRange(t, c, op.Kind, op.Tier, op.Range(i)); err != nil {
			return err
		}
	}
	return nil
}

// makeRoom gives up what is kept for Explain alone and reports whether that is enough.
func (l *Lane) makeRoom(need uint64) bool {
	if !l.forgetDead() {
		return false
	}
	l.reclaim(reclaimBudget)
	return l.arena.room(need)
}

// Purge drops what a slot holds in all trees of a group and forgets its runs.
func (l *Lane) Purge(g indexer.GroupID, s indexer.Slot) {
	for _, t := range l.treeList {
		if t.key.group == uint32(g) && int(s) < len(t.copies) && t.copies[s] != 0 {
			c := l.copyOf(t, uint32(s))
			l.clearCopy(t, c, indexer.AllTiers.Mask())
			l.arena.release(t.copies[s], copyUnits, forRuns)
			t.copies[s] = 0
		}
	}
	l.evicted.forget(uint32(s))
}
