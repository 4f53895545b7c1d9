package tree

import (
	"github.com/kvcluster/kvcluster/indexer"
)

// Reader answers queries from one lane or from all lanes of an index. One goroutine
// at a time may use it.
type Reader struct {
	lanes   []*Lane
	pins    *pinSet
	pin     *pin
	pinned  uint64 // the value of pin while it is held
	retries uint64

	hops   []hop
	active []uint64 // bit per slot: holds all of the path so far
	next   []uint64
	part   []uint64 // cuts that end within the extent of a chain
	tiers  tierWalk
	before indexer.Scores // of the attempt before the last
}

// hop is one chain on the path of a query.
type hop struct {
	chain   ref
	version uint32
	base    uint32 // blocks above the chain
	extent  uint32 // leading blocks of the chain that are on the path
}

var (
	_ indexer.Reader         = (*Reader)(nil)
	_ indexer.SequenceReader = (*Reader)(nil)
)

// NewReader returns a reader of this lane alone.
func (l *Lane) NewReader() *Reader { return newReader([]*Lane{l}, l.pins) }

func newReader(lanes []*Lane, pins *pinSet) *Reader {
	return &Reader{lanes: lanes, pins: pins, pin: pins.take(), active: make([]uint64, 16), next: make([]uint64, 16)}
}

// Close gives the reader's pin back.
func (r *Reader) Close() {
	if r.pin != nil {
		r.pins.give(r.pin)
		r.pin = nil
	}
}

func (r *Reader) lane(g indexer.GroupID, p indexer.PartitionID) *Lane {
	if len(r.lanes) == 1 {
		return r.lanes[0]
	}
	return r.lanes[laneOf(g, p, len(r.lanes))]
}

// laneOf spreads the partitions of every group evenly over the lanes.
func laneOf(g indexer.GroupID, p indexer.PartitionID, lanes int) int {
	return int((uint32(p) + uint32(g)*0x9e3779b1) % uint32(lanes))
}

// enter pins the lane's epoch: nothing that can be reached from now on is used for
// anything else until leave.
func (r *Reader) enter(l *Lane) {
	for {
		e := l.epoch.Load()
		r.pinned = l.id<<epochBits | e
		r.pin.word.Store(r.pinned)
		if l.epoch.Load() == e {
			return
		}
	}
}

// leave ends the pin. It reports false when the pin was lost: what was read may be
// of anything, and is to be thrown away.
func (r *Reader) leave() bool { return r.pin.word.Swap(0) != revoked }

// ok reports whether the pin still holds. What was loaded before a call that returns
// true was not yet reused: so a ref or a count is safe to follow once ok says so.
func (r *Reader) ok() bool { return r.pin.word.Load() == r.pinned }

// content returns the local hashes of a chain and its version. ok is false when the
// lane is at work on it or the pin is lost.
func (r *Reader) content(l *Lane, h *header) (locals []uint64, version uint32, ok bool) {
	w := load(&h[hLength])
	c := ref(load(&h[hContent]))
	if load(&h[hLength]) != w || !r.ok() {
		return nil, 0, false
	}
	return l.arena.words(c, int(lengthOf(w))), hi(w), true
}

// root finds the root of the tree of a query.
func (r *Reader) root(l *Lane, g indexer.GroupID, p indexer.PartitionID, anchor uint64) (c ref, ok bool) {
	hash := rootHash(uint32(g), uint32(p), anchor)
	t := load(&l.children.word)
	n := hi(t)
	b := scale(hash, n)
	for range n {
		bucket := (*[bucketEntries]uint64)(l.arena.at(ref(lo(t) + b*bucketUnits)))
		open := false
		for i := range bucket {
			e := load(&bucket[i])
			if hi(e) == hash && lo(e) != 0 {
				if !r.ok() {
					return 0, false
				}
				h := l.arena.header(ref(e))
				if kindOf(load(&h[hParent])) == kindRoot && load(&h[hCuts]) == pack(uint32(g), uint32(p)) && load(&h[hCuts+1]) == anchor {
					return ref(e), true
				}
			}
			open = open || e == 0
		}
		if open {
			break
		}
		if b++; b == n {
			b = 0
		}
	}
	return 0, r.ok()
}

// child finds the chain that begins with locals[0] below a place, and how many of the
// locals it has.
func (r *Reader) child(l *Lane, parent ref, fork uint32, locals []uint64, hash uint32) (c ref, n int, version uint32, ok bool) {
	t := load(&l.children.word)
	size := hi(t)
	b := scale(hash, size)
	for range size {
		bucket := (*[bucketEntries]uint64)(l.arena.at(ref(lo(t) + b*bucketUnits)))
		open := false
		for i := range bucket {
			e := load(&bucket[i])
			if hi(e) == hash && lo(e) != 0 {
				if !r.ok() {
					return 0, 0, 0, false
				}
				h := l.arena.header(ref(e))
				if load(&h[hParent]) == packParent(parent, fork, kindChain) {
					content, v, fine := r.content(l, h)
					if !fine {
						return 0, 0, 0, false
					}
					if n = commonPrefix(content, locals); n > 0 {
						return ref(e), n, v, true
					}
				}
			}
			open = open || e == 0
		}
		if open {
			break
		}
		if b++; b == size {
			b = 0
		}
	}
	return 0, 0, 0, r.ok()
}
