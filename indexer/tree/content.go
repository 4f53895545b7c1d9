package tree

// newChain makes a chain below a place and publishes it.
func (l *Lane) newChain(at place, hash uint32, locals, engines []uint64) ref {
	n := uint32(len(locals))
	capacity := roundUp(n)
	content := l.arena.alloc(capacity, forContent)
	w := l.arena.words(content, int(capacity)*2)
	copy(w, locals)
	copy(w[capacity:], engines)

	c := l.arena.allocChain()
	h, side := l.arena.header(c), l.arena.side(c)
	// Nobody sees the chain before it is in the table, except that a reader may still
	// hold the ref of a chain that was here: not before reclamation let it go.
	store(&h[hContent], uint64(content))
	store(&h[hLength], packLength(n, capacity, l.nextVersion()))
	store(&h[hParent], packParent(at.chain, at.off, kindChain))
	store(&h[hCoverage], 0)
	for i := range numCuts {
		store(&h[hCuts+i], 0)
	}
	side[2] = 0
	store(&side[3], 0)
	l.link(c, at, hash)
	l.chains++
	l.stored += uint64(n)
	return c
}

// link enters a chain among the children of its parent.
func (l *Lane) link(c ref, at place, hash uint32) {
	parent, ps, side := l.arena.header(at.chain), l.arena.side(at.chain), l.arena.side(c)
	first := ps.firstChild()
	store(&side[0], uint64(first)<<32)
	store(&side[1], 0)
	if first != 0 {
		fs := l.arena.side(first)
		store(&fs[1], pack(uint32(c), hi(fs[1])))
	}
	store(&ps[0], pack(uint32(c), hi(ps[0])))
	store(&ps[1], ps[1]+1<<32)
	if at.off > ps.lastFork() {
		ps.setLast(at.off)
	}
	store(&parent[hCoverage], parent[hCoverage]|filterBit(hash))
	l.publish(c, hash)
}

// unlink takes a chain out from among the children of its parent.
func (l *Lane) unlink(c ref) {
	h, side := l.arena.header(c), l.arena.side(c)
	at := place{h.parent(), h.fork()}
	l.unpublish(c, childHash(at.chain, at.off, *l.arena.word(h.content(), 0)))
	parent, ps := l.arena.header(at.chain), l.arena.side(at.chain)
	next, prev := side.nextSibling(), side.prevSibling()
	if prev != 0 {
		s := l.arena.side(prev)
		store(&s[0], pack(lo(s[0]), uint32(next)))
	} else {
		store(&ps[0], pack(uint32(next), hi(ps[0])))
	}
	if next != 0 {
		s := l.arena.side(next)
		store(&s[1], pack(uint32(prev), hi(s[1])))
	}
	store(&ps[1], ps[1]-1<<32)
	switch n := ps.children(); {
	case n == 0:
		ps.setLast(0)
		store(&parent[hCoverage], parent[hCoverage]&0xffffffff)
	case at.off == ps.lastFork() && n <= 32:
		last := uint32(0)
		for s := ps.firstChild(); s != 0; s = l.arena.side(s).nextSibling() {
			last = max(last, l.arena.header(s).fork())
		}
		ps.setLast(last)
	}
}

// rootOf returns the root of a tree, making it if needed.
func (l *Lane) rootOf(t *tree, anchor uint64) ref {
	k := t.key
	hash := rootHash(k.group, k.partition, anchor)
	if r := l.findRoot(k, anchor, hash); r != 0 {
		return r
	}
	c := l.arena.allocChain()
	h, side := l.arena.header(c), l.arena.side(c)
	store(&h[hContent], 0)
	store(&h[hLength], packLength(0, 0, l.nextVersion()))
	store(&h[hParent], packParent(0, 0, kindRoot))
	store(&h[hCoverage], 0)
	store(&h[hCuts], pack(k.group, k.partition))
	store(&h[hCuts+1], anchor)
	store(&h[hCuts+2], uint64(t.number))
	for i := 3; i < numCuts; i++ {
		store(&h[hCuts+i], 0)
	}
	for i := range side {
		store(&side[i], 0)
	}
	l.publish(c, hash)
	return c
}

// mayAppend reports whether a chain may grow for the slot: only for the one that
// holds all of it, while nobody else does. Else every other full holder would turn
// into a cut.
func (l *Lane) mayAppend(h *header, s uint32) bool {
	length := h.length()
	mine := false
	for i := hCuts; i < hCuts+numCuts; i++ {
		if w := h[i]; w != 0 && lo(w) == length {
			if hi(w) != s {
				return false
			}
			mine = true
		}
	}
	b := l.cover(h)
	if b == nil {
		return mine
	}
	for i := range b.count() {
		if w := *b.cut(i); w != 0 && lo(w) == length {
			if hi(w) != s {
				return false
			}
			mine = true
		}
	}
	switch b.bits() {
	case 0:
		return mine
	case 1:
		if mine || !b.isFull(s) {
			return false
		}
		l.setCut(h, s, length, length, nil) // from a bit to a cut that can grow
		return true
	}
	return false
}

// appendContent adds blocks to the end of a chain. Its new length is published last.
func (l *Lane) appendContent(h *header, locals, engines []uint64) {
	length, capacity := h.length(), h.capacity()
	n := length + uint32(len(locals))
	if n > capacity {
		old := h.content()
		l.moveContent(h, min(roundUp(n+n/8), maxChain), length)
		l.retire(old, capacity, forContent)
		capacity = h.capacity()
	}
	w := l.arena.words(h.content(), int(capacity)*2)
	copy(w[length:], locals)
	copy(w[capacity+length:], engines)
	store(&h[hLength], packLength(n, capacity, hi(h[hLength])))
	l.stored += uint64(len(locals))
}

// moveContent copies the first n blocks to another place. When that is less than
// there was, the version says so to readers. What to do with the old place is for the
// caller to say.
func (l *Lane) moveContent(h *header, capacity, n uint32) {
	old, length, room := h.content(), h.length(), h.capacity()
	next := l.arena.alloc(capacity, forContent)
	from, to := l.arena.words(old, int(room)*2), l.arena.words(next, int(capacity)*2)
	copy(to, from[:n])
	copy(to[capacity:], from[room:room+n])
	version := hi(h[hLength])
	if n < length {
		// Shorter length first: no reader may take the new place for the old length.
		store(&h[hLength], packLength(n, capacity, l.nextVersion()))
	}
	store(&h[hContent], pack(uint32(next), uint32(h.tiers())))
	if n >= length {
		store(&h[hLength], packLength(n, capacity, version))
	}
}
