package tree

import (
	"math/bits"
	"unsafe"
)

// A slot index finds the entry of a slot in a long list. It belongs to the lane alone;
// readers scan lists from end to end anyway. Short lists have none.
//
//	0  size (32), a power of two
//	1  1 + number of the entry (32), 0 = empty; size times
//
// It is an open table with the slot numbers in the list itself, in the high halves
// of its words; deleting closes the gap.
const indexedRoom = 64 // lists from this room on have an index

func indexUnits(size uint32) uint32 { return (2 + size + 3) / 4 }

func (l *Lane) slotIndex(ix ref) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Add(l.arena.at(ix), 8)), lo(*l.arena.word(ix, 0)))
}

// newIndex makes an index of a list with that much room, or none.
func (l *Lane) newIndex(entries []uint64, room uint32, p purpose) ref {
	if room < indexedRoom {
		return 0
	}
	size := uint32(1) << bits.Len32(room+room/2)
	ix := l.arena.alloc(indexUnits(size), p)
	*l.arena.word(ix, 0) = uint64(size)
	clear(l.slotIndex(ix))
	for i, w := range entries {
		if w != 0 {
			l.indexPut(ix, hi(w), uint32(i))
		}
	}
	return ix
}

func (l *Lane) freeIndex(ix ref, p purpose) {
	if ix != 0 {
		l.arena.release(ix, indexUnits(lo(*l.arena.word(ix, 0))), p)
	}
}

func indexHome(slot, size uint32) uint32 { return slot * 0x9e3779b1 >> 7 & (size - 1) }

// indexFind returns the number of the slot's entry, or -1.
func (l *Lane) indexFind(ix ref, slot uint32, entries []uint64) int {
	t := l.slotIndex(ix)
	size := uint32(len(t))
	for i := indexHome(slot, size); t[i] != 0; i = (i + 1) & (size - 1) {
		if hi(entries[t[i]-1]) == slot {
			return int(t[i] - 1)
		}
	}
	return -1
}

// indexPut enters a slot that is not there.
func (l *Lane) indexPut(ix ref, slot, number uint32) {
	t := l.slotIndex(ix)
	size := uint32(len(t))
	i := indexHome(slot, size)
	for t[i] != 0 {
		i = (i + 1) & (size - 1)
	}
	t[i] = number + 1
}

// indexDelete takes out the entry with that number; entries still has it.
func (l *Lane) indexDelete(ix ref, number uint32, entries []uint64) {
	t := l.slotIndex(ix)
	size := uint32(len(t))
	i := indexHome(hi(entries[number]), size)
	for t[i] != number+1 {
		i = (i + 1) & (size - 1)
	}
	for j := i; ; {
		t[i] = 0
		for {
			j = (j + 1) & (size - 1)
			if t[j] == 0 {
				return
			}
			// The entry at j may fill the gap at i unless its home lies behind i.
			home := indexHome(hi(entries[t[j]-1]), size)
			if (j-home)&(size-1) >= (j-i)&(size-1) {
				break
			}
		}
		t[i] = t[j]
		i = j
	}
}
