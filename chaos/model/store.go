package model

// orphan is a block whose parent the holder does not have.
type orphan struct {
	block
	parent uint64
	copies [NumTiers]int
}

func (m *Model[H]) store(o *holder, e *Event) bool {
	if o.contradicts(e) {
		for _, hash := range e.Engines {
			o.taint(hash)
		}
		return false
	}
	prev, hasPrev := e.Parent, e.HasParent
	bad := hasPrev && o.tainted[prev]
	for i, hash := range e.Engines {
		switch {
		case bad:
			o.taint(hash)
		case o.tainted[hash]:
			bad = true
		default:
			m.storeBlock(o, e, i, prev, hasPrev)
		}
		prev, hasPrev = hash, true
	}
	if e.Tier == Device {
		o.reach(e)
	}
	return true
}

// storeBlock takes one block whose predecessor is prev.
func (m *Model[H]) storeBlock(o *holder, e *Event, i int, prev uint64, hasPrev bool) {
	b := e.block(i)
	if c := o.claims[b.engine]; c != nil {
		o.hold(c, e.Tier, m.config.CountCopies)
		return
	}
	above := o.claims[prev]
	switch {
	case !hasPrev:
		c := m.claim(o, &b, nil)
		o.hold(c, e.Tier, false)
		m.attach(o, b.engine)
	case above != nil:
		// The place of an orphan is known now; it keeps the tiers that it has.
		if w := o.orphans[b.engine]; w != nil {
			o.unwait(b.engine)
			o.holdAll(m.claim(o, &b, above), w.copies)
			o.hold(o.claims[b.engine], e.Tier, m.config.CountCopies)
		} else {
			o.hold(m.claim(o, &b, above), e.Tier, false)
		}
		m.attach(o, b.engine)
	default:
		o.wait(b, prev, e.Tier, m.config.CountCopies)
	}
}

// claim makes the claim of a block below another, or at the root.
func (m *Model[H]) claim(o *holder, b *block, above *claim) *claim {
	c := &claim{namespace: b.named}
	if above != nil {
		c.namespace = b.named.under(above.namespace)
		c.at = m.paths.child(above.at, b.localIn(c.namespace))
		c.lineage = o.lineages.child(above.lineage, b.engine)
	} else {
		c.at = m.paths.child(0, b.localIn(c.namespace))
		c.lineage = o.lineages.child(o.rootOf(c.namespace), b.engine)
	}
	o.claims[b.engine] = c
	return c
}

func (o *holder) holdAll(c *claim, copies [NumTiers]int) {
	for t, n := range copies {
		if n > 0 {
			o.hold(c, t, false)
			c.copies[t] = n
		}
	}
}

// rootOf is the lineage of the empty path in a namespace.
func (o *holder) rootOf(n namespace) path {
	r, ok := o.roots[n]
	if !ok {
		r = uint64(len(o.roots))
		o.roots[n] = r
	}
	// No engine hash hangs below path 0 but these, so they never meet one.
	return o.lineages.child(0, r)
}

func (o *holder) wait(b block, parent uint64, tier int, count bool) {
	w := o.orphans[b.engine]
	if w == nil {
		w = &orphan{block: b, parent: parent}
		o.orphans[b.engine] = w
		if o.waiting[parent] == nil {
			o.waiting[parent] = map[uint64]bool{}
		}
		o.waiting[parent][b.engine] = true
	}
	if w.copies[tier] == 0 || count {
		w.copies[tier]++
	}
}

func (o *holder) unwait(hash uint64) {
	w := o.orphans[hash]
	delete(o.orphans, hash)
	delete(o.waiting[w.parent], hash)
	if len(o.waiting[w.parent]) == 0 {
		delete(o.waiting, w.parent)
	}
}

// attach gives the orphans below a hash that has just got a place their places too.
func (m *Model[H]) attach(o *holder, hash uint64) {
	for next := range o.waiting[hash] {
		w := o.orphans[next]
		o.unwait(next)
		above := o.claims[hash]
		if w.named.under(above.namespace) != above.namespace {
			o.taint(next)
			continue
		}
		o.holdAll(m.claim(o, &w.block, above), w.copies)
		m.attach(o, next)
	}
}

// contradicts reports whether a hash of the store would get a second meaning.
func (o *holder) contradicts(e *Event) bool {
	prev, hasPrev := e.Parent, e.HasParent
	seen := map[uint64]bool{}
	lineage, known := path(0), false
	named := namespace{e.Lora, e.Salt}
	if !hasPrev {
		lineage, known = o.rootOf(named), true
	} else {
		seen[prev] = true
		if above := o.claims[prev]; above != nil {
			lineage, known = above.lineage, true
			if named.under(above.namespace) != above.namespace {
				return true
			}
		}
	}
	for _, hash := range e.Engines {
		if seen[hash] {
			return true
		}
		seen[hash] = true
		c := o.claims[hash]
		if known {
			lineage = o.lineages.child(lineage, hash)
			if c != nil && c.lineage != lineage {
				return true
			}
		} else if c != nil {
			lineage, known = c.lineage, true
		}
		if w := o.orphans[hash]; w != nil && (!hasPrev || w.parent != prev) {
			return true
		}
		prev, hasPrev = hash, true
	}
	return false
}

// taint marks a hash that does not name a prefix, and what waits below it.
func (o *holder) taint(hash uint64) {
	o.tainted[hash] = true
	if o.orphans[hash] != nil {
		o.unwait(hash)
	}
	for next := range o.waiting[hash] {
		o.taint(next)
	}
}

func (m *Model[H]) placeholder(o *holder, e *Event) {
	for _, hash := range e.Engines {
		if o.tainted[hash] {
			continue
		}
		if c := o.claims[hash]; c != nil {
			o.hold(c, e.Tier, m.config.CountCopies)
		} else if w := o.orphans[hash]; w != nil {
			o.wait(w.block, w.parent, e.Tier, m.config.CountCopies)
		}
	}
}

// reach notes which blocks of a device store were stored through a reachable parent.
func (o *holder) reach(e *Event) {
	ok, above := true, path(0)
	if e.HasParent {
		c := o.claims[e.Parent]
		if c == nil {
			return
		}
		above = c.at
		_, ok = o.reachable[above]
	}
	for _, hash := range e.Engines {
		c := o.claims[hash]
		if !ok || c == nil || c.copies[Device] == 0 || o.tainted[hash] {
			return
		}
		if o.reachable[c.at] == nil {
			o.reachable[c.at] = map[path]bool{}
		}
		if above != 0 {
			o.reachable[above][c.at] = true
		}
		above = c.at
	}
}

// cut takes a path and everything below it out of what is reachable.
func (o *holder) cut(at path) {
	below := o.reachable[at]
	delete(o.reachable, at)
	for next := range below {
		o.cut(next)
	}
}
