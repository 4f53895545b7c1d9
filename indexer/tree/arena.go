package tree

import (
	"math/bits"
	"unsafe"
)

// An arena is the memory of one lane: one reserved stretch of addresses, handed out
// in pieces that are named by a ref. Nothing in it is a Go pointer, so the
// collector has nothing to scan however much it holds.
//
//	reserved |####|####|..##|    |####|            uncommitted              |
//	          page  page  span of 3 pages
//
// A page is 4 KiB. A span is 1 to 16 pages of objects of one size class; larger
// objects have a span of their own. A span without objects gives its pages back to
// the pool, and pages beyond what is worth keeping go back to the system.
//
// The arena belongs to its lane. Readers only ever look at addresses below the
// committed end, which never moves down until the lane is closed.
type arena struct {
	base      unsafe.Pointer
	size      uint64 // bytes reserved
	committed uint32 // pages that may be touched
	top       uint32 // pages ever used
	mem       mapping

	pages    []page
	freeSet  []uint64 // bit per page below top: not in a span
	residing []uint64 // bit per free page: the system may still back it
	hint     uint32   // no free page below
	free     uint32   // free pages below top
	resident uint32   // free pages that the system may still back
	partial  [numClasses]uint32

	live [numPurposes]uint64 // bytes, rounded to size classes
}

// ref names a piece of an arena: its offset in units. 0 is no piece.
type ref uint32

const (
	unitBytes = 16
	pageBytes = 4 << 10
	pageUnits = pageBytes / unitBytes
	noPage    = ^uint32(0)
	// maxUnits is what a ref can name: 32 GiB. The top bit is for flags.
	maxUnits = 1 << 31
	// maxClass is the largest object that shares a span, in units.
	maxClass   = 4096
	numClasses = 96
	spanPages  = 16
	// commitPages is the step in which reserved memory is made usable: 16 MiB.
	commitPages = 4096
)

// purpose says what memory is used for, for the accounts.
type purpose uint8

const (
	forChains purpose = iota
	forContent
	forCoverage
	forChildren
	forRuns
	forIslands
	forAliases
	forTiers
	forEngines
	forLimbo
	forDead
	numPurposes
)

var purposeNames = [numPurposes]string{"chains", "content", "coverage", "children", "runs", "islands", "aliases", "tiers", "engines", "limbo", "evicted"}

// page describes one page; the fields but back are those of the span it begins.
type page struct {
	next, prev uint32 // spans of the class that have room
	freeHead   uint16 // 1 + number of the first object of the free list
	used       uint16
	fresh      uint16 // objects that were never handed out begin here
	capacity   uint16
	class      uint8
	count      uint8 // pages of the span, 0 = part of one; large spans: see large
	back       uint8 // pages to the first of the span
	listed     bool
	large      uint32 // pages of a large span
}

// classUnits are the object sizes; step 2 to 32, 4 to 64, then an eighth at most.
var classUnits, classOf, classPages = func() (sizes [numClasses]uint32, of [maxClass + 1]uint8, pages [numClasses]uint8) {
	n := 0
	for s := uint32(1); s <= maxClass; n++ {
		sizes[n] = s
		best := uint32(1)
		for p := uint32(1); p <= spanPages; p++ {
			if s > p*pageUnits {
				continue
			}
			if s > best*pageUnits || waste(s, p)*best < waste(s, best)*p {
				best = p
			}
			if waste(s, best)*32 <= best*pageUnits {
				break
			}
		}
		pages[n] = uint8(best)
		switch {
		case s < 8:
			s++
		case s < 32:
			s += 2
		case s < 64:
			s += 4
		default:
			s += 1 << (bits.Len32(s) - 4)
		}
	}
	c := 0
	for u := uint32(0); u <= maxClass; u++ {
		if u > sizes[c] {
			c++
		}
		of[u] = uint8(c)
	}
	return sizes, of, pages
}()

func waste(size, pages uint32) uint32 { return pages * pageUnits % size }

// roundUp is the size that an object of so many units really gets.
func roundUp(units uint32) uint32 {
	if units <= maxClass {
		return classUnits[classOf[units]]
	}
	return (units + pageUnits - 1) / pageUnits * pageUnits
}

func (a *arena) at(r ref) unsafe.Pointer { return unsafe.Add(a.base, uintptr(r)*unitBytes) }

// words is a view of n words of a piece.
func (a *arena) words(r ref, n int) []uint64 { return unsafe.Slice((*uint64)(a.at(r)), n) }

func (a *arena) word(r ref, i int) *uint64 {
	return (*uint64)(unsafe.Add(a.base, uintptr(r)*unitBytes+uintptr(i)*8))
}

// alloc returns room for so many units; its contents are arbitrary. The lane makes
// sure beforehand that there is enough (see room).
func (a *arena) alloc(units uint32, p purpose) ref {
	if units > maxClass {
		n := (units + pageUnits - 1) / pageUnits
		at := a.takePages(n)
		a.pages[at] = page{count: 1, large: n}
		a.live[p] += uint64(n) * pageBytes
		return ref(at * pageUnits)
	}
	c := classOf[units]
	a.live[p] += uint64(classUnits[c]) * unitBytes
	return a.object(c, classUnits[c])
}

func (a *arena) object(c uint8, size uint32) ref {
	at := a.partial[c]
	if at == noPage {
		at = a.newSpan(c, size)
	}
	s := &a.pages[at]
	var o uint32
	if s.freeHead != 0 {
		o = uint32(s.freeHead - 1)
		s.freeHead = *(*uint16)(a.at(ref(at*pageUnits + o*size)))
	} else {
		o = uint32(s.fresh)
		s.fresh++
	}
	s.used++
	if s.used == s.capacity {
		a.unlist(at)
	}
	return ref(at*pageUnits + o*size)
}

func (a *arena) newSpan(c uint8, size uint32) uint32 {
	n := uint32(classPages[c])
	capacity := n * pageUnits / size
	if c == chainClass {
		n, capacity = 1, chainsPerPage
	}
	at := a.takePages(n)
	for i := range n {
		a.pages[at+i] = page{back: uint8(i)}
	}
	s := &a.pages[at]
	s.class, s.count, s.capacity = c, uint8(n), uint16(capacity)
	a.list(at)
	return at
}

func (a *arena) list(at uint32) {
	s := &a.pages[at]
	s.next, s.prev, s.listed = a.partial[s.class], noPage, true
	if s.next != noPage {
		a.pages[s.next].prev = at
	}
	a.partial[s.class] = at
}

func (a *arena) unlist(at uint32) {
	s := &a.pages[at]
	if s.prev == noPage {
		a.partial[s.class] = s.next
	} else {
		a.pages[s.prev].next = s.next
	}
	if s.next != noPage {
		a.pages[s.next].prev = s.prev
	}
	s.listed = false
}

// release gives a piece back. Nobody may look at it any more.
func (a *arena) release(r ref, units uint32, p purpose) {
	if units > maxClass {
		at := uint32(r) / pageUnits
		n := a.pages[at].large
		a.live[p] -= uint64(n) * pageBytes
		a.givePages(at, n)
		return
	}
	c := classOf[units]
	a.live[p] -= uint64(classUnits[c]) * unitBytes
	a.freeObject(r, classUnits[c])
}

func (a *arena) freeObject(r ref, size uint32) {
	at := uint32(r) / pageUnits
	at -= uint32(a.pages[at].back)
	s := &a.pages[at]
	*(*uint16)(a.at(r)) = s.freeHead
	s.freeHead = uint16((uint32(r)-at*pageUnits)/size) + 1
	s.used--
	switch {
	case s.used == 0:
		if s.listed {
			a.unlist(at)
		}
		a.givePages(at, uint32(s.count))
	case !s.listed:
		a.list(at)
	}
}

func (a *arena) refOf(p unsafe.Pointer) ref {
	return ref((uintptr(p) - uintptr(a.base)) / unitBytes)
}
