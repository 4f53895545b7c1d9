package tree

import (
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// Explain implements indexer.Reader. It is exact when the lane is at rest; while the
// lane is at work on the slot, blocks may be shown as they were or as they will be.
func (r *Reader) Explain(q indexer.Query, s indexer.Slot, dst []indexer.BlockState) []indexer.BlockState {
	at := len(dst)
	dst = append(dst, make([]indexer.BlockState, len(q.Locals))...)
	out := dst[at:]
	l := r.lane(q.Group, q.Partition)
	for range maxAttempts {
		clear(out)
		r.enter(l)
		done := r.explain(l, q, uint32(s), out)
		if r.leave() && done {
			break
		}
	}
	return dst
}

// trail is where the path of a query has been in the tree: of each chain in one version,
// dead or alive, how many leading blocks are on the path and what lies above.
type trail map[chainVersion]extent

type chainVersion struct {
	chain   ref
	version uint32
}

type extent struct{ base, n uint32 }

func (r *Reader) explain(l *Lane, q indexer.Query, s uint32, out []indexer.BlockState) bool {
	on := trail{}
	if !r.explainLive(l, q, s, out, on) || !r.followDead(l, q, on) {
		return false
	}
	l.stretches(s, func(chain ref, version, from, to uint32) {
		e := on[chainVersion{chain, version}]
		for i := from; i < min(to, e.n); i++ {
			b := &out[e.base+i]
			b.Evicted = b.Tiers == 0
		}
	})
	return r.ok()
}

// explainLive follows the query down the tree and says what is there.
func (r *Reader) explainLive(l *Lane, q indexer.Query, s uint32, out []indexer.BlockState, on trail) bool {
	c, ok := r.root(l, q.Group, q.Partition, q.Anchor)
	if c == 0 || !ok {
		return ok
	}
	on[chainVersion{c, hi(load(&l.arena.header(c)[hLength]))}] = extent{}
	fork, base := uint32(0), uint32(0)
	for locals := q.Locals; len(locals) > 0; locals = q.Locals[base:] {
		child, n, version, ok := r.child(l, c, fork, locals, childHash(c, fork, locals[0]))
		if !ok {
			return false
		}
		if child == 0 {
			break
		}
		if !r.explainChain(l, child, s, out[base:int(base)+n]) {
			return false
		}
		on[chainVersion{child, version}] = extent{base, uint32(n)}
		base += uint32(n)
		c, fork = child, uint32(n)
	}
	return r.ok()
}

// followDead adds the dead chains that were on the path.
func (r *Reader) followDead(l *Lane, q indexer.Query, on trail) bool {
	return r.graves(l, func(w []uint64) bool {
		self, above := chainVersion{ref(w[0]), hi(w[0])}, chainVersion{ref(w[1]), hi(w[1])}
		fork, kind, blocks := uint32(uint16(w[2])), uint32(w[2]>>32), w[deadHead:]
		if kind == kindRoot {
			if w[1] == pack(uint32(q.Group), uint32(q.Partition)) && blocks[0] == q.Anchor {
				on[self] = extent{}
			}
			return r.ok()
		}
		e, ok := on[above]
		if !ok {
			return r.ok()
		}
		same := extent{e.base + fork, 0}
		if kind == kindTail {
			same = extent{e.base, min(e.n, fork)}
		}
		if fork <= e.n {
			same.n += uint32(commonPrefix(blocks, q.Locals[e.base+fork:]))
		}
		if same.n > 0 {
			on[self] = same
		}
		return r.ok()
	})
}

func (r *Reader) explainChain(l *Lane, c ref, s uint32, out []indexer.BlockState) bool {
	h := l.arena.header(c)
	set := func(from, to uint32, t indexer.Tier) {
		for i := from; i < min(to, uint32(len(out))); i++ {
			out[i].Tiers |= t.Mask()
		}
	}
	for i := range out {
		out[i].Known = true
	}
	if !r.coverage(l, h, uint32(len(out)), true) {
		return false
	}
	if int(s/64) < len(r.next) && r.next[s/64]>>(s%64)&1 != 0 {
		set(0, uint32(len(out)), indexer.Device)
	}
	for _, e := range r.part {
		if hi(e) == s {
			set(0, lo(e), indexer.Device)
		}
	}
	if list := ref(load(&l.arena.side(c)[3])); list != 0 {
		if !r.ok() {
			return false
		}
		b := l.rowList(list)
		n := lo(load(&b[0]))
		if !r.ok() {
			return false
		}
		rows := unsafe.Slice((*uint64)(unsafe.Add(unsafe.Pointer(b), rowHead*8)), n)
		for i := range rows {
			if e := load(&rows[i]); e != 0 && hi(e) == s && r.ok() {
				r.explainIslands(l, lo(e), set)
			}
		}
	}
	rows, ok := r.tierRows(l, h)
	for i := range rows {
		e := load(&rows[i])
		if e == 0 || hi(e) != s || !r.ok() {
			continue
		}
		counts := *l.arena.word(ref(e), 0)
		if !r.ok() {
			return false
		}
		spans := unsafe.Slice((*span)(unsafe.Add(l.arena.at(ref(e)), tierHead*4)), spanCount(counts))
		for t := indexer.Host; t < indexer.NumTiers; t++ {
			n := uint32(uint16(counts >> (16 * (t - 1))))
			for _, sp := range spans[:n] {
				set(sp.from(), sp.to(), t)
			}
			spans = spans[n:]
		}
	}
	return ok && r.ok()
}

func (r *Reader) explainIslands(l *Lane, value uint32, set func(from, to uint32, t indexer.Tier)) {
	if value&manyFlag == 0 {
		set(span(value).from(), span(value).to(), indexer.Device)
		return
	}
	n := *(*uint16)(l.arena.at(ref(value &^ manyFlag)))
	if !r.ok() {
		return
	}
	for _, sp := range unsafe.Slice((*span)(unsafe.Add(l.arena.at(ref(value&^manyFlag)), 4)), n) {
		set(sp.from(), sp.to(), indexer.Device)
	}
}

// AppendPath implements indexer.SequenceReader.
func (r *Reader) AppendPath(dst []uint64, q indexer.SequenceQuery) []uint64 {
	at := len(dst)
	l := r.lane(q.Group, q.Partition)
	for range maxAttempts {
		r.enter(l)
		out, done := r.appendPath(l, dst[:at], q)
		if r.leave() && done {
			return out
		}
	}
	return dst[:at]
}

func (r *Reader) appendPath(l *Lane, dst []uint64, q indexer.SequenceQuery) ([]uint64, bool) {
	c, ok := r.root(l, q.Group, q.Partition, q.Anchor)
	if c == 0 || !ok {
		return dst, ok
	}
	fork, before, first := uint32(0), q.Before, q.Anchor == 0
	next := func(local uint64) uint64 { return blockhash.NextSequence(before, local, first) }
	for left := q.Sequence; len(left) > 0; {
		var content []uint64
		child := ref(load(&l.arena.side(c)[0]))
		for ; child != 0; child = ref(load(&l.arena.side(child)[0]) >> 32) {
			if !r.ok() {
				return dst, false
			}
			h := l.arena.header(child)
			if load(&h[hParent]) != packParent(c, fork, kindChain) {
				continue
			}
			locals, _, ok := r.content(l, h)
			if !ok {
				return dst, false
			}
			if len(locals) > 0 && next(locals[0]) == left[0] {
				content = locals
				break
			}
		}
		if content == nil {
			break
		}
		n := 0
		for n < min(len(content), len(left)) && next(content[n]) == left[n] {
			before, first = left[n], false
			dst = append(dst, content[n])
			n++
		}
		left = left[n:]
		c, fork = child, uint32(n)
	}
	return dst, r.ok()
}
