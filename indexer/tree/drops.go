package tree

import "sync/atomic"

// dropClock tells readers which slots have lost coverage while they were looking.
//
// A reader that sees a chain before a drop and a chain below it after a later store
// would find a depth that was never held at one time. The clock is odd while a drop
// is under way, and every drop leaves its number with its slot. A reader takes the
// clock before and after; when it moved, the slots that it is about to report and that
// have a number from then on are looked up again. The table is
// shared by all slots of the lane: a collision costs a second look.
type dropClock struct {
	now atomic.Uint64
	at  [dropSlots]atomic.Uint64
}

const dropSlots = 4096

func dropSlot(tree, slot uint32) uint32 { return (tree*0x9e37 + slot) % dropSlots }

func (d *dropClock) begin(t *tree, slot uint32) {
	n := d.now.Load() + 1
	d.at[dropSlot(t.number, slot)].Store(n)
	d.now.Store(n)
}

func (d *dropClock) end() { d.now.Store(d.now.Load() + 1) }
