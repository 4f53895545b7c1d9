package ingest

import "slices"

// raw is a batch that waits.
type raw struct {
	seq     uint64
	back    bool // its number did not rise above the one before it on the same connection
	payload []byte
}

const rawOverhead = 64 // bytes besides the payload, roughly

func (r raw) size() int64 { return int64(len(r.payload)) + rawOverhead }

// budget is the memory that all backlogs of a loop share.
type budget struct{ used, max int64 }

// backlog is a bounded queue of batches. When one more does not fit, everything that
// waits is dropped and the new one begins the queue: what is kept is always the most
// recent stretch, and what is missing is older than all of it.
type backlog struct {
	shared   *budget
	maxItems int
	maxBytes int64
	items    []raw
	head     int
	bytes    int64
}

func (b *backlog) len() int    { return len(b.items) - b.head }
func (b *backlog) front() *raw { return &b.items[b.head] }

// push appends a batch, whose payload must belong to the backlog, and returns how
// many batches were dropped to make room (or the batch itself, when it fits nowhere).
func (b *backlog) push(r raw) (dropped int) {
	if b.len() >= b.maxItems || b.bytes+r.size() > b.maxBytes || b.shared.used+r.size() > b.shared.max {
		for i := b.head; i < len(b.items); i++ {
			r.back = r.back || b.items[i].back // a restart must not be forgotten with the batch that showed it
		}
		dropped = b.clear()
		if r.size() > b.maxBytes || b.shared.used+r.size() > b.shared.max {
			return dropped + 1
		}
	}
	if b.head > 64 && 2*b.head > len(b.items) {
		n := copy(b.items, b.items[b.head:])
		clear(b.items[n:])
		b.items, b.head = b.items[:n], 0
	}
	b.items = append(b.items, r)
	b.bytes += r.size()
	b.shared.used += r.size()
	return dropped
}

// pop removes the front and returns it.
func (b *backlog) pop() raw {
	r := b.items[b.head]
	b.items[b.head] = raw{}
	b.head++
	b.bytes -= r.size()
	b.shared.used -= r.size()
	if b.head == len(b.items) {
		b.release()
	}
	return r
}

// unpop puts the batch back that was popped last.
func (b *backlog) unpop(r raw) {
	if b.head > 0 {
		b.head--
		b.items[b.head] = r
	} else {
		b.items = slices.Insert(b.items, 0, r)
	}
	b.bytes += r.size()
	b.shared.used += r.size()
}

// clear drops everything and returns how many batches there were.
func (b *backlog) clear() int {
	n := b.len()
	b.shared.used -= b.bytes
	b.bytes = 0
	b.release()
	return n
}

func (b *backlog) release() {
	b.head = 0
	if cap(b.items) > 256 {
		b.items = nil
		return
	}
	clear(b.items)
	b.items = b.items[:0]
}
