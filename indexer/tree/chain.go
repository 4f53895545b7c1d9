package tree

import "unsafe"

// A chain is a run of consecutive blocks that is stored once, whoever holds it. Its
// header is one cache line, of words that readers load and the lane stores:
//
//	0  content ref (32)     | tier rows ref (32)
//	1  length (16) | capacity (16) | version (32)
//	2  parent ref (32)      | fork (16) | kind (16)
//	3  coverage ref (32)    | child filter (32)
//	4-7  cut-offs: cut (32) | slot (32), 0 = none
//
// A version stands for one content of one chain in the life of the lane; it is another
// after the tail was cut.
//
// And a side record of 32 bytes that belongs to the lane, except that readers follow
// the links of word 0 to enumerate children, and Explain looks at the islands:
//
//	0  first child (32) | next sibling (32)
//	1  previous sibling (32) | children (32)
//	2  tip (16) | covered (16) | highest fork of a child (16) | something was dropped (1)
//	3  islands ref (32) | aliases ref (32)
//
// The content is locals[capacity] and then engines[capacity]; positions never move.
// A root is a chain of length 0: words 4 to 6 are group and partition, anchor, and
// the number of the tree.
//
// Headers are the objects of chainClass; the side records of a page follow them, so
// that a ref names both.
type header [8]uint64

type sideRecord [4]uint64

const (
	chainClass    = numClasses - 1
	chainUnits    = 4
	chainsPerPage = 42
	sideOffset    = chainsPerPage * 64
	sideBytes     = 32

	// maxChain is the longest chain: two columns of it are one object of the largest
	// class. Longer stores go on in a child.
	maxChain = 4096

	hContent  = 0
	hLength   = 1
	hParent   = 2
	hCoverage = 3
	hCuts     = 4
	numCuts   = 4

	droppedFlag = 1 << 48

	kindChain = 1
	kindRoot  = 2
)

func (a *arena) header(c ref) *header { return (*header)(a.at(c)) }

func (a *arena) side(c ref) *sideRecord {
	page := uint32(c) &^ (pageUnits - 1)
	n := (uint32(c) - page) / chainUnits
	return (*sideRecord)(unsafe.Add(a.base, uintptr(page)*unitBytes+sideOffset+uintptr(n)*sideBytes))
}

func (a *arena) allocChain() ref {
	a.live[forChains] += 64 + sideBytes
	return a.object(chainClass, chainUnits)
}

func (a *arena) releaseChain(c ref) {
	a.live[forChains] -= 64 + sideBytes
	a.freeObject(c, chainUnits)
}

func packLength(length, capacity uint32, version uint32) uint64 {
	return uint64(length) | uint64(capacity)<<16 | uint64(version)<<32
}

func lengthOf(w uint64) uint32   { return uint32(uint16(w)) }
func capacityOf(w uint64) uint32 { return uint32(uint16(w >> 16)) }

// packParent packs where a chain begins.
func packParent(parent ref, fork uint32, kind uint32) uint64 {
	return uint64(parent) | uint64(fork)<<32 | uint64(kind)<<48
}

func parentOf(w uint64) ref  { return ref(w) }
func forkOf(w uint64) uint32 { return uint32(uint16(w >> 32)) }
func kindOf(w uint64) uint32 { return uint32(w >> 48) }

func (h *header) content() ref     { return ref(h[hContent]) }
func (h *header) tiers() ref       { return ref(h[hContent] >> 32) }
func (h *header) length() uint32   { return lengthOf(h[hLength]) }
func (h *header) capacity() uint32 { return capacityOf(h[hLength]) }
func (h *header) parent() ref      { return parentOf(h[hParent]) }
func (h *header) fork() uint32     { return forkOf(h[hParent]) }
func (h *header) isRoot() bool     { return kindOf(h[hParent]) == kindRoot }
func (h *header) coverage() ref    { return ref(h[hCoverage]) }

// The side record's fields.

func (s *sideRecord) firstChild() ref  { return ref(s[0]) }
func (s *sideRecord) nextSibling() ref { return ref(s[0] >> 32) }
func (s *sideRecord) prevSibling() ref { return ref(s[1]) }
func (s *sideRecord) children() uint32 { return hi(s[1]) }
func (s *sideRecord) tip() uint32      { return uint32(uint16(s[2])) }
func (s *sideRecord) covered() uint32  { return uint32(uint16(s[2] >> 16)) }
func (s *sideRecord) lastFork() uint32 { return uint32(uint16(s[2] >> 32)) }
func (s *sideRecord) islands() ref     { return ref(s[3]) }
func (s *sideRecord) aliases() ref     { return ref(s[3] >> 32) }
func (s *sideRecord) setIslands(r ref) { store(&s[3], s[3]&^0xffffffff|uint64(r)) }
func (s *sideRecord) setAliases(r ref) { store(&s[3], uint64(lo(s[3]))|uint64(r)<<32) }
func (s *sideRecord) dropped() bool    { return s[2]&droppedFlag != 0 }
func (s *sideRecord) setDropped()      { s[2] |= droppedFlag }
func (s *sideRecord) setTip(n uint32)  { s[2] = s[2]&^0xffff | uint64(n) }
func (s *sideRecord) setLast(n uint32) { s[2] = s[2]&^(0xffff<<32) | uint64(n)<<32 }
func (s *sideRecord) setCovered(n uint32) {
	s[2] = s[2]&^(0xffff<<16) | uint64(n)<<16
}
