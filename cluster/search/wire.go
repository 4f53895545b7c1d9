package search

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// wireVersion of both messages.
const wireVersion = 1

// errWire wraps what is wrong with a message.
var errWire = errors.New("malformed message")

type kind uint8

const (
	kindMatch   kind = iota + 1
	kindExplain      // one slot
	kindPath         // q.Locals are sequence hashes
	kindPrefix       // rows
	numKinds    = iota + 1
)

// question is what a request asks about one segment.
type question struct {
	kind   kind
	index  uint64 // map index of the asker: the answer comes from a view at or above it
	query  indexer.Query
	before uint64        // kindPath: the sequence hash before the first
	slot   indexer.Slot  // kindExplain
	rows   []indexer.Row // kindPrefix: the slots, and how far their tier walk gets
}

const requestHead = 6 * 8

// appendQuestion appends a request.
func appendQuestion(b []byte, q *question) []byte {
	arg := q.before
	if q.kind == kindExplain {
		arg = uint64(q.slot)
	}
	b = appendWords(b,
		wireVersion|uint64(q.kind)<<8|uint64(q.query.Group)<<32,
		uint64(q.query.Partition)|uint64(len(q.query.Locals))<<32,
		q.index, q.query.Anchor, arg, uint64(len(q.rows)))
	b = appendWords(b, q.query.Locals...)
	for _, r := range q.rows {
		b = appendWords(b, uint64(r.Slot)|uint64(r.Depth)<<32)
	}
	return b
}

// decodeQuestion reads a request into q, whose memory it uses again.
func decodeQuestion(b []byte, q *question) error {
	if len(b) < requestHead || len(b)%8 != 0 {
		return fmt.Errorf("%w: request of %d bytes", errWire, len(b))
	}
	head, part := word(b, 0), word(b, 1)
	hashes, rows := int(part>>32), word(b, 5)
	switch {
	case uint8(head) != wireVersion:
		return fmt.Errorf("%w: request of version %d, this node speaks %d", errWire, uint8(head), wireVersion)
	case kind(head>>8) == 0 || kind(head>>8) >= numKinds || head&0xffff0000 != 0:
		return fmt.Errorf("%w: request of kind %d", errWire, uint8(head>>8))
	case rows > catalog.MaxSlots || len(b) != requestHead+8*(hashes+int(rows)):
		return fmt.Errorf("%w: %d bytes for %d hashes and %d rows", errWire, len(b), hashes, rows)
	}
	q.kind, q.index = kind(head>>8), word(b, 2)
	q.query.Group, q.query.Partition, q.query.Anchor = indexer.GroupID(head>>32), indexer.PartitionID(part), word(b, 3)
	q.before, q.slot = 0, 0
	switch arg := word(b, 4); {
	case q.kind == kindPath:
		q.before = arg
	case q.kind == kindExplain && arg < catalog.MaxSlots:
		q.slot = indexer.Slot(arg)
	case arg != 0:
		return fmt.Errorf("%w: argument %d of kind %d", errWire, arg, q.kind)
	}
	if q.kind != kindPrefix && rows != 0 {
		return fmt.Errorf("%w: rows in a request of kind %d", errWire, q.kind)
	}
	q.query.Locals, q.rows = q.query.Locals[:0], q.rows[:0]
	b = b[requestHead:]
	for i := range hashes {
		q.query.Locals = append(q.query.Locals, word(b, i))
	}
	b = b[8*hashes:]
	for i := range int(rows) {
		w := word(b, i)
		if uint32(w) >= catalog.MaxSlots {
			return fmt.Errorf("%w: slot %d", errWire, uint32(w))
		}
		q.rows = append(q.rows, indexer.Row{Slot: indexer.Slot(uint32(w)), Depth: uint32(w >> 32)})
	}
	return nil
}

func word(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }

func appendWords(b []byte, ws ...uint64) []byte {
	for _, w := range ws {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// reader takes words off a message. What is missing reads as 0 and sets bad.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) word() uint64 {
	if len(r.b) < 8 {
		r.b, r.bad = nil, true
		return 0
	}
	w := word(r.b, 0)
	r.b = r.b[8:]
	return w
}

// take returns n words as bytes; nil when there are fewer.
func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.b)/8) {
		r.b, r.bad = nil, true
		return nil
	}
	b := r.b[:8*n]
	r.b = r.b[8*n:]
	return b
}

// appendSetHead appends the head of a set of n slots up to top, and reports in which form
// it is shorter: bits, width words of them, or (0) a list.
func appendSetHead(b []byte, n int, top indexer.Slot) (_ []byte, width int) {
	if width = int(top)/64 + 1; n == 0 || (n+1)/2 < width {
		width = 0
	}
	return appendWords(b, uint64(n)|uint64(width)<<32), width
}

// appendSet appends a set of slots.
func appendSet(b []byte, slots []indexer.Slot) []byte {
	var top indexer.Slot
	for _, s := range slots {
		top = max(top, s)
	}
	b, width := appendSetHead(b, len(slots), top)
	at := len(b)
	if width > 0 {
		b = appendZeros(b, 8*width)
		for _, s := range slots {
			setBit(b[at:], s)
		}
		return b
	}
	for _, s := range slots {
		b = binary.LittleEndian.AppendUint32(b, uint32(s))
	}
	return appendZeros(b, -(len(b)-at)&7)
}

func appendZeros(b []byte, n int) []byte {
	b = slices.Grow(b, n)
	b = b[:len(b)+n]
	clear(b[len(b)-n:])
	return b
}

// setBit sets bit s of little-endian words.
func setBit(b []byte, s indexer.Slot) { b[s/8] |= 1 << (s % 8) }

// set reads a set of slots that are not in seen, and adds them to it.
func (r *reader) set(dst []indexer.Slot, seen *bitSet) []indexer.Slot {
	head := r.word()
	n, width := uint64(uint32(head)), head>>32
	if n > catalog.MaxSlots || width > catalog.MaxSlots/64 {
		r.bad = true
		return dst
	}
	if width == 0 {
		body := r.take((n + 1) / 2)
		for i := 0; body != nil && i < int(n); i++ {
			s := binary.LittleEndian.Uint32(body[4*i:])
			if !seen.add(s) {
				r.bad = true
				return dst
			}
			dst = append(dst, indexer.Slot(s))
		}
		return dst
	}
	before := len(dst)
	body := r.take(width)
	for i := range len(body) / 8 {
		w := word(body, i)
		r.bad = r.bad || seen[i]&w != 0
		seen[i] |= w
		for ; w != 0; w &= w - 1 {
			dst = append(dst, indexer.Slot(64*i+bits.TrailingZeros64(w)))
		}
	}
	r.bad = r.bad || uint64(len(dst)-before) != n
	return dst
}

// bitSet has a bit for each slot that there can be.
type bitSet [catalog.MaxSlots / 64]uint64

func (s *bitSet) reset() { clear(s[:]) }

// add reports whether x is a slot and new.
func (s *bitSet) add(x uint32) bool {
	if x >= catalog.MaxSlots || s[x/64]&(1<<(x%64)) != 0 {
		return false
	}
	s[x/64] |= 1 << (x % 64)
	return true
}

// slotSet is a set of slots that is emptied cheaply when it is small.
type slotSet struct {
	words []uint64
	list  []indexer.Slot // in the order in which they came
}

func (s *slotSet) reset() {
	for _, x := range s.list {
		s.words[x/64] = 0
	}
	s.list = s.list[:0]
}

func (s *slotSet) has(x indexer.Slot) bool {
	return int(x/64) < len(s.words) && s.words[x/64]&(1<<(x%64)) != 0
}

// add reports whether x is new.
func (s *slotSet) add(x indexer.Slot) bool {
	if s.has(x) {
		return false
	}
	for int(x/64) >= len(s.words) {
		s.words = append(s.words, 0)
	}
	s.words[x/64] |= 1 << (x % 64)
	s.list = append(s.list, x)
	return true
}
