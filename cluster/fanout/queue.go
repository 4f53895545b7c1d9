package fanout

import "github.com/kvcluster/kvcluster/indexer"

// pending are frames for copies that are yet to be made somewhere.
type pending struct {
	parts set // nil = none
	queue queue
	busy  bool // a fill takes them
}

// queue keeps frames for a fill, as payloads of Frame messages.
type queue struct {
	frames []held
	bytes  int64
}

type held struct {
	p       indexer.PartitionID
	payload []byte
}

// pendFrom keeps the frames of a partition from now on.
func (s *slot) pendFrom(p int) {
	if s.pend.parts == nil {
		s.pend.parts = newSet(64 * len(s.touched))
	}
	s.pend.parts.add(p)
}

// dropPending gives the pending frames up: what they belong to is nowhere then.
func (s *slot) dropPending() {
	s.f.release(&s.pend.queue)
	s.pend = pending{}
}

// settlePending forgets the frames of partitions that are open somewhere now.
func (s *slot) settlePending(parts set) {
	s.pend.busy = false
	if s.pend.parts == nil {
		return
	}
	s.pend.parts.andNot(parts)
	rest := s.pend.queue.frames[:0]
	for _, e := range s.pend.queue.frames {
		if s.pend.parts.has(int(e.p)) {
			rest = append(rest, e)
			continue
		}
		s.f.unkeep(&s.pend.queue, e)
	}
	clear(s.pend.queue.frames[len(rest):])
	s.pend.queue.frames = rest
	if s.pend.parts.empty() {
		s.dropPending()
	}
}

// heldOverhead is what a held frame costs besides its payload, in bytes.
const heldOverhead = 64

// keep adds a frame to a queue, or reports that there is no room.
func (f *Fanout) keep(q *queue, e held) bool {
	n := int64(len(e.payload)) + heldOverhead
	q.frames = append(q.frames, e)
	q.bytes += n
	return f.heldBytes.Add(n) <= f.cfg.HoldTotal && q.bytes <= f.cfg.HoldBytes
}

func (f *Fanout) unkeep(q *queue, e held) {
	n := int64(len(e.payload)) + heldOverhead
	q.bytes -= n
	f.heldBytes.Add(-n)
}

func (f *Fanout) release(q *queue) {
	for _, e := range q.frames {
		f.unkeep(q, e)
	}
	*q = queue{}
}
