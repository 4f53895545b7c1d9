package fanout

import "github.com/kvcluster/kvcluster/cluster/copywire"

// AppendCursor tells the owners how far the stream of a slot has come, behind all its
// frames so far: for whoever reads it next.
func (f *Fanout) AppendCursor(c copywire.Cursor) {
	t := f.table.Load()
	s := t.slots[keyOf(c.Group, c.Slot)]
	if s == nil || s.name != c.SlotLife || s.tenure != c.Tenure {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return
	}
	s.cursor = c
	var payload []byte
	for _, pe := range f.peers.all() {
		cp := s.live(pe)
		if cp == nil || cp.open.empty() {
			continue
		}
		if pe.self() {
			f.cfg.Owner.CursorLocal(c)
			continue
		}
		if payload == nil {
			payload = copywire.AppendCursor(nil, c)
		}
		f.sendControl(cp.sess, payload)
	}
}
