package tree

// Engine hashes are stored once, beside the content of a chain, while its holders
// agree on them. Names whose hashes differ have a column of their own, which the
// pieces that were cut out of one share:
//
//	0  first position in the run (16) | room (16) | pieces (32)
//	1  engine hashes[room]
const engineRef = 1 << 32

func columnUnits(room uint32) uint32 { return (1 + room + 1) / 2 }

// engineColumn is a view of a column, header included.
func (l *Lane) engineColumn(r ref) []uint64 {
	room := uint32(uint16(*l.arena.word(r, 0) >> 16))
	return l.arena.words(r, int(room)+1)
}

// ownEngines returns a column with the hashes of the names from pos on, which are
// about to be added to the run: the one of its last piece, if there is room.
func (l *Lane) ownEngines(p *piece, pos uint32, engines []uint64) (column ref, fresh bool) {
	n := uint32(len(engines))
	if p[1] != 0 {
		all := l.pieces(p)
		last := all[len(all)-1]
		if r := last.engines(); r != 0 && last.end() == pos {
			w := l.engineColumn(r)
			base, room := uint32(uint16(w[0])), uint32(len(w)-1)
			if at := pos - base; at+n <= room {
				copy(w[1+at:], engines)
				return r, false
			}
			// It grows by half, so that single blocks do not make columns.
			if hi(w[0]) == 1 && pos-base+n <= maxChain {
				next := l.newColumn(base, (pos-base+n)*3/2)
				copy(l.engineColumn(next)[1:], w[1:1+pos-base])
				copy(l.engineColumn(next)[1+pos-base:], engines)
				l.arena.release(r, columnUnits(room), forEngines)
				all[len(all)-1][1] = last[1]&0xffffffff | uint64(next)<<32
				return next, false
			}
		}
	}
	r := l.newColumn(pos, n)
	copy(l.engineColumn(r)[1:], engines)
	return r, true
}

func (l *Lane) newColumn(base, room uint32) ref {
	units := roundUp(columnUnits(room))
	r := l.arena.alloc(units, forEngines)
	*l.arena.word(r, 0) = uint64(base) | uint64(min(units*2-1, 0xffff))<<16 | engineRef
	return r
}

// useEngines counts a piece more or less on its column.
func (l *Lane) useEngines(p piece, more bool) {
	r := p.engines()
	if r == 0 {
		return
	}
	w := l.engineColumn(r)
	if more {
		w[0] += engineRef
		return
	}
	if w[0] -= engineRef; hi(w[0]) == 0 {
		l.arena.release(r, columnUnits(uint32(len(w)-1)), forEngines)
	}
}

// engineHashes is a view of the engine hashes of a piece.
func (l *Lane) engineHashes(p piece) []uint64 {
	if r := p.engines(); r != 0 {
		w := l.engineColumn(r)
		at := 1 + p.pos() - uint32(uint16(w[0]))
		return w[at : at+p.n()]
	}
	h := l.arena.header(p.chain())
	return l.arena.words(h.content()+0, int(h.capacity())*2)[h.capacity()+p.off():][:p.n()]
}
