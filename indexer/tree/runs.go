package tree

import (
	"slices"
	"unsafe"

	"github.com/kvcluster/kvcluster/indexer"
)

// A piece is a stretch of live names of one run that lie side by side in one chain
// and have the same tiers:
//
//	0  chain ref (32) | offset in the chain (16) | names (16)
//	1  position in the run (16) | tiers (8) | flags (8) | own engine hashes ref (32)
//
// A run record is the one piece of a run, or with flagList a list of pieces in order
// of position: pieces (32) | room (32) in word 0, the list's ref in place of the
// engine hashes. Tiers 0 is no run. Dead names have no piece.
type piece [2]uint64

const flagList = 1 << 24

func makePiece(c ref, off, n, pos uint32, tiers indexer.TierMask, engines ref) piece {
	return piece{uint64(c) | uint64(off)<<32 | uint64(n)<<48, uint64(pos) | uint64(tiers)<<16 | uint64(engines)<<32}
}

func (p piece) chain() ref              { return ref(p[0]) }
func (p piece) off() uint32             { return uint32(uint16(p[0] >> 32)) }
func (p piece) n() uint32               { return uint32(p[0] >> 48) }
func (p piece) pos() uint32             { return uint32(uint16(p[1])) }
func (p piece) end() uint32             { return p.pos() + p.n() }
func (p piece) tiers() indexer.TierMask { return indexer.TierMask(p[1] >> 16) }
func (p piece) engines() ref            { return ref(p[1] >> 32) }
func (p piece) isList() bool            { return p[1]&flagList != 0 }
func (p piece) part(from, to uint32) piece {
	return makePiece(p.chain(), p.off()+from-p.pos(), to-from, from, p.tiers(), p.engines())
}

func (p piece) withTiers(m indexer.TierMask) piece {
	p[1] = p[1]&^(0xff<<16) | uint64(m)<<16
	return p
}

// copyRecord is what one slot holds in one partition:
//
//	0  slot (32) | tree (32)
//	1  run directory ref (32) | its room in chunks (32)
//	2  runs with live names (32) | flags (32)
//	3  names with an alias somewhere (32), 0
//
// The directory has a word for each chunk of runs:
//
//	ref (32) | live runs (8) | has notes (8) | runs with a mark, a bit each (16)
//
// A chunk is 16 run records, then the tags of their marks in 16 bits each. Notes, which
// only runs in a namespace have, follow in two words each: the first one moves its
// chunk to where there is room for them.
type copyRecord [4]uint64

const (
	copyUnits  = 2
	chunkRuns  = 16
	tagUnits   = chunkRuns * 2 / unitBytes
	chunkUnits = chunkRuns + tagUnits
	notedUnits = chunkUnits + chunkRuns

	oneRun     = 1 << 32
	chunkNoted = 1 << 40
	markShift  = 48

	copyClosed = 1 << 32
)

func (c *copyRecord) slot() uint32     { return lo(c[0]) }
func (c *copyRecord) liveRuns() uint32 { return lo(c[2]) }
func (c *copyRecord) closed() bool     { return c[2]&copyClosed != 0 }

func (l *Lane) directory(c *copyRecord) []uint64 {
	return l.arena.words(ref(c[1]), int(hi(c[1])))
}

// findRun returns the record of a run with live names, or nil.
func (l *Lane) findRun(c *copyRecord, r uint32) *piece {
	k := r / chunkRuns
	if k >= hi(c[1]) {
		return nil
	}
	chunk := ref(*l.arena.word(ref(c[1]), int(k)))
	if chunk == 0 {
		return nil
	}
	p := (*piece)(l.arena.at(chunk + ref(r%chunkRuns)))
	if p[1] == 0 {
		return nil
	}
	return p
}

// unitsOf is the size of the chunk that a word of the directory names.
func unitsOf(word uint64) uint32 {
	if word&chunkNoted != 0 {
		return notedUnits
	}
	return chunkUnits
}

// tagOf is where the tag of run i of a chunk is.
func (l *Lane) tagOf(chunk ref, i uint32) *uint16 {
	return (*uint16)(unsafe.Add(l.arena.at(chunk+chunkRuns), i*2))
}

func (l *Lane) noteOf(chunk ref, i uint32) []uint64 {
	return l.arena.words(chunk+chunkUnits+ref(i), 2)
}

// setMark keeps the mark of a run that has none. It may move the records of the chunk.
func (l *Lane) setMark(c *copyRecord, r uint32, m indexer.Mark) {
	w, i := l.arena.word(ref(c[1]), int(r/chunkRuns)), r%chunkRuns
	if m.Note != [2]uint64{} && *w&chunkNoted == 0 {
		old, chunk := ref(*w), l.arena.alloc(notedUnits, forRuns)
		words := l.arena.words(chunk, notedUnits*2)
		clear(words[copy(words, l.arena.words(old, chunkUnits*2)):])
		l.arena.release(old, chunkUnits, forRuns)
		*w = *w&^(1<<32-1) | uint64(chunk) | chunkNoted
	}
	*l.tagOf(ref(*w), i) = m.Tag
	if *w&chunkNoted != 0 {
		copy(l.noteOf(ref(*w), i), m.Note[:])
	}
	*w |= 1 << (markShift + i)
}

// getMark is the mark of a run with live names.
func (l *Lane) getMark(c *copyRecord, r uint32) (m indexer.Mark) {
	w, i := *l.arena.word(ref(c[1]), int(r/chunkRuns)), r%chunkRuns
	if w>>(markShift+i)&1 == 0 {
		return m
	}
	m.Set, m.Tag = true, *l.tagOf(ref(w), i)
	if w&chunkNoted != 0 {
		copy(m.Note[:], l.noteOf(ref(w), i))
	}
	return m
}

// makeRun returns an empty record for a run that has none.
func (l *Lane) makeRun(c *copyRecord, r uint32, op *indexer.Op) *piece {
	k := r / chunkRuns
	if k >= hi(c[1]) {
		l.growDirectory(c, k+1)
	}
	w := l.arena.word(ref(c[1]), int(k))
	if lo(*w) == 0 {
		chunk := l.arena.alloc(chunkUnits, forRuns)
		clear(l.arena.words(chunk, chunkRuns*2))
		*w = uint64(chunk)
	}
	*w += oneRun
	if c[2]++; c.liveRuns() == 1 {
		l.copies++
	}
	if op.Marked() {
		l.setMark(c, r, op.Mark())
	}
	return (*piece)(l.arena.at(ref(*w) + ref(r%chunkRuns)))
}

func (l *Lane) growDirectory(c *copyRecord, chunks uint32) {
	old := l.directory(c)
	room := roundUp((max(chunks, chunks+uint32(len(old))/2)+1)/2) * 2
	next := l.arena.alloc(room/2, forRuns)
	words := l.arena.words(next, int(room))
	clear(words[copy(words, old):])
	l.freeDirectory(c)
	c[1] = pack(uint32(next), room)
}

func (l *Lane) freeDirectory(c *copyRecord) {
	if n := hi(c[1]); n != 0 {
		l.arena.release(ref(c[1]), n/2, forRuns)
	}
	c[1] = 0
}

// dropRun forgets a run without live names.
func (l *Lane) dropRun(c *copyRecord, r uint32) {
	w := l.arena.word(ref(c[1]), int(r/chunkRuns))
	*(*piece)(l.arena.at(ref(*w) + ref(r%chunkRuns))) = piece{}
	*w &^= 1 << (markShift + r%chunkRuns)
	if *w -= oneRun; uint8(*w>>32) == 0 {
		l.arena.release(ref(*w), unitsOf(*w), forRuns)
		*w = 0
	}
	if c[2]--; c.liveRuns() == 0 {
		l.copies--
		l.freeDirectory(c)
	}
}

// pieces is a view of the pieces of a run.
func (l *Lane) pieces(p *piece) []piece {
	if p.isList() {
		return unsafe.Slice((*piece)(l.arena.at(p.engines())), lo(p[0]))
	}
	return unsafe.Slice(p, 1)
}

// setPieces replaces the pieces of a run, which are not none. They may not be a view.
func (l *Lane) setPieces(p *piece, pieces []piece) {
	n := uint32(len(pieces))
	if p.isList() {
		room := hi(p[0])
		if n <= room && (n > room/4 || room <= 4) && n > 1 {
			copy(unsafe.Slice((*piece)(l.arena.at(p.engines())), n), pieces)
			p[0] = pack(n, room)
			return
		}
		l.freeList(p)
	}
	if n == 1 {
		*p = pieces[0]
		return
	}
	room := roundUp(n + n/4)
	list := l.arena.alloc(room, forRuns)
	copy(unsafe.Slice((*piece)(l.arena.at(list)), n), pieces)
	*p = piece{pack(n, room), 0xf<<16 | flagList | uint64(list)<<32}
}

func (l *Lane) freeList(p *piece) {
	if p.isList() {
		l.arena.release(p.engines(), hi(p[0]), forRuns)
	}
}

// appendPiece adds a piece to the end of a run.
func (l *Lane) appendPiece(p *piece, next piece) {
	if p[1] == 0 {
		*p = next
		return
	}
	all := l.pieces(p)
	last := &all[len(all)-1]
	if joins(*last, next) {
		*last = joined(*last, next)
		return
	}
	if p.isList() && lo(p[0]) < hi(p[0]) {
		n := lo(p[0])
		p[0]++
		unsafe.Slice((*piece)(l.arena.at(p.engines())), n+1)[n] = next
		return
	}
	l.scratch = append(append(l.scratch[:0], all...), next)
	l.setPieces(p, l.scratch)
}

// joins reports whether b goes on where a ends.
func joins(a, b piece) bool {
	return a.chain() == b.chain() && a.off()+a.n() == b.off() && a.end() == b.pos() &&
		a.tiers() == b.tiers() && a.engines() == b.engines()
}

func joined(a, b piece) piece {
	a[0] += uint64(b.n()) << 48
	return a
}

// pieceAt returns the first piece that ends behind pos.
func pieceAt(pieces []piece, pos uint32) int {
	if len(pieces) <= 8 {
		for i := range pieces {
			if pieces[i].end() > pos {
				return i
			}
		}
		return len(pieces)
	}
	i, _ := slices.BinarySearchFunc(pieces, pos, func(p piece, pos uint32) int { return int(p.end()) - int(pos) - 1 })
	return i
}
