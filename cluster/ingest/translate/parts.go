package translate

import "github.com/kvcluster/kvcluster/indexer"

// partTable is the slot's partitions, in the order of their first use, and the
// frames of the open batch.
type partTable struct {
	list   []partRecord
	byID   map[indexer.PartitionID]uint32
	active []uint32 // partitions that have a frame in this batch, in order
}

// maxParts bounds the partitions of one slot: run records keep 16 bits of them.
const maxParts = 1 << 16

type partRecord struct {
	id    indexer.PartitionID
	runs  uint32 // live
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
	if i == maxParts {
		panic("translate: a slot spreads over more than 65,536 partitions")
	}
	p.byID[id] = i
	p.list = append(p.list, partRecord{id: id})
	return i
}

func (p *partTable) closeBatch() {
	for _, a := range p.active {
		p.list[a].frame = 0
	}
	p.active = p.active[:0]
}

// builder returns the frame of a partition in the open batch, begun if need be.
func (t *Translator) builder(part uint32) *indexer.FrameBuilder {
	p, s := &t.parts, t.scratch
	if p.list[part].frame == 0 {
		if len(p.active) == len(s.builders) {
			s.builders = append(s.builders, new(indexer.FrameBuilder))
		}
		p.active = append(p.active, part)
		p.list[part].frame = uint32(len(p.active))
		seq := t.seq
		if t.heir != nil { // what the partition has already stays in its label
			seq = max(seq, t.heir.cursor(p.list[part].id))
		}
		s.builders[len(p.active)-1].Reset(indexer.Header{
			Group: t.cfg.Group, Partition: p.list[part].id, Slot: t.cfg.Slot,
			Life: t.cfg.Life, Tenure: t.cfg.Tenure, Sequence: seq,
		})
	}
	return s.builders[p.list[part].frame-1]
}

func (p *partTable) bytes() uint64 {
	return uint64(cap(p.list))*20 + uint64(len(p.byID))*16 + uint64(cap(p.active))*4
}
