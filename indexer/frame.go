package indexer

import (
	"errors"
	"fmt"
)

// Frame is all operations of one engine batch for one (slot, partition), in one
// flat piece of memory: the same words go over a local ring or over a link. It is
// applied atomically with respect to failure: all of it or nothing.
//
//	word 0   words (32) | operations (32)         low half first
//	word 1   group (32) | partition (32)
//	word 2   slot (32) | format version (32)
//	word 3   life
//	word 4   tenure
//	word 5   sequence
//	then the operations, each one head word and its body:
//
//	head     kind (8) | tier (8) | parent kind (8) | mark (8) | n (32)
//	store    run (32) | start (16) | tag (16)
//	         parent word: anchor, or parent run (32) | parent position (32)
//	         n local hashes, then n engine hashes
//	         with a note: its two words
//	claim    n ranges
//	drop     n ranges
//	clear    n = 0
//
// A store with start > 0 extends its run at its end; its parent is position
// start-1 of the run itself and the parent word is 0. The store that begins a run may
// mark it (mark 1: a tag; 3: a tag and a note); without a mark the tag is 0.
type Frame []uint64

const (
	frameHeaderWords = 6
	// FrameVersion is the version of the frame format, in word 2.
	FrameVersion = 1
	// MaxFrameWords bounds a frame from outside: 64 MiB.
	MaxFrameWords = 8 << 20

	markTag   = 1 // in the mark byte of a store
	markNote  = 2
	noteWords = 2
)

// Mark is what whoever names a run wants back with its dump. It is opaque to an index,
// which keeps it with the run and looks at nothing of it.
type Mark struct {
	Set  bool
	Tag  uint16
	Note [2]uint64 // zero = none, which costs nothing
}

// ErrFrame is wrapped by every error about a frame that breaks the format.
var ErrFrame = errors.New("malformed frame")

// OpKind is the kind of a canonical operation.
type OpKind uint8

// The canonical operations.
const (
	OpStore OpKind = 1 + iota // new or extended run: blocks with their hashes
	OpClaim                   // a further tier of blocks already stored
	OpDrop                    // one tier of blocks gone
	OpClear                   // everything of the slot in this partition, one tier or all
)

// Op is a view of one operation; its slices point into the frame.
type Op struct {
	Kind    OpKind
	Tier    Tier // AllTiers only in OpClear
	tag     uint16
	Run     Run
	Start   uint32 // store: first position; 0 = new run
	marked  bool
	Parent  Parent // store with Start == 0
	Locals  []uint64
	Engines []uint64
	ranges  []uint64
	note    *[2]uint64
}

// Marked reports whether a store marks its run.
func (o *Op) Marked() bool { return o.marked }

// Mark returns the mark of a store.
func (o *Op) Mark() Mark {
	m := Mark{Set: o.marked, Tag: o.tag}
	if o.note != nil {
		m.Note = *o.note
	}
	return m
}

// NumRanges returns the number of ranges of a claim or drop.
func (o *Op) NumRanges() int { return len(o.ranges) }

// Range returns range i of a claim or drop.
func (o *Op) Range(i int) Range { return Range(o.ranges[i]) }

// Header is the identity of a frame.
type Header struct {
	Group     GroupID
	Partition PartitionID
	Slot      Slot
	Life      uint64
	Tenure    uint64
	Sequence  uint64
}

// Header returns the frame's identity. The frame must have a header.
func (f Frame) Header() Header {
	return Header{
		Group: GroupID(f[1]), Partition: PartitionID(f[1] >> 32), Slot: Slot(f[2]),
		Life: f[3], Tenure: f[4], Sequence: f[5],
	}
}

// NumOps returns the number of operations.
func (f Frame) NumOps() int { return int(f[0] >> 32) }

// Next decodes the operation at word offset off (0 = first) into op and returns
// the offset of the next one, or 0 after the last. The frame must be valid:
// made by FrameBuilder or accepted by Validate.
func (f Frame) Next(off int, op *Op) int {
	if off == 0 {
		off = frameHeaderWords
	}
	if off >= len(f) {
		return 0
	}
	head := f[off]
	n := int(head >> 32)
	*op = Op{Kind: OpKind(head), Tier: Tier(head >> 8)}
	off++
	switch op.Kind {
	case OpStore:
		w := f[off]
		op.Run, op.Start = Run(w), uint32(uint16(w>>32))
		op.Parent = unpackParent(ParentKind(head>>16), f[off+1])
		off += 2
		op.Locals = f[off : off+n : off+n]
		op.Engines = f[off+n : off+2*n : off+2*n]
		off += 2 * n
		if mark := head >> 24 & 0xff; mark != 0 {
			op.marked, op.tag = true, uint16(w>>48)
			if mark&markNote != 0 {
				op.note = (*[2]uint64)(f[off:])
				off += noteWords
			}
		}
	case OpClaim, OpDrop:
		op.ranges = f[off : off+n : off+n]
		off += n
	}
	return off
}

func unpackParent(k ParentKind, w uint64) Parent {
	if k == ParentName {
		return Parent{Kind: ParentName, Run: Run(w), Pos: uint32(w >> 32)}
	}
	return Parent{Kind: ParentRoot, Anchor: w}
}

// Validate checks a frame that came from outside: lengths, kinds, tiers, ranges.
// It does not know which runs exist. Errors wrap ErrFrame.
func (f Frame) Validate() error {
	if len(f) < frameHeaderWords || len(f) > MaxFrameWords {
		return fmt.Errorf("%w: %d words", ErrFrame, len(f))
	}
	if int(uint32(f[0])) != len(f) {
		return fmt.Errorf("%w: header says %d words, have %d", ErrFrame, uint32(f[0]), len(f))
	}
	if v := f[2] >> 32; v != FrameVersion {
		return fmt.Errorf("%w: format version %d, want %d", ErrFrame, v, FrameVersion)
	}
	off, ops := frameHeaderWords, 0
	for ; off < len(f); ops++ {
		next, err := f.validateOp(off)
		if err != nil {
			return fmt.Errorf("%w: operation %d: %w", ErrFrame, ops, err)
		}
		off = next
	}
	if ops != f.NumOps() {
		return fmt.Errorf("%w: header says %d operations, have %d", ErrFrame, f.NumOps(), ops)
	}
	return nil
}

func (f Frame) validateOp(off int) (next int, err error) {
	head := f[off]
	kind, tier, n := OpKind(head), Tier(head>>8), int(head>>32)
	if tier >= NumTiers && !(kind == OpClear && tier == AllTiers) {
		return 0, fmt.Errorf("tier %d", tier)
	}
	parent, mark := ParentKind(head>>16), head>>24&0xff
	if mark > markTag|markNote || mark == markNote || kind != OpStore && (parent != 0 || mark != 0) {
		return 0, fmt.Errorf("head %#x", head)
	}
	off++
	left := len(f) - off
	switch kind {
	case OpStore:
		if n == 0 || left < 2 || n > (left-2)/2 {
			return 0, fmt.Errorf("store of %d blocks in %d words", n, left)
		}
		start := int(uint16(f[off] >> 32))
		if tag := f[off] >> 48; tag != 0 && mark == 0 {
			return 0, fmt.Errorf("tag %d without a mark", tag)
		}
		if start+n > MaxRunLength {
			return 0, fmt.Errorf("store reaches position %d", start+n)
		}
		if parent > ParentName {
			return 0, fmt.Errorf("parent kind %d", parent)
		}
		if start > 0 && (parent != 0 || f[off+1] != 0 || mark != 0) {
			return 0, fmt.Errorf("extension with a parent or a mark")
		}
		end := off + 2 + 2*n
		if mark&markNote != 0 {
			if len(f)-end < noteWords {
				return 0, fmt.Errorf("note beyond the end")
			}
			if f[end]|f[end+1] == 0 {
				return 0, fmt.Errorf("empty note")
			}
			end += noteWords
		}
		return end, nil
	case OpClaim, OpDrop:
		if n == 0 || n > left {
			return 0, fmt.Errorf("%d ranges in %d words", n, left)
		}
		for _, w := range f[off : off+n] {
			if r := Range(w); r.From()+r.Len() > MaxRunLength {
				return 0, fmt.Errorf("range reaches position %d", r.From()+r.Len())
			}
		}
		return off + n, nil
	case OpClear:
		if n != 0 {
			return 0, fmt.Errorf("clear with a body of %d", n)
		}
		return off, nil
	}
	return 0, fmt.Errorf("kind %d", kind)
}

// FrameBuilder assembles one frame at a time in memory that it reuses. It belongs
// to one goroutine.
type FrameBuilder struct {
	words []uint64
	ops   int
	open  int // offset of the head word of an open claim or drop, 0 = none
	store int // offset of the head word of the latest store
}

// Reset starts a new frame.
func (b *FrameBuilder) Reset(h Header) {
	if cap(b.words) < frameHeaderWords {
		b.words = make([]uint64, frameHeaderWords, 512)
	}
	b.words = b.words[:frameHeaderWords]
	b.words[0] = 0
	b.words[1] = uint64(h.Group) | uint64(h.Partition)<<32
	b.words[2] = uint64(h.Slot) | FrameVersion<<32
	b.words[3], b.words[4], b.words[5] = h.Life, h.Tenure, h.Sequence
	b.ops, b.open = 0, 0
}

// NumOps returns the number of operations so far.
func (b *FrameBuilder) NumOps() int { return b.ops }

// Store appends a store and returns the two columns for the caller to fill: n
// local and n engine hashes. The columns are valid until the next call on b.
// start > 0 extends run; parent is then ignored. n must be at least 1 and
// start+n at most MaxRunLength.
func (b *FrameBuilder) Store(tier Tier, run Run, start uint32, parent Parent, n int) (locals, engines []uint64) {
	b.open = 0
	b.ops++
	pk, pw := parent.Kind, parent.Anchor
	if pk == ParentName {
		pw = uint64(parent.Run) | uint64(parent.Pos)<<32
	}
	if start > 0 {
		pk, pw = ParentRoot, 0
	}
	at := len(b.words)
	b.store = at
	b.grow(3 + 2*n)
	b.words[at] = uint64(OpStore) | uint64(tier)<<8 | uint64(pk)<<16 | uint64(n)<<32
	b.words[at+1] = uint64(run) | uint64(start)<<32
	b.words[at+2] = pw
	return b.words[at+3 : at+3+n : at+3+n], b.words[at+3+n : at+3+2*n : at+3+2*n]
}

// Mark marks the run that the latest Store began. It comes right after it, when the
// columns have been filled.
func (b *FrameBuilder) Mark(m Mark) {
	if !m.Set {
		return
	}
	b.words[b.store] |= markTag << 24
	b.words[b.store+1] |= uint64(m.Tag) << 48
	if m.Note != [2]uint64{} {
		b.words[b.store] |= markNote << 24
		b.words = append(b.words, m.Note[0], m.Note[1])
	}
}

// Drop appends a range to the drop of tier that is being built, or begins one.
func (b *FrameBuilder) Drop(tier Tier, r Range) { b.addRange(OpDrop, tier, r) }

// Claim appends a range to the claim of tier that is being built, or begins one.
func (b *FrameBuilder) Claim(tier Tier, r Range) { b.addRange(OpClaim, tier, r) }

func (b *FrameBuilder) addRange(kind OpKind, tier Tier, r Range) {
	want := uint64(kind) | uint64(tier)<<8
	if b.open == 0 || b.words[b.open]&0xffff != want {
		b.open = len(b.words)
		b.ops++
		b.words = append(b.words, want)
	}
	b.words[b.open] += 1 << 32
	b.words = append(b.words, uint64(r))
}

// Clear appends a clear of one tier or of AllTiers.
func (b *FrameBuilder) Clear(tier Tier) {
	b.open = 0
	b.ops++
	b.words = append(b.words, uint64(OpClear)|uint64(tier)<<8)
}

// Frame seals and returns the frame; it is valid until the next Reset.
func (b *FrameBuilder) Frame() Frame {
	b.words[0] = uint64(len(b.words)) | uint64(b.ops)<<32
	return b.words
}

func (b *FrameBuilder) grow(n int) {
	at := len(b.words)
	if at+n > cap(b.words) {
		next := make([]uint64, at, max(2*cap(b.words), at+n))
		copy(next, b.words)
		b.words = next
	}
	b.words = b.words[:at+n]
}
