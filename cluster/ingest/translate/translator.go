package translate

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

const (
	defaultMaxOrphanBlocks = 1 << 16
	defaultMaxTainted      = 1 << 16
)

// Translator turns the events of one slot into frames. It belongs to one
// goroutine; nothing in it is safe for concurrent use.
type Translator struct {
	blocks  blockMap
	scratch *Scratch
	seq     uint64
	open    bool // between Begin and End
	refused bool
	pending [indexer.NumTiers]pendingRange
	taint   map[uint64]struct{}
	copies  copyCounts
	stats   Stats

	runs   runTable
	parts  partTable
	spaces spaceTable
	pool   orphanPool
	shedAt uint32 // unit that the shed policy looks at next, going down
	shedNo uint16 // its passes so far
	cfg    Config
	heir   *heir // until every partition has been caught up with
	loose  map[uint64]struct{}
}

var _ Interface = (*Translator)(nil)

// New returns an empty translator. It panics if cfg.Partition is nil.
func New(cfg Config) *Translator {
	if cfg.Partition == nil {
		panic("translate: Config.Partition is nil")
	}
	if cfg.MaxOrphanBlocks <= 0 {
		cfg.MaxOrphanBlocks = defaultMaxOrphanBlocks
	}
	if cfg.MaxTainted <= 0 {
		cfg.MaxTainted = defaultMaxTainted
	}
	if cfg.MaxBlocks <= 0 || cfg.MaxBlocks > maxHeld {
		cfg.MaxBlocks = maxHeld
	}
	t := &Translator{cfg: cfg, scratch: cfg.Scratch, taint: map[uint64]struct{}{}}
	if t.scratch == nil {
		t.scratch = NewScratch()
	}
	t.blocks.init(cfg.Memory, t.scratch)
	t.runs.init(cfg.Memory)
	t.spaces.init(cfg.Lora, cfg.Salt)
	t.pool.init(cfg.MaxOrphanBlocks)
	t.copies.init(cfg.CountCopies)
	return t
}

// Close gives the memory back. The translator must not be used afterwards.
func (t *Translator) Close() {
	t.blocks.reset()
	t.runs.close()
	t.pool = orphanPool{}
}

// Begin opens a batch.
func (t *Translator) Begin(sequence uint64) {
	if t.open {
		panic("translate: Begin inside a batch")
	}
	t.open, t.seq = true, sequence
	if t.heir != nil && sequence > t.heir.last {
		t.heir = nil // every partition has been caught up with
	}
}

// End closes the batch. Every frame is offered to emit even if an earlier one
// failed; the errors are joined. After an error the run numbers emptied in this
// batch are not used again before the next clear, since an owner may not know
// that they are free.
func (t *Translator) End(emit func(indexer.Frame) error) error {
	t.mustBeOpen()
	t.open = false
	var errs []error
	for _, p := range t.parts.active {
		if err := emit(t.builder(p).Frame()); err != nil {
			errs = append(errs, fmt.Errorf("frame of partition %d, sequence %d: %w", t.parts.list[p].id, t.seq, err))
		}
	}
	t.parts.closeBatch()
	t.blocks.trimUnits()
	if len(errs) == 0 {
		t.runs.endBatch(&t.parts, t.seq, t.cfg.AwaitAck)
	} else {
		t.runs.abandonBatch()
	}
	return errors.Join(errs...)
}

// Acknowledge says that every owner has applied the frames up to and including
// sequence, so that run numbers emptied by them may be used again (rule N4). It
// has an effect only with Config.AwaitAck.
func (t *Translator) Acknowledge(sequence uint64) { t.runs.acknowledge(&t.parts, sequence) }

// Lookup says what is known of a hash. A hash that is held and tainted counts as held.
func (t *Translator) Lookup(engine uint64) HashState {
	if t.blocks.find(engine) != 0 {
		return HashHeld
	}
	if _, ok := t.taint[engine]; ok {
		return HashTainted
	}
	if t.pool.has(engine) {
		return HashOrphan
	}
	return HashUnknown
}

// Stats returns a snapshot.
func (t *Translator) Stats() Stats {
	s := t.stats
	s.Mapped = uint64(t.blocks.len())
	s.Runs = uint64(t.runs.live)
	s.Orphans = uint64(t.pool.len())
	s.Tainted = uint64(len(t.taint))
	s.Loose = uint64(len(t.loose))
	s.Refused = t.refused
	s.Bytes = uint64(unsafe.Sizeof(*t)) + t.blocks.bytes() + t.runs.bytes() + t.parts.bytes() + t.pool.bytes() + 16*uint64(len(t.taint)+len(t.copies.extra))
	return s
}

func (t *Translator) mustBeOpen() {
	if !t.open {
		panic("translate: event outside a batch")
	}
}

func (t *Translator) tainted(h uint64) bool {
	if len(t.taint) == 0 {
		return false
	}
	_, ok := t.taint[h]
	return ok
}

// taintHash marks a hash for the life of the slot. What waits below it in the pool
// would be stored under a tainted hash, so it is tainted as well.
func (t *Translator) taintHash(h uint64) {
	work := []uint64{h}
	for len(work) > 0 {
		h := work[len(work)-1]
		work = work[:len(work)-1]
		t.taint[h] = struct{}{}
		t.pool.remove(h)
		t.copies.forget(h)
		for c, ok := t.pool.firstChild(h); ok; c, ok = t.pool.firstChild(h) {
			t.pool.remove(c)
			work = append(work, c)
		}
	}
}

// checkTaint refuses the slot when too many of its hashes are tainted.
func (t *Translator) checkTaint(out *Outcome) {
	if len(t.taint) <= t.cfg.MaxTainted {
		return
	}
	t.clearAll()
	t.refused = true
	t.taint = map[uint64]struct{}{}
	out.Err = fmt.Errorf("%w: more than %d hashes contradict each other", ErrRefused, t.cfg.MaxTainted)
}

func (t *Translator) count(out *Outcome) {
	s := &t.stats
	s.Stored += uint64(out.Stored)
	s.Claimed += uint64(out.Claimed)
	s.Trimmed += uint64(out.Trimmed)
	s.Attached += uint64(out.Attached)
	s.Orphaned += uint64(out.Orphaned)
	s.Forgotten += uint64(out.Forgotten)
	s.Dropped += uint64(out.Dropped)
	s.Unknown += uint64(out.Unknown)
	s.Uncredited += uint64(out.Uncredited)
	s.OrphansLost += uint64(out.OrphansLost)
	s.Shed += uint64(out.Shed)
	if out.Err != nil {
		s.Rejected++
	}
}
