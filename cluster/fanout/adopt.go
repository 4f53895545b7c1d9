package fanout

import (
	"errors"
	"fmt"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// ErrAdopt: a slot cannot be continued; it has to start over.
var ErrAdopt = errors.New("slot not adopted")

// Up reports whether something may be sent to a node.
func (f *Fanout) Up(peer string) bool { return f.peers.get(peer).up() }

// Adopt goes on with a life that another reader, or an earlier tenure of this one, wrote
// (rule T2). have are the copies at each node that are equal to what is continued, with
// the labels that were seen there after the older tenures had been fenced off; at is, by
// partition, the sequence up to which it is complete. Copies at other owners are filled
// from these. It fails when a partition would have no copy that can be written to. A
// node without equal copies that has been fenced off too is among have, with none.
//
// It must be called before the first frame of the slot under this tenure.
func (f *Fanout) Adopt(l copywire.SlotLife, tenure uint64, have map[string][]copywire.Label, at []uint64) error {
	t := f.table.Load()
	s := t.slots[keyOf(l.Group, l.Slot)]
	if s == nil || s.name != l || s.tenure != tenure || len(at) != t.partitions {
		return fmt.Errorf("%w: %v under tenure %d is not this node's", ErrAdopt, l, tenure)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.retired || s.fresh {
		return fmt.Errorf("%w: %v under tenure %d has begun or ended", ErrAdopt, l, tenure)
	}
	missing := newSet(t.partitions)
	for p := range t.partitions {
		missing.add(p)
	}
	for name, labels := range have {
		pe := f.peers.get(name)
		if len(labels) == 0 || !pe.up() {
			continue
		}
		c := s.copiesOf(pe)
		carried := newSet(t.partitions)
		if pe.self() {
			carried.addAll(f.cfg.Owner.CarryLocal(l, tenure, labels))
		} else {
			if !f.sendControl(c.sess, copywire.AppendCarry(nil, l, tenure, labels)) {
				continue
			}
			for _, x := range labels {
				carried.add(int(x.Partition))
			}
		}
		c.open.or(carried)
		c.had.or(carried)
		missing.andNot(carried)
	}
	if !missing.empty() {
		return fmt.Errorf("%w: %v: nobody can be reached who has partition %d, one of %d", ErrAdopt, l, missing.list()[0], missing.count())
	}
	for p := range t.partitions {
		s.touched.add(p)
	}
	copy(s.label, at)
	s.fresh = true
	f.voidOthers(t, s)
	f.heedUnfenced(t, have)
	f.wakeUp()
	return nil
}

// voidOthers closes the copies that do not go on: those who have them may still count on
// the earlier reader and answer from them, and nothing may be acknowledged without them
// as long as they do. The caller holds the slot's lock.
func (f *Fanout) voidOthers(t *table, s *slot) {
	for _, pe := range f.peers.all() {
		rest := t.routed(pe).clone()
		if rest.empty() || !pe.up() {
			continue
		}
		c := s.copiesOf(pe)
		rest.andNot(c.open)
		c.had.or(rest)
		if !pe.self() {
			s.void(c, rest)
			continue
		}
		for _, p := range rest.list() {
			f.cfg.Owner.BeginLocal(s.name, s.tenure, p)
		}
	}
}

// heedUnfenced has nothing acknowledged for a while if some owner could not be fenced off
// and cannot be told now: it may count on the earlier reader, which may be itself, and
// answer from what that sent until its map is too old for reads.
func (f *Fanout) heedUnfenced(t *table, fenced map[string][]copywire.Label) {
	for _, pe := range f.peers.all() {
		if _, ok := fenced[pe.name]; !ok && !pe.up() && !t.routed(pe).empty() {
			f.unfenced.Store(f.clock() + int64(f.cfg.Linger))
			return
		}
	}
}

// addAll adds partitions.
func (s set) addAll(parts []indexer.PartitionID) {
	for _, p := range parts {
		s.add(int(p))
	}
}
