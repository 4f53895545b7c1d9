package owner

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

const (
	maxGroups     = 1 << 16
	maxSlots      = catalog.MaxSlots
	maxPartitions = copywire.MaxPartitions
	// chunkSlots is how many slots get their records at once: 64 of 24 bytes.
	chunkSlots = 64
)

// table has a record for every copy that was ever opened here. It only grows, by
// replacing slices, so it is read without locks; records are words that are
// exchanged atomically.
type table struct {
	groups atomic.Pointer[[]*group]
	mu     sync.Mutex // growth
}

// group is one index group.
type group struct {
	id      indexer.GroupID
	slots   atomic.Pointer[[]*slot]
	columns atomic.Pointer[[]*column] // by partition; nil where no copy ever was
}

// column has the copies of one partition, by slot.
type column struct {
	chunks atomic.Pointer[[]*[chunkSlots]record]
}

// slot is what the copies of one slot have in common.
type slot struct {
	life    atomic.Uint64 // 0 = none
	retired atomic.Uint64 // lives up to it are over
	tenure  atomic.Uint64 // highest seen in this life
	keeps   atomic.Bool   // some copy may be kept
	mu      struct {
		sync.Mutex // also: changes of life
		cursor     copywire.Cursor
	}
}

// record is one copy: where it stands, and its label.
type record struct {
	state    atomic.Uint64
	tenure   atomic.Uint64
	sequence atomic.Uint64
}

// A state is phase (2 bits) | written (1) | kept (1) | carrier (20) | version (40).
type state = uint64

const (
	phaseMask = 3

	closed  = 0 // nothing is taken but Open and the beginning of a fill
	filling = 1 // a fill has begun; frames are not taken
	filled  = 2 // its content is written and not yet applied; frames are taken
	open    = 3

	// written: the copy has had content in this life.
	written = 1 << 2
	// kept: closed because the session that carried it is over. It has all that its label
	// says and nothing else, so whoever reads the slot next may go on with it.
	kept = 1 << 3

	carrierShift = 4
	carrierMask  = 1<<20 - 1
	versionShift = 24

	localCarrier = 1
)

func phase(s state) uint64     { return s & phaseMask }
func carrierOf(s state) uint32 { return uint32(s >> carrierShift & carrierMask) }
func versionOf(s state) uint64 { return s >> versionShift }

func makeState(phase uint64, carrier uint32, version uint64) state {
	return phase | uint64(carrier)<<carrierShift | version<<versionShift
}

func grown[T any](old *[]T, n int) []T {
	next := make([]T, n)
	if old != nil {
		copy(next, *old)
	}
	return next
}

func at[T any](p *atomic.Pointer[[]*T], i int) *T {
	s := p.Load()
	if s == nil || i >= len(*s) {
		return nil
	}
	return (*s)[i]
}

// ensure returns element i, which is made if it is not there. Growth is by doubling.
func ensure[T any](p *atomic.Pointer[[]*T], i int, fill func() *T) *T {
	if e := at(p, i); e != nil {
		return e
	}
	n := i + 1
	if s := p.Load(); s != nil {
		n = len(*s)
		for n <= i {
			n *= 2
		}
	}
	next := grown(p.Load(), n)
	next[i] = fill()
	p.Store(&next)
	return next[i]
}

// find returns the slot and the record of a copy; nil for both or the record alone if
// it never was.
func (t *table) find(g indexer.GroupID, p indexer.PartitionID, s indexer.Slot) (*slot, *record) {
	gr := at(&t.groups, int(g))
	if gr == nil {
		return nil, nil
	}
	sl := at(&gr.slots, int(s))
	if sl == nil {
		return nil, nil
	}
	return sl, gr.record(p, s)
}

func (g *group) record(p indexer.PartitionID, s indexer.Slot) *record {
	c := at(&g.columns, int(p))
	if c == nil {
		return nil
	}
	return c.record(s)
}

func (c *column) record(s indexer.Slot) *record {
	k := at(&c.chunks, int(s/chunkSlots))
	if k == nil {
		return nil
	}
	return &k[s%chunkSlots]
}

func inBounds(g indexer.GroupID, s indexer.Slot) bool { return g < maxGroups && s < maxSlots }

// slot returns the slot, which must be in bounds.
func (t *table) slot(g indexer.GroupID, s indexer.Slot) (*group, *slot) {
	if gr := at(&t.groups, int(g)); gr != nil {
		if sl := at(&gr.slots, int(s)); sl != nil {
			return gr, sl
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	gr := ensure(&t.groups, int(g), func() *group { return &group{id: g} })
	return gr, ensure(&gr.slots, int(s), func() *slot { return &slot{} })
}

// ensureRecord returns the record of a copy; partition and slot must be in bounds.
func (t *table) ensureRecord(g *group, p indexer.PartitionID, s indexer.Slot) *record {
	if r := g.record(p, s); r != nil {
		return r
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	c := ensure(&g.columns, int(p), func() *column { return &column{} })
	k := ensure(&c.chunks, int(s/chunkSlots), func() *[chunkSlots]record { return new([chunkSlots]record) })
	return &k[s%chunkSlots]
}

// ofSlot yields the records of a slot by partition.
func (g *group) ofSlot(s indexer.Slot) iter.Seq2[indexer.PartitionID, *record] {
	return func(yield func(indexer.PartitionID, *record) bool) {
		columns := g.columns.Load()
		if columns == nil {
			return
		}
		for p, c := range *columns {
			if c == nil {
				continue
			}
			if r := c.record(s); r != nil && !yield(indexer.PartitionID(p), r) {
				return
			}
		}
	}
}

// key names a copy.
type key struct {
	group     indexer.GroupID
	partition indexer.PartitionID
	slot      indexer.Slot
}

// all yields all records.
func (t *table) all() iter.Seq2[key, *record] {
	return func(yield func(key, *record) bool) {
		groups := t.groups.Load()
		if groups == nil {
			return
		}
		for _, g := range *groups {
			if g == nil || g.columns.Load() == nil {
				continue
			}
			for p, c := range *g.columns.Load() {
				if c == nil || c.chunks.Load() == nil {
					continue
				}
				for k, chunk := range *c.chunks.Load() {
					if chunk == nil {
						continue
					}
					for i := range chunk {
						if !yield(key{g.id, indexer.PartitionID(p), indexer.Slot(k*chunkSlots + i)}, &chunk[i]) {
							return
						}
					}
				}
			}
		}
	}
}

// close closes the copy if it is open, or being filled, by the carrier.
func (r *record) close(carrier uint32) bool {
	for {
		s := r.state.Load()
		if phase(s) == closed || carrierOf(s) != carrier {
			return false
		}
		if r.state.CompareAndSwap(s, s&written) {
			return true
		}
	}
}

// lapse closes the copy, which its carrier will not write to any more; an open one is
// kept for another, which is reported.
func (r *record) lapse(carrier uint32) bool {
	for {
		s := r.state.Load()
		if phase(s) == closed || carrierOf(s) != carrier {
			return false
		}
		next := s & written
		if phase(s) == open {
			next |= kept
		}
		if r.state.CompareAndSwap(s, next) {
			return next&kept != 0
		}
	}
}

// give gives up a copy that is kept.
func (r *record) give() {
	for {
		s := r.state.Load()
		if s&kept == 0 || r.state.CompareAndSwap(s, s&^kept) {
			return
		}
	}
}

// whole reports that the copy has all that its label says.
func whole(s state) bool { return phase(s) == open || s&kept != 0 }

// touch notes that the copy gets content. s is its state, loaded before.
func (r *record) touch(s state) {
	for phase(s) != closed && s&written == 0 && !r.state.CompareAndSwap(s, s|written) {
		s = r.state.Load()
	}
}

// begin makes the life the one of the slot if it is newer than what was here. It
// reports whether it is now. Number s of g is only given to a new life when what was
// here is purged (rule G2), so that nothing writes to the records meanwhile.
func (sl *slot) begin(g *group, s indexer.Slot, life uint64) bool {
	if sl.life.Load() == life && life != 0 {
		return true
	}
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if life <= sl.retired.Load() || life < sl.life.Load() {
		return false
	}
	if life > sl.life.Load() {
		sl.forget(g, s)
		sl.life.Store(life)
	}
	return true
}

// forget ends the life of the slot. Called with sl.mu.
func (sl *slot) forget(g *group, s indexer.Slot) {
	sl.life.Store(0)
	for _, r := range g.ofSlot(s) {
		r.state.Store(0)
		r.tenure.Store(0)
		r.sequence.Store(0)
	}
	sl.tenure.Store(0)
	sl.mu.cursor = copywire.Cursor{}
}

// end retires the life, and reports whether what the index has of the slot is to go:
// it is not if the slot has a newer life.
func (sl *slot) end(g *group, s indexer.Slot, life uint64) bool {
	sl.mu.Lock()
	defer sl.mu.Unlock()
	if life > sl.retired.Load() {
		sl.retired.Store(life)
	}
	if sl.life.Load() > life {
		return false
	}
	sl.forget(g, s)
	return true
}

// raise lets the tenure rise. It reports whether it is allowed to write (none above it
// is known), and the highest one before.
func (sl *slot) raise(tenure uint64) (before uint64, ok bool) {
	for {
		before = sl.tenure.Load()
		if tenure <= before {
			return before, tenure == before
		}
		if sl.tenure.CompareAndSwap(before, tenure) {
			return before, true
		}
	}
}
