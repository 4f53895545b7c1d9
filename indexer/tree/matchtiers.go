package tree

import (
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

// tierWalk is the scratch of the walk through the lower tiers. The walk of every slot
// goes down the path once, so the chains are taken in order and each row of a chain
// moves one slot on.
type tierWalk struct {
	number []uint32 // by slot: 1 + its walker, 0 = none
	walk   []walker
}

// walker is how far one slot has come.
type walker struct {
	slot  uint32
	tier  uint32 // that it is in
	depth [indexer.NumTiers]uint32
	pos   uint32
}

func (w *tierWalk) find(slot uint32) *walker {
	if int(slot) >= len(w.number) || w.number[slot] == 0 {
		return nil
	}
	return &w.walk[w.number[slot]-1]
}

func (w *tierWalk) start(slot, depth uint32) *walker {
	if int(slot) >= len(w.number) {
		w.number = append(w.number, make([]uint32, int(slot)+1-len(w.number))...)
	}
	w.walk = append(w.walk, walker{slot: slot, tier: uint32(indexer.Host), pos: depth})
	w.number[slot] = uint32(len(w.walk))
	k := &w.walk[len(w.walk)-1]
	k.depth[indexer.Device] = depth
	return k
}

func (w *tierWalk) reset() {
	for i := range w.walk {
		w.number[w.walk[i].slot] = 0
	}
	w.walk = w.walk[:0]
}

// walkTiers continues in the lower tiers where the device tier ended; a slot without
// a device score starts at the root.
func (r *Reader) walkTiers(l *Lane, out *indexer.Scores) bool {
	w := &r.tiers
	defer w.reset()
	for _, row := range out.Rows {
		// A slot comes twice only when it was changing, which is found out later.
		if k := w.find(uint32(row.Slot)); k == nil {
			w.start(uint32(row.Slot), row.Depth)
		}
	}
	for i := range r.hops {
		p := &r.hops[i]
		h := l.arena.header(p.chain)
		rows, ok := r.tierRows(l, h)
		if !ok {
			return false
		}
		for j := range rows {
			e := load(&rows[j])
			if e == 0 {
				continue
			}
			if !r.ok() {
				return false
			}
			k := w.find(hi(e))
			if k == nil {
				if i > 0 {
					continue
				}
				k = w.start(hi(e), 0)
			}
			if k.pos >= p.base && k.pos < p.base+p.extent && !r.advance(l, k, ref(e), p) {
				return false
			}
		}
		if hi(load(&h[hLength])) != p.version || !r.ok() {
			return false
		}
	}
	for i := range w.walk {
		k := &w.walk[i]
		for t := k.tier; t < indexer.NumTiers; t++ {
			k.depth[t] = k.pos
		}
		if k.pos > k.depth[indexer.Device] {
			out.Tiers = append(out.Tiers, indexer.TierRow{Slot: indexer.Slot(k.slot), Depth: k.depth})
		}
	}
	return true
}

func (r *Reader) tierRows(l *Lane, h *header) (rows []uint64, ok bool) {
	c := ref(load(&h[hContent]) >> 32)
	if c == 0 || !r.ok() {
		return nil, r.ok()
	}
	b := l.rowList(c)
	n := lo(load(&b[0]))
	if !r.ok() {
		return nil, false
	}
	return unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(b), rowHead*8)), n), true
}

// advance moves a slot on within one chain, tier after tier.
func (r *Reader) advance(l *Lane, k *walker, record ref, p *hop) bool {
	counts := *l.arena.word(record, 0)
	if !r.ok() {
		return false
	}
	spans := unsafe.Slice((*span)(unsafe.Add(l.arena.at(record), tierHead*4)), spanCount(counts))
	at := k.pos - p.base
	for t := uint32(indexer.Host); t < indexer.NumTiers; t++ {
		n := uint32(uint16(counts >> (16 * (t - 1))))
		if t >= k.tier {
			k.tier = t
			for _, sp := range spans[:n] {
				if sp.from() <= at && at < sp.to() {
					at = min(sp.to(), p.extent)
					break
				}
			}
			k.pos = p.base + at
			if at == p.extent {
				return true // on in the next chain, in the same tier
			}
			k.depth[t] = k.pos
		}
		spans = spans[n:]
	}
	return true
}
