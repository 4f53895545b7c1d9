package search

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

type status uint8

const (
	statusOK       status = iota + 1
	statusNotOwner        // no owner of the partition in its view, at the answer's map index
	statusNotReady        // an owner whose copies this process has not filled yet
	numStatus      = iota + 1
)

// answer is what one owner says to a question. Its memory is used again.
type answer struct {
	status  status
	current bool          // the owner proved its map after it had read
	age     time.Duration // of the owner's map, in ms
	index   uint64        // map index under which it was read
	// unreadable are live slots of which the owner has no readable copy. Nothing that the
	// answer says about them counts.
	unreadable []indexer.Slot

	scores   indexer.Scores       // kindMatch
	slots    []indexer.Slot       // memory
	states   []indexer.BlockState // kindExplain: one for each block
	path     []uint64             // kindPath
	prefixes []indexer.Prefix     // kindPrefix: one for each row
}

// appendAnswer appends the answer to a question of a kind.
func appendAnswer(b []byte, k kind, a *answer) []byte {
	head := wireVersion | uint64(k)<<8 | uint64(a.status)<<16
	if a.current {
		head |= 1 << 24
	}
	head |= uint64(min(a.age.Milliseconds(), math.MaxUint32)) << 32
	b = appendWords(b, head, a.index)
	if a.status != statusOK {
		return b
	}
	b = appendSet(b, a.unreadable)
	switch k {
	case kindMatch:
		return appendScores(b, &a.scores)
	case kindExplain:
		b = appendWords(b, uint64(len(a.states)))
		for _, s := range a.states {
			x := byte(s.Tiers & (1<<indexer.NumTiers - 1))
			if s.Known {
				x |= 1 << 4
			}
			if s.Evicted {
				x |= 1 << 5
			}
			b = append(b, x)
		}
		for len(b)%8 != 0 {
			b = append(b, 0)
		}
	case kindPath:
		b = appendWords(appendWords(b, uint64(len(a.path))), a.path...)
	case kindPrefix:
		b = appendWords(b, uint64(len(a.prefixes)))
		for _, p := range a.prefixes {
			b = appendWords(b, uint64(p.Length)|uint64(p.Device)<<32, uint64(p.Host)|uint64(p.Lower)<<32)
		}
	}
	return b
}

// appendScores appends rows as a set of those that share the most common depth and a
// list of the others.
func appendScores(b []byte, s *indexer.Scores) []byte {
	common := commonDepth(s.Rows)
	shared, top := 0, indexer.Slot(0)
	for _, r := range s.Rows {
		if r.Depth == common {
			shared, top = shared+1, max(top, r.Slot)
		}
	}
	b = appendWords(b, uint64(common)|uint64(len(s.Rows)-shared)<<32, uint64(len(s.Tiers)))
	b, width := appendSetHead(b, shared, top)
	at := len(b)
	b = appendZeros(b, 8*width)
	for _, r := range s.Rows {
		if r.Depth == common && width > 0 {
			setBit(b[at:], r.Slot)
		} else if r.Depth == common {
			b = binary.LittleEndian.AppendUint32(b, uint32(r.Slot))
		}
	}
	b = appendZeros(b, -(len(b)-at)&7)
	for _, r := range s.Rows {
		if r.Depth != common {
			b = appendWords(b, uint64(r.Slot)|uint64(r.Depth)<<32)
		}
	}
	for _, t := range s.Tiers {
		b = appendWords(b, uint64(t.Slot)|uint64(t.Depth[0])<<32, uint64(t.Depth[1])|uint64(t.Depth[2])<<32, uint64(t.Depth[3]))
	}
	return b
}

// commonDepth returns the depth of most rows, if one has the majority.
func commonDepth(rows []indexer.Row) (d uint32) {
	votes := 0
	for _, r := range rows {
		switch {
		case votes == 0:
			d, votes = r.Depth, 1
		case r.Depth == d:
			votes++
		default:
			votes--
		}
	}
	return d
}

// decodeAnswer reads the answer to q into a, whose memory it uses again. seen is memory.
// An answer that does not fit the question is an error.
func decodeAnswer(b []byte, q *question, a *answer, seen *bitSet) error {
	r := reader{b: b}
	head := r.word()
	a.status, a.current, a.age = status(head>>16), head>>24&1 != 0, time.Duration(head>>32)*time.Millisecond
	a.index = r.word()
	a.unreadable, a.scores.Rows, a.scores.Tiers = a.unreadable[:0], a.scores.Rows[:0], a.scores.Tiers[:0]
	a.states, a.path, a.prefixes = a.states[:0], a.path[:0], a.prefixes[:0]
	if uint8(head) != wireVersion || kind(head>>8) != q.kind || a.status == 0 || a.status >= numStatus || uint8(head>>24) > 1 {
		return fmt.Errorf("%w: answer head %#x to a question of kind %d", errWire, head, q.kind)
	}
	if a.status == statusOK {
		seen.reset()
		a.unreadable = r.set(a.unreadable, seen)
		switch q.kind {
		case kindMatch:
			r.scores(q, a, seen)
		case kindExplain:
			r.states(q, a)
		case kindPath:
			n := r.word()
			hashes := r.take(n)
			if n > uint64(len(q.query.Locals)) {
				r.bad = true
			}
			for i := 0; i < len(hashes)/8; i++ {
				a.path = append(a.path, word(hashes, i))
			}
		case kindPrefix:
			n := r.word()
			if n != uint64(len(q.rows)) {
				r.bad = true
				break
			}
			for body := r.take(2 * n); len(body) > 0; body = body[16:] {
				x, y := word(body, 0), word(body, 1)
				p := indexer.Prefix{Length: uint32(x), Device: uint32(x >> 32), Host: uint32(y), Lower: uint32(y >> 32)}
				if p.Length > uint32(len(q.query.Locals)) || max(p.Device, p.Host, p.Lower) > p.Length {
					r.bad = true
				}
				a.prefixes = append(a.prefixes, p)
			}
		}
	}
	if r.bad || len(r.b) != 0 {
		return fmt.Errorf("%w: answer of %d bytes to a question of kind %d", errWire, len(b), q.kind)
	}
	return nil
}

// scores reads rows: every slot once, no depth beyond the question.
func (r *reader) scores(q *question, a *answer, seen *bitSet) {
	x, tiers := r.word(), r.word()
	common, others := uint32(x), x>>32
	deepest := uint32(len(q.query.Locals))
	seen.reset()
	a.slots = r.set(a.slots[:0], seen)
	r.bad = r.bad || len(a.slots) > 0 && (common == 0 || common > deepest)
	for _, s := range a.slots {
		a.scores.Rows = append(a.scores.Rows, indexer.Row{Slot: s, Depth: common})
	}
	for body := r.take(others); len(body) > 0; body = body[8:] {
		w := word(body, 0)
		d := uint32(w >> 32)
		if d == 0 || d > deepest || !seen.add(uint32(w)) {
			r.bad = true
			return
		}
		a.scores.Rows = append(a.scores.Rows, indexer.Row{Slot: indexer.Slot(uint32(w)), Depth: d})
	}
	if tiers > catalog.MaxSlots {
		r.bad = true
		return
	}
	seen.reset()
	for body := r.take(3 * tiers); len(body) > 0; body = body[24:] {
		x, y, z := word(body, 0), word(body, 1), word(body, 2)
		t := indexer.TierRow{Slot: indexer.Slot(uint32(x)), Depth: [indexer.NumTiers]uint32{uint32(x >> 32), uint32(y), uint32(y >> 32), uint32(z)}}
		for i := 1; i < len(t.Depth); i++ {
			r.bad = r.bad || t.Depth[i] < t.Depth[i-1]
		}
		if r.bad || z>>32 != 0 || t.Depth[len(t.Depth)-1] > deepest || !seen.add(uint32(t.Slot)) {
			r.bad = true
			return
		}
		a.scores.Tiers = append(a.scores.Tiers, t)
	}
}

func (r *reader) states(q *question, a *answer) {
	n := r.word()
	if n != uint64(len(q.query.Locals)) {
		r.bad = true
		return
	}
	body := r.take((n + 7) / 8)
	if body == nil {
		return
	}
	for _, x := range body[n:] {
		r.bad = r.bad || x != 0
	}
	for _, x := range body[:n] {
		r.bad = r.bad || x >= 1<<6
		a.states = append(a.states, indexer.BlockState{Tiers: indexer.TierMask(x & 15), Known: x&(1<<4) != 0, Evicted: x&(1<<5) != 0})
	}
}
