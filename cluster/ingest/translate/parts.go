package translate

import "github.com/kvcluster/kvcluster/indexer"

// partTable is the slot's partitions, in the order of their first use, and the
// frames of the open batch.
type partTable struct {
	list     []partRecord
	byID     map[indexer.PartitionID]uint32
	active   []uint32 // partitions that have a frame in this batch, in order
	builders []*indexer.FrameBuilder
}

type partRecord struct {
	id    indexer.PartitionID
	runs  int    // live
	wires uint32 // run numbers given out so far
	free  uint32 // records whose numbers may be used again
	frame uint32 // builder of the open batch + 1, 0 = none
}

// index returns the dense number of a partition.
func (p *partTable) index(id indexer.PartitionID) uint32 {
	if i, ok := p.byID[id]; ok {
		return i
	}
	if p.byID == nil {
		p.byID = map[indexer.PartitionID]uint32{}
	}
	i := uint32(len(p.list))
	p.byID[id] = i
	p.list = append(p.list, partRecord{id: id})
	return i
}

// builder returns the builder of a partition that has a frame.
func (p *partTable) builder(part uint32) *indexer.FrameBuilder {
	return p.builders[p.list[part].frame-1]
}

func (p *partTable) closeBatch() {
	for _, a := range p.active {
		p.list[a].frame = 0
	}
	p.active = p.active[:0]
}

// builder returns the frame of a partition in the open batch, begun if need be.
func (t *Translator) builder(part uint32) *indexer.FrameBuilder {
	p := &t.parts
	if p.list[part].frame == 0 {
		if len(p.active) == len(p.builders) {
			p.builders = append(p.builders, new(indexer.FrameBuilder))
		}
		p.active = append(p.active, part)
		p.list[part].frame = uint32(len(p.active))
		p.builders[len(p.active)-1].Reset(indexer.Header{
			Group: t.cfg.Group, Partition: p.list[part].id, Slot: t.cfg.Slot,
			Life: t.cfg.Life, Tenure: t.cfg.Tenure, Sequence: t.seq,
		})
	}
	return p.builder(part)
}

// endBatch makes the runs that this batch emptied reusable, at once or when the
// batch has been acknowledged.
func (r *runTable) endBatch(parts *partTable, seq uint64, wait bool) {
	for i := r.batch; i < len(r.retired); i++ {
		r.retired[i].seq = seq
	}
	r.batch = len(r.retired)
	if !wait {
		r.acknowledge(parts, seq)
	}
}

// abandonBatch forgets the runs that this batch emptied: their numbers are lost.
func (r *runTable) abandonBatch() { r.retired = r.retired[:r.batch] }

func (r *runTable) acknowledge(parts *partTable, seq uint64) {
	n := 0
	for n < r.batch && r.retired[n].seq <= seq {
		run := r.retired[n].run
		p := &parts.list[r.list[run].part]
		r.list[run].next = p.free
		p.free = run
		n++
	}
	r.retired = append(r.retired[:0], r.retired[n:]...)
	r.batch -= n
}
