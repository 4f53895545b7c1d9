package fanout

import (
	"sync"

	"github.com/kvcluster/kvcluster/indexer"
)

// checkpointEvery is after how many frames a writer begins a checkpoint of its own
// accord: it costs a few dozen loads.
const checkpointEvery = 256

// checkpoints know which frames have been acknowledged, a few hundred at a time.
//
//	applied            written when made                 written
//	---|-------------------|---------------|----------------|
//	   done                checkpoint      checkpoint
//
// A checkpoint is done when the local index has passed its mark and every session that
// was counted when it was made has acknowledged what had been sent to it, or has lapsed;
// and no owner may be left that answers from what an earlier reader sent.
type checkpoints struct {
	mu   sync.Mutex
	done uint64
	list []checkpoint
	free []checkpoint
}

type checkpoint struct {
	count uint64
	local []uint64
	waits []wait
}

type wait struct {
	s *session
	n uint64
}

const (
	maxCheckpoints = 64
	never          = ^uint64(0)
)

// add makes a checkpoint for all that has been written.
func (c *checkpoints) add(w *writer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(w)
}

func (c *checkpoints) addLocked(w *writer) {
	if len(c.list) >= maxCheckpoints {
		return
	}
	var cp checkpoint
	if n := len(c.free); n > 0 {
		cp, c.free = c.free[n-1], c.free[:n-1]
	}
	// The order matters: what is counted has been sent, and what it was sent to is
	// among the sessions or has lapsed.
	cp.count = w.written.Load()
	cp.local = w.mark(cp.local[:0])
	cp.waits = cp.waits[:0]
	for _, s := range *w.f.peers.counted.Load() {
		if w.f.cfg.broken.uncounted && !w.f.ownsAnything(s.peer.name) {
			continue
		}
		n := s.last.Load()
		if s.broken.Load() {
			n = never
		}
		if n > s.acked.Load() {
			cp.waits = append(cp.waits, wait{s, n})
		}
	}
	c.list = append(c.list, cp)
}

// passed reports whether everybody has what the checkpoint stands for. What somebody
// has is not asked again.
func (cp *checkpoint) passed(w *writer) bool {
	if until := w.f.unfenced.Load(); until != 0 && w.f.clock() < until {
		return false
	}
	for i := 0; i < len(cp.waits); {
		x := cp.waits[i]
		switch {
		case x.s.acked.Load() >= x.n:
			last := len(cp.waits) - 1
			cp.waits[i] = cp.waits[last]
			cp.waits = cp.waits[:last]
		case x.s.lapsed.Load():
			i++ // for now
		default:
			return false
		}
	}
	return w.passed(cp.local) || w.f.cfg.broken.localLate
}

func (c *checkpoints) applied(w *writer) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range 2 {
		n := 0
		for n < len(c.list) && c.list[n].passed(w) {
			n++
		}
		if n > 0 {
			c.done = c.list[n-1].count
			c.free = append(c.free, c.list[:n]...)
			c.list = append(c.list[:0], c.list[n:]...)
		}
		if len(c.list) > 0 || w.written.Load() == c.done {
			return c.done
		}
		c.addLocked(w)
	}
	return c.done
}

// Reach returns a function that reports whether all that this writer has said of a slot
// until now is applied here and wherever the slot has open copies. That is less than being
// acknowledged: peers without such copies, and owners that could not be fenced off when the
// slot was taken over, are not waited for. It serves what only concerns nodes that know who
// reads the slot. To be called where frames are written.
func (w *writer) Reach(g indexer.GroupID, number indexer.Slot) func() bool {
	var waits []wait
	if s := w.f.table.Load().slots[keyOf(g, number)]; s != nil {
		s.mu.Lock()
		for _, x := range *w.f.peers.counted.Load() {
			if x == x.peer.cur.Load() && (x.peer.index >= len(s.copies) || s.copies[x.peer.index].sess != x || s.copies[x.peer.index].open.empty()) {
				continue
			}
			n := x.last.Load()
			if x.broken.Load() {
				n = never
			}
			waits = append(waits, wait{x, n})
		}
		s.mu.Unlock()
	}
	local := w.mark(nil)
	return func() bool {
		for _, x := range waits {
			if x.s.acked.Load() < x.n && !x.s.lapsed.Load() {
				return false
			}
		}
		return w.passed(local)
	}
}
