package oplist

import "math/bits"

// Answers accumulates what an index answered: for every query the workers with a
// depth above 0. The order of the calls does not matter. The zero value is empty.
type Answers struct {
	Rows     uint64 // (query, worker) pairs with a depth above 0
	DepthSum uint64
	Hash     uint64 // wrapping sum of Mix(request<<32 ^ worker<<16 ^ depth)
}

// Add counts one row. A depth of 0 is no row.
func (a *Answers) Add(request, worker, depth uint32) {
	if depth == 0 {
		return
	}
	a.Rows++
	a.DepthSum += uint64(depth)
	a.Hash += Mix(uint64(request)<<32 ^ uint64(worker)<<16 ^ uint64(depth))
}

// Merge adds the rows of b, for accumulators that worked on different queries.
func (a *Answers) Merge(b Answers) {
	a.Rows += b.Rows
	a.DepthSum += b.DepthSum
	a.Hash += b.Hash
}

// Expected computes the answers from one set of workers for each block: the depth
// of a worker is the number of leading blocks of the query that it holds. It takes
// about as long as Build.
func (l *List) Expected() Answers {
	words := (l.cfg.Workers + 63) / 64
	m := model{words: words, row: make(map[uint64]int, l.totals.Distinct)}
	keyOf := func(content uint64) uint64 { return Mix(content) }
	alive := make([]uint64, words)
	var a Answers
	for o := range l.All {
		switch o.Kind {
		case Query:
			for w := range alive {
				alive[w] = ^uint64(0)
			}
			for d, c := range o.Contents {
				set := m.set(keyOf(c))
				left := uint64(0)
				for w := range alive {
					now := uint64(0)
					if set != nil {
						now = alive[w] & set[w]
					}
					// These held the d blocks before this one and not this one.
					m.add(&a, o.Request, w, alive[w]&^now, uint32(d), l.cfg.Workers)
					alive[w] = now
					left |= now
				}
				if left == 0 {
					break
				}
			}
			for w := range alive {
				m.add(&a, o.Request, w, alive[w], uint32(len(o.Contents)), l.cfg.Workers)
			}
		case Stored:
			for _, k := range o.Keys {
				m.make(k)[o.Worker/64] |= 1 << (o.Worker % 64)
			}
		case Removed:
			for _, k := range o.Keys {
				m.make(k)[o.Worker/64] &^= 1 << (o.Worker % 64)
			}
		}
	}
	return a
}

// model has a bitset of workers for each engine hash that was ever stored.
type model struct {
	words int
	row   map[uint64]int
	bits  []uint64
}

func (m *model) set(key uint64) []uint64 {
	at, ok := m.row[key]
	if !ok {
		return nil
	}
	return m.bits[at : at+m.words]
}

func (m *model) make(key uint64) []uint64 {
	if s := m.set(key); s != nil {
		return s
	}
	at := len(m.bits)
	m.row[key] = at
	for range m.words {
		m.bits = append(m.bits, 0)
	}
	return m.bits[at : at+m.words]
}

func (m *model) add(a *Answers, request uint32, word int, set uint64, depth uint32, workers int) {
	if depth == 0 {
		return
	}
	for ; set != 0; set &= set - 1 {
		if w := word*64 + bits.TrailingZeros64(set); w < workers {
			a.Add(request, uint32(w), depth)
		}
	}
}
