package fanout

import (
	"errors"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/link"
)

// slot is one life of a slot that this node's ingest writes, and what is known of its
// copies at all receivers. Its lock orders everything that is sent for it: frames,
// fences, fills and their ends. Under it nothing waits but a local write for room in
// the ring of a lane.
type slot struct {
	f      *Fanout
	name   copywire.SlotLife
	tenure uint64

	mu      sync.Mutex
	gone    bool // not this node's to write any more
	retired bool // the life is over in the log; its last frames may still come
	// fresh: partitions that are not touched are empty everywhere, and known to be.
	fresh   bool
	touched set      // partitions that have had a frame, or had content before
	label   []uint64 // by partition: sequence of the latest frame
	copies  []copies // by number of the peer
	// pend are frames of partitions that are open nowhere, since their first one: the
	// first receiver that comes gets them.
	pend pending

	// cursor is the last one that owners were told; the ones that are filled later are
	// told at the end of the fill.
	cursor copywire.Cursor

	// local is the writer that has written to this node's index last, and count how
	// many frames it has.
	local      *writer
	localCount uint64

	renewAt time.Time // when Renew may be called again
}

// copies is what is known of a slot's copies at one peer.
//
//	         Open, last Fill                   Close, session over
//	closed ------------------> open ----------------------------------> closed
//	   \--- fence or dump ---> held --- end of the fill ---> open
//
// A partition is in at most one of the sets.
type copies struct {
	sess *session // the sets are void when the peer has another one
	open set      // gets frames
	held set      // its frames wait for the end of the fill
	fill *fill    // under way; nil = none
	// had: may have content at the peer, open or not, as long as that is the process of
	// boot.
	had  set
	boot uint64

	retryAt time.Time
	backoff time.Duration
}

// copiesOf returns the state of the slot at a peer, valid for its present session; sets
// of an earlier session are emptied. The caller holds the lock.
func (s *slot) copiesOf(p *peer) *copies {
	for len(s.copies) <= p.index {
		s.copies = append(s.copies, copies{})
	}
	c := &s.copies[p.index]
	cur := p.cur.Load()
	if c.open == nil {
		n := 64 * len(s.touched)
		c.open, c.held, c.had = newSet(n), newSet(n), newSet(n)
	} else if c.sess != cur {
		if !s.f.cfg.broken.keepOpen {
			clear(c.open)
		}
		clear(c.held)
		c.retryAt, c.backoff = time.Time{}, 0
	}
	c.sess = cur
	if cur != nil && c.boot != cur.id.ReceiverBoot {
		c.boot = cur.id.ReceiverBoot
		clear(c.had)
	}
	return c
}

// live returns the state of the slot at a peer if something may be sent there.
func (s *slot) live(p *peer) *copies {
	if p.index >= len(s.copies) {
		return nil
	}
	c := &s.copies[p.index]
	if s.f.cfg.broken.keepOpen {
		if c.open == nil || p.cur.Load() == nil {
			return nil
		}
		c.sess = p.cur.Load()
		return c
	}
	if c.sess == nil || c.sess != p.cur.Load() || c.sess.broken.Load() {
		return nil
	}
	return c
}

// write sends one frame everywhere. The caller holds the lock.
func (s *slot) write(w *writer, t *table, h indexer.Header, fr indexer.Frame) (err error) {
	p := int(h.Partition)
	if !s.touched.has(p) {
		s.firstTouch(t, p)
	}
	s.label[p] = h.Sequence
	r := t.routes[p]
	var payload []byte
	var blocks uint64
	for _, pe := range r.peers {
		c := s.live(pe)
		if c == nil {
			continue
		}
		switch {
		case c.open.has(p) || s.f.cfg.broken.sendClosed:
			if pe.self() {
				err = errors.Join(err, s.writeLocal(w, c, h, fr))
				continue
			}
			if payload == nil {
				payload = w.pack(r, fr)
			}
			if blocks == 0 {
				blocks = storedBlocks(fr)
			}
			s.sendFrame(w, pe, c, p, payload, blocks)
		case c.held.has(p) && c.fill != nil:
			if payload == nil {
				payload = w.pack(r, fr)
			}
			c.fill.hold(held{h.Partition, payload})
		}
	}
	if s.pend.parts != nil && s.pend.parts.has(p) {
		if payload == nil {
			payload = w.pack(r, fr)
		}
		if !s.f.keep(&s.pend.queue, held{h.Partition, payload}) {
			s.f.count.overflows.Add(1)
			s.dropPending()
		}
	}
	return err
}

// writeLocal writes to this node's index.
func (s *slot) writeLocal(w *writer, c *copies, h indexer.Header, fr indexer.Frame) error {
	if !s.f.cfg.Owner.NoteLocal(h) && !s.f.cfg.broken.sendClosed {
		c.open.del(int(h.Partition)) // a fault has closed it
		s.f.wakeUp()
		return nil
	}
	if s.local != w {
		if s.local != nil {
			s.local.awaitLocal()
		}
		s.local = w
	}
	if err := w.local.Write(fr); err != nil {
		return err
	}
	s.localCount++
	return nil
}

// sendFrame sends a frame to an open copy.
func (s *slot) sendFrame(w *writer, pe *peer, c *copies, p int, payload []byte, blocks uint64) {
	n, err := s.f.cfg.Links.Send(c.sess.id, payload)
	if err == nil {
		c.sess.sent(n)
		w.sent(pe, payload, blocks)
		return
	}
	pe.count.sendErrors.Add(1)
	if !errors.Is(err, link.ErrTooLarge) {
		s.f.broke(c.sess)
		return
	}
	// A fill has smaller ones.
	one := newSet(64 * len(s.touched))
	one.add(p)
	s.close(pe, one)
	s.f.wakeUp()
}

// storedBlocks counts the blocks that the stores of a frame have.
func storedBlocks(fr indexer.Frame) (n uint64) {
	var op indexer.Op
	for off := fr.Next(0, &op); off != 0; off = fr.Next(off, &op) {
		n += uint64(len(op.Locals))
	}
	return n
}

// broke notes that a session is over, before the link says so.
func (f *Fanout) broke(s *session) {
	s.broken.Store(true)
	s.news.notify()
}

// header is that of a frame of the slot.
func (s *slot) header(p indexer.PartitionID, sequence uint64) indexer.Header {
	return indexer.Header{Group: s.name.Group, Partition: p, Slot: s.name.Slot, Life: s.name.Life, Tenure: s.tenure, Sequence: sequence}
}

// sendControl sends something that is no frame, and reports success.
func (f *Fanout) sendControl(s *session, payload []byte) bool {
	n, err := f.cfg.Links.Send(s.id, payload)
	if err != nil {
		f.broke(s)
		return false
	}
	s.sent(n)
	s.peer.count.control.Add(uint64(len(payload)))
	return true
}
