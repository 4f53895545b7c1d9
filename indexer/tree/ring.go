package tree

import (
	"sync/atomic"

	"github.com/kvcluster/kvcluster/indexer"
)

// ring carries frames from one writer to one lane. A frame lies in one piece: what
// does not fit before the end of the ring begins at its start, behind a skip mark. A
// frame that is longer than half a ring goes beside it, its place taken by a mark.
//
//	... | frame | frame | skip | (unused to the end)
//	head, tail: words written and read since the beginning
type ring struct {
	words []uint64
	mask  uint64
	long  chan indexer.Frame // frames that are too long

	_       [64]byte
	head    atomic.Uint64 // the writer's
	written atomic.Uint64 // frames
	stalled atomic.Uint64
	closed  atomic.Bool
	_       [64]byte
	tail    atomic.Uint64 // the lane's
	applied atomic.Uint64 // frames
	_       [64]byte

	cachedTail uint64 // the writer's, as it last saw it
	next       uint64 // the lane's: tail, before it is published
	done       uint64 // the lane's: applied, before it is published
}

const (
	skipMark  = ^uint64(0)
	longMark  = ^uint64(0) - 1
	longQueue = 4
)

func newRing(words int) *ring {
	return &ring{words: make([]uint64, words), mask: uint64(words - 1), long: make(chan indexer.Frame, longQueue)}
}

// offer copies a frame in, or reports that there is no room.
func (r *ring) offer(f indexer.Frame) bool {
	size := uint64(len(r.words))
	n := uint64(len(f))
	long := n > size/2
	if long {
		n = 1
	}
	head := r.head.Load()
	at, skip := head&r.mask, uint64(0)
	if at+n > size {
		skip = size - at
	}
	if head+skip+n-r.cachedTail > size {
		r.cachedTail = r.tail.Load()
		if head+skip+n-r.cachedTail > size {
			return false
		}
	}
	if long {
		select {
		case r.long <- append(indexer.Frame(nil), f...):
		default:
			return false
		}
	}
	if skip > 0 {
		r.words[at] = skipMark
		at = 0
	}
	if long {
		r.words[at] = longMark
	} else {
		copy(r.words[at:], f)
	}
	r.written.Add(1)
	r.head.Store(head + skip + n)
	return true
}

// take returns the next frame, or nil. It is valid until publish.
func (r *ring) take() indexer.Frame {
	for r.next != r.head.Load() {
		at := r.next & r.mask
		switch w := r.words[at]; w {
		case skipMark:
			r.next += uint64(len(r.words)) - at
		case longMark:
			r.next++
			r.done++
			return <-r.long
		default:
			n := uint64(lo(w))
			r.next += n
			r.done++
			return indexer.Frame(r.words[at : at+n : at+n])
		}
	}
	return nil
}

// publish gives the room of the frames taken back, and says that they are applied.
func (r *ring) publish() {
	if r.done != r.applied.Load() {
		r.applied.Store(r.done)
	}
	if r.next != r.tail.Load() {
		r.tail.Store(r.next)
	}
}
