package tree

import (
	"errors"
	"fmt"
	"math/bits"
)

// ErrMemory reports that a lane cannot reserve memory or has used it up. A frame that
// does not fit closes its copy, as one with unknown names does.
var ErrMemory = errors.New("lane memory exhausted")

// keepPages is the least number of free pages that stay with the process.
const keepPages = 64

func (a *arena) open(reserve uint64) error {
	reserve = min(reserve, maxUnits*unitBytes)
	reserve -= reserve % (commitPages * pageBytes)
	if err := a.mem.reserve(reserve, commitPages*pageBytes); err != nil {
		return fmt.Errorf("reserve %d bytes: %w: %w", reserve, ErrMemory, err)
	}
	a.base, a.size = a.mem.base(), a.mem.length()
	for i := range a.partial {
		a.partial[i] = noPage
	}
	a.partial[chainClass] = noPage
	// Page 0 is never used, so that ref 0 is no piece.
	a.ensure(1)
	a.top = 1
	a.hint = 1
	return nil
}

func (a *arena) close() error {
	err := a.mem.release()
	*a = arena{}
	return err
}

// limit is the number of pages there can be.
func (a *arena) limit() uint32 { return uint32(a.size / pageBytes) }

// room reports whether so many bytes can be handed out, in whatever pieces.
func (a *arena) room(bytes uint64) bool {
	need := bytes/pageBytes + bytes/pageBytes/4 + 2*numClasses*spanPages
	if uint64(a.limit()-a.top) >= need {
		return a.commit(a.top + uint32(need))
	}
	return uint64(a.free)+uint64(a.limit()-a.top) >= 4*need && a.commit(a.limit())
}

// commit makes the pages below end usable.
func (a *arena) commit(end uint32) bool {
	for a.committed < end {
		n := uint32(min(commitPages, uint64(a.limit()-a.committed)))
		if n == 0 || a.mem.commit(uint64(a.committed)*pageBytes, uint64(n)*pageBytes) != nil {
			return false
		}
		a.committed += n
	}
	return true
}

func (a *arena) ensure(pages uint32) {
	for uint32(len(a.pages)) < pages {
		a.pages = append(a.pages, page{})
	}
	for uint32(len(a.freeSet))*64 < pages {
		a.freeSet = append(a.freeSet, 0)
		a.residing = append(a.residing, 0)
	}
}

// takePages returns n pages in a row, the lowest there are.
func (a *arena) takePages(n uint32) uint32 {
	if a.free >= n {
		if at, ok := a.search(n); ok {
			for i := at; i < at+n; i++ {
				w, b := i/64, uint64(1)<<(i%64)
				a.freeSet[w] &^= b
				if a.residing[w]&b != 0 {
					a.residing[w] &^= b
					a.resident--
				}
			}
			a.free -= n
			if at == a.hint {
				a.hint = at + n
			}
			return at
		}
	}
	at := a.top
	if !a.commit(at + n) {
		// room was asked before: this is a page more than the worst case.
		panic(ErrMemory)
	}
	a.ensure(at + n)
	a.top += n
	return at
}

func (a *arena) search(n uint32) (at uint32, ok bool) {
	first := true
	for w := a.hint / 64; w*64 < a.top; w++ {
		set := a.freeSet[w]
		for set != 0 {
			i := w*64 + uint32(bits.TrailingZeros64(set))
			if first {
				a.hint, first = i, false
			}
			run := uint32(1)
			for run < n && a.isFree(i+run) {
				run++
			}
			if run == n {
				return i, true
			}
			if i+run >= (w+1)*64 {
				break
			}
			set = a.freeSet[w] &^ (1<<((i+run)%64) - 1)
		}
	}
	return 0, false
}

func (a *arena) isFree(i uint32) bool {
	return i < a.top && a.freeSet[i/64]>>(i%64)&1 != 0
}

func (a *arena) givePages(at, n uint32) {
	for i := at; i < at+n; i++ {
		a.freeSet[i/64] |= 1 << (i % 64)
		a.residing[i/64] |= 1 << (i % 64)
	}
	a.free += n
	a.resident += n
	a.hint = min(a.hint, at)
}

// reserved is what the lane has from the system: pages in use and pages kept.
func (a *arena) reserved() uint64 { return uint64(a.top-a.free+a.resident) * pageBytes }

// shrink gives free pages back to the system when there are many more than are
// likely to be used again soon; at most budget stretches in one call.
func (a *arena) shrink(budget int) {
	keep := max(keepPages, (a.top-a.free)/32)
	if a.resident <= keep+keep/2 {
		return
	}
	for w := int((a.top - 1) / 64); w >= 0 && budget > 0 && a.resident > keep; w-- {
		for set := a.residing[w]; set != 0 && budget > 0; budget-- {
			high := uint32(w*64 + 63 - bits.LeadingZeros64(set))
			low := high
			for low > uint32(w*64) && set>>((low-1)%64)&1 != 0 {
				low--
			}
			n := high - low + 1
			a.mem.decommit(uint64(low)*pageBytes, uint64(n)*pageBytes)
			for i := low; i <= high; i++ {
				set &^= 1 << (i % 64)
				a.residing[w] &^= 1 << (i % 64)
			}
			a.resident -= n
		}
	}
}
