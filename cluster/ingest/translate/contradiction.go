package translate

// contradiction is the check of rule N2 over a whole event, before anything of it
// is applied. It returns "" or the reason.
func (t *Translator) contradiction(s *Store, at place, ids []uint32) string {
	if t.scratch.duplicate(t.scratch.keys) {
		return "a hash occurs twice"
	}
	known := at.kind == atRoot || at.id != 0 // is the path so far known?
	ns, prev := at.ns, at.id
	tag := t.tagAt(at)
	above, hasAbove := s.Parent, s.HasParent
	for i, h := range s.Engines {
		if id := ids[i]; id != 0 {
			if why := t.mappedElsewhere(s, id, known, ns, prev, tag, above, hasAbove); why != "" {
				return why
			}
			known, ns, tag, prev = true, t.runs.at(t.blocks.run(id)).ns, t.blocks.tag(id), id
		} else {
			if o, ok := t.pool.get(h); ok {
				if !hasAbove || o.parent != above {
					return "an orphan gets another parent"
				}
				if g := t.pool.group(o); differ(g.lora, s.Lora) || differ(g.salt, s.Salt) {
					return "an orphan gets another namespace"
				}
			}
			tag, prev = mixTag(tag, h), 0
		}
		above, hasAbove = h, true
	}
	return ""
}

// mappedElsewhere says why a mapped hash of an event cannot be the block it is
// mapped to. prev is the block above in the event, if mapped; tag the path tag
// there, if known.
func (t *Translator) mappedElsewhere(s *Store, id uint32, known bool, ns, prev uint32, tag uint16, above uint64, hasAbove bool) string {
	rec := t.runs.at(t.blocks.run(id))
	if !known {
		if !t.spaces.agrees(rec.ns, s.Lora, s.Salt) {
			return "a mapped hash is stored in another namespace"
		}
		return ""
	}
	if t.blocks.follows(prev, id) {
		return "" // the same two names: the same path
	}
	// The hash of the block before it is exact where its unit still has it; the tag
	// decides the rest.
	if id&3 != 0 && (!hasAbove || t.blocks.key(id-1) != above) ||
		rec.ns != ns || t.blocks.tag(id) != mixTag(tag, t.blocks.key(id)) {
		return "a mapped hash is stored on another path"
	}
	return ""
}

// tagAt is the path tag above the next block, 0 if the path is not known.
func (t *Translator) tagAt(at place) uint16 {
	switch {
	case at.kind == atRoot:
		return t.spaces.tag(at.ns)
	case at.id != 0:
		return t.blocks.tag(at.id)
	}
	return 0
}
