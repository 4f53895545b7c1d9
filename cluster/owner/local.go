package owner

import (
	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// The copies of slots that this node reads itself are written by its fanout, which
// says here what a session would say on a link. None of these calls waits, so before
// this node writes what another one wrote before, Adopt is called.

// OpenLocal opens copies of a fresh life here, which are empty. Those that have had
// content in this life, or are fenced off, stay closed: NoteLocal tells.
func (o *Owner) OpenLocal(l copywire.SlotLife, tenure uint64, partitions []indexer.PartitionID) {
	for _, p := range partitions {
		if r := o.local(l, tenure, p); r != nil && !o.openRecord(r, localCarrier, tenure) {
			o.count.ignored[ignoredReopen].Add(1)
		}
	}
}

// local returns the record of a copy if this node may write it.
func (o *Owner) local(l copywire.SlotLife, tenure uint64, p indexer.PartitionID) *record {
	if !inBounds(l.Group, l.Slot) || p >= maxPartitions {
		o.count.ignored[ignoredMalformed].Add(1)
		return nil
	}
	g, sl := o.table.slot(l.Group, l.Slot)
	if !sl.begin(g, l.Slot, l.Life) {
		o.count.ignored[ignoredLife].Add(1)
		return nil
	}
	if _, ok := sl.raise(tenure); !ok {
		o.count.ignored[ignoredTenure].Add(1)
		return nil
	}
	return o.table.ensureRecord(g, p, l.Slot)
}

// BeginLocal says that a copy here is about to be filled: it is closed until EndLocal.
// It reports whether it may be.
func (o *Owner) BeginLocal(l copywire.SlotLife, tenure uint64, p indexer.PartitionID) bool {
	r := o.local(l, tenure, p)
	if r == nil {
		return false
	}
	_, sl := o.table.slot(l.Group, l.Slot)
	sl.outdate(tenure)
	r.state.Store(makeState(filling, localCarrier, 0) | written)
	return true
}

// EndLocal says that the index has applied the whole content of the fill, up to
// sequence, and opens the copy. It reports false if the copy stays closed: a frame of
// the fill was refused, or the copy was taken over.
func (o *Owner) EndLocal(l copywire.SlotLife, tenure uint64, p indexer.PartitionID, sequence uint64) bool {
	r := o.local(l, tenure, p)
	if r == nil {
		return false
	}
	s := r.state.Load()
	if phase(s) != filling || carrierOf(s) != localCarrier {
		return false
	}
	r.tenure.Store(tenure)
	r.sequence.Store(sequence)
	if !r.state.CompareAndSwap(s, makeState(filled, localCarrier, 0)|written) {
		return false
	}
	o.count.fills.Add(1)
	return o.open(r, localCarrier)
}

// CloseLocal closes copies here.
func (o *Owner) CloseLocal(l copywire.SlotLife, tenure uint64, partitions []indexer.PartitionID) {
	for _, p := range partitions {
		if sl, r := o.table.find(l.Group, p, l.Slot); r != nil && sl.life.Load() == l.Life && sl.tenure.Load() <= tenure {
			r.close(localCarrier)
		}
	}
}

// NoteLocal is called before a frame is written to the index here. It reports whether
// that is allowed, and if so the frame counts as part of the copy. The caller must see
// to it that Config.FlushLocal waits for it from this moment on.
func (o *Owner) NoteLocal(h indexer.Header) bool {
	sl, r := o.table.find(h.Group, h.Partition, h.Slot)
	if r == nil || sl.life.Load() != h.Life {
		o.count.ignored[ignoredLife].Add(1)
		return false
	}
	if sl.tenure.Load() != h.Tenure {
		o.count.ignored[ignoredTenure].Add(1)
		return false
	}
	s := r.state.Load()
	if phase(s) != open || carrierOf(s) != localCarrier {
		o.count.ignored[ignoredClosed].Add(1)
		return false
	}
	if s&written == 0 {
		r.touch(s)
	}
	r.sequence.Store(h.Sequence)
	return true
}

// CursorLocal keeps the cursor of a slot that this node reads.
func (o *Owner) CursorLocal(c copywire.Cursor) {
	if gr := at(&o.table.groups, int(c.Group)); gr != nil {
		if sl := at(&gr.slots, int(c.Slot)); sl != nil {
			o.noteCursor(gr, sl, c)
		}
	}
}
