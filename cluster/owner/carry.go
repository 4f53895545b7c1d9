package owner

import (
	"context"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// carry gives copies to the session that another one, or this node, wrote before: those
// that are whole and have the label that the sender has seen. Before it sends this it has
// fenced off all older tenures here (Adopt).
func (w *worker) carry(ctx context.Context, m *copywire.Message) error {
	g, h, err := w.claim(ctx, m)
	if g == nil {
		return err
	}
	for _, l := range m.Labels {
		if !w.o.carryRecord(g, m.Slot, l, w.id, m.Tenure) {
			h.Partition = l.Partition
			w.o.report(h, w.carrier, "given to another reader, but it is not as that one has seen it")
		}
	}
	return nil
}

// carryRecord makes a copy a carrier's.
func (o *Owner) carryRecord(g *group, s indexer.Slot, l copywire.Label, carrier uint32, tenure uint64) bool {
	r := g.record(l.Partition, s)
	if r == nil {
		return false
	}
	before := r.state.Load()
	if !whole(before) || r.tenure.Load() != l.Tenure || r.sequence.Load() != l.Sequence {
		return false
	}
	if !r.state.CompareAndSwap(before, makeState(open, carrier, o.version.Add(1))|before&written) {
		return false
	}
	r.tenure.Store(tenure)
	return true
}

// CarryLocal makes copies here this node's own to write, which another one, or an earlier
// tenure of this one, wrote before. Adopt has been called. It returns those with the
// labels that the caller has seen; the others are to be filled.
func (o *Owner) CarryLocal(l copywire.SlotLife, tenure uint64, labels []copywire.Label) (out []indexer.PartitionID) {
	for _, x := range labels {
		if o.local(l, tenure, x.Partition) == nil {
			continue
		}
		if g, _ := o.table.slot(l.Group, l.Slot); o.carryRecord(g, l.Slot, x, localCarrier, tenure) {
			out = append(out, x.Partition)
		}
	}
	return out
}
