package owner

import (
	"iter"

	"github.com/kvcluster/kvcluster/indexer"
)

// Mark is to be taken before a tree is read, for Unreadable.
func (o *Owner) Mark() uint64 { return o.version.Load() }

// Unreadable appends the slots, of those that lives yields with their life, whose copy
// of the partition could not be read here: it was not open all the time from the mark
// since until now, a newer tenure of the slot is known than that of the copy, or who
// writes it may have gone on without this node (rule Q5). A tenure above index, that of
// the map under which the answer is given, is one whose takeover that map does not show. It
// must be called after the tree was read, with a mark taken before.
func (o *Owner) Unreadable(dst []indexer.Slot, since, index uint64, g indexer.GroupID, p indexer.PartitionID, lives iter.Seq2[indexer.Slot, uint64]) []indexer.Slot {
	// Carriers first: a place in this list that is given to another session meanwhile
	// still has the one that is over.
	now := currency{o: o, carriers: *o.carriers.Load(), since: since, index: index}
	var slots []*slot
	var chunks []*[chunkSlots]record
	if gr := at(&o.table.groups, int(g)); gr != nil {
		if c := at(&gr.columns, int(p)); c != nil {
			if k, sl := c.chunks.Load(), gr.slots.Load(); k != nil && sl != nil {
				slots, chunks = *sl, *k
			}
		}
	}
	for s, life := range lives {
		if int(s) >= len(slots) || int(s/chunkSlots) >= len(chunks) || slots[s] == nil || chunks[s/chunkSlots] == nil ||
			slots[s].life.Load() != life || !now.readable(slots[s], &chunks[s/chunkSlots][s%chunkSlots]) {
			dst = append(dst, s)
		}
	}
	return dst
}

// currency asks once for each session whether it is current, and has been since a
// mark.
type currency struct {
	o        *Owner
	carriers []*carrier
	since    uint64
	index    uint64    // of the map
	known    [64]uint8 // by carrier: 0 not asked, 1 no, 2 yes
}

func (n *currency) readable(sl *slot, r *record) bool {
	st := r.state.Load()
	// Who has fenced off the tenure of a copy need not count on it until it is carried on
	// or filled under the new one.
	tenure := r.tenure.Load()
	if tenure != sl.tenure.Load() && !n.o.cfg.broken.fencedOpen || tenure > n.index {
		return false
	}
	if phase(st) != open || versionOf(st) > n.since && !n.o.cfg.broken.noMark {
		return false
	}
	return n.current(carrierOf(st))
}

func (n *currency) current(id uint32) bool {
	switch {
	case id == localCarrier:
		return true
	case int(id) >= len(n.carriers) || n.carriers[id] == nil:
		return false
	case int(id) >= len(n.known):
		return n.o.current(n.carriers[id], n.since)
	}
	if n.known[id] == 0 {
		n.known[id] = 1
		if n.o.current(n.carriers[id], n.since) {
			n.known[id] = 2
		}
	}
	return n.known[id] == 2
}

// current reports that whatever the carrier acknowledged without us, it did later, and
// that this was so since the mark. Two things can have changed since: the link has
// become silent, and then it is asked first, so that it was not while the tree was
// read; or the silence has ended, and then what it hid may have been read.
func (o *Owner) current(c *carrier, since uint64) bool {
	return o.cfg.Links.Current(c.session) && !c.over.Load() && !c.silent() && (c.resumedAt.Load() <= since || o.cfg.broken.noMark)
}
