package fanout

import (
	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// firstTouch is called before the first frame of a partition: until now its copies are
// empty, so those of a fresh life can be opened wherever they are wanted.
func (s *slot) firstTouch(t *table, p int) {
	if s.fresh {
		for _, pe := range t.routes[p].peers {
			s.openEmpty(t, pe)
		}
		if !s.openAnywhere(t, p) {
			s.pendFrom(p)
		}
	}
	s.touched.add(p)
}

// openAnywhere reports whether some copy of the partition is open.
func (s *slot) openAnywhere(t *table, p int) bool {
	for _, pe := range t.routes[p].peers {
		if c := s.live(pe); c != nil && c.open.has(p) {
			return true
		}
	}
	return false
}

// openEmpty opens at a peer what nobody has written to yet.
func (s *slot) openEmpty(t *table, pe *peer) {
	if !s.fresh || s.gone || s.retired || !pe.up() {
		return
	}
	c, want, some := s.copiesOf(pe), t.want(pe), false
	if c.fill != nil && c.fill.from == forgotten {
		return
	}
	for i, w := range want {
		some = some || w&^s.touched[i]&^c.open[i] != 0
	}
	if !some {
		return
	}
	parts := want.clone()
	parts.andNot(s.touched)
	parts.andNot(c.open)
	list := parts.list()
	if pe.self() {
		s.f.cfg.Owner.OpenLocal(s.name, s.tenure, list)
	} else if !s.f.sendControl(c.sess, copywire.AppendOpen(nil, s.name, s.tenure, list)) {
		return
	}
	c.open.or(parts)
	c.had.or(parts)
}

// forget frees what a peer has of partitions that it is no receiver of any more. The
// caller holds the lock. This node's own copies are left to a worker: it reports true if
// there are any.
func (s *slot) forget(t *table, pe *peer) bool {
	if !pe.up() || pe.index >= len(s.copies) {
		return false
	}
	c, routed, some := s.copiesOf(pe), t.routed(pe), false
	if c.fill != nil {
		return false
	}
	for i := range c.had {
		// What is not touched has no content, and may be opened again as empty.
		c.had[i] &= routed[i] | s.touched[i]
		some = some || c.had[i]&^routed[i] != 0
	}
	if !some || pe.self() {
		return some
	}
	parts := c.had.clone()
	parts.andNot(routed)
	if !s.void(c, parts) || !s.f.sendControl(c.sess, copywire.AppendClose(nil, s.name, s.tenure, parts.list())) {
		return false
	}
	c.open.andNot(parts)
	c.had.andNot(parts)
	return false
}

// void empties copies at a peer, and closes them whoever wrote them: the beginning of a
// fill that is not ended.
func (s *slot) void(c *copies, parts set) bool {
	var b indexer.FrameBuilder
	for _, p := range parts.list() {
		b.Reset(s.header(p, s.label[p]))
		b.Clear(indexer.AllTiers)
		if !s.f.sendControl(c.sess, copywire.AppendFill(nil, true, false, b.Frame())) {
			return false
		}
	}
	return true
}

// close ends copies that a peer may take for open: nothing is acknowledged without it
// before it knows. The caller holds the lock.
func (s *slot) close(pe *peer, parts set) {
	c := s.live(pe)
	if c == nil {
		return
	}
	parts = parts.clone()
	parts.and(c.open)
	if parts.empty() {
		return
	}
	c.open.andNot(parts)
	if pe.self() {
		s.f.cfg.Owner.CloseLocal(s.name, s.tenure, parts.list())
		return
	}
	s.f.sendControl(c.sess, copywire.AppendClose(nil, s.name, s.tenure, parts.list()))
}

// cancel makes a fill fail that is under way for some of the partitions. The caller holds
// the lock.
func (s *slot) cancel(pe *peer, parts set) {
	if pe.index < len(s.copies) {
		if fl := s.copies[pe.index].fill; fl != nil && fl.parts.meets(parts) {
			fl.cancel()
		}
	}
}

// end takes a slot away: nothing is sent for it any more. What is open stays open at
// its owners, for whoever writes it next.
func (s *slot) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gone = true
	s.dropPending()
	for i := range s.copies {
		if fl := s.copies[i].fill; fl != nil {
			fl.cancel()
		}
	}
	if s.retired && len(s.copies) > 0 {
		s.close(s.f.peers.self(), s.copies[0].open.clone())
	}
}
