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
	m := model{list: l, words: words, bits: make([]uint64, l.cfg.Copies*l.ids*blocksPerID*words)}
	alive := make([]uint64, words)
	var a Answers
	for o := range l.All {
		switch o.Kind {
		case Query:
			for w := range alive {
				alive[w] = ^uint64(0)
			}
			for d, c := range o.Contents {
				set := m.set(unmix(c))
				left := uint64(0)
				for w := range alive {
					now := alive[w] & set[w]
					// These held the d blocks before this one and not this one.
					m.add(&a, o.Request, w, alive[w]&^now, uint32(d))
					alive[w] = now
					left |= now
				}
				if left == 0 {
					break
				}
			}
			for w := range alive {
				m.add(&a, o.Request, w, alive[w], uint32(len(o.Contents)))
			}
		case Stored:
			for _, k := range o.Keys {
				m.set(unmix(unmix(k)))[o.Worker/64] |= 1 << (o.Worker % 64)
			}
		case Removed:
			for _, k := range o.Keys {
				m.set(unmix(unmix(k)))[o.Worker/64] &^= 1 << (o.Worker % 64)
			}
		}
	}
	return a
}

// model has a bitset of workers for each block number.
type model struct {
	list  *List
	words int
	bits  []uint64
}

func (m *model) set(raw uint64) []uint64 {
	at := m.list.dense(raw) * m.words
	return m.bits[at : at+m.words]
}

// dense numbers the blocks of all copies without the room that lies between copies.
func (l *List) dense(raw uint64) int {
	const perCopy = idsPerCopy * blocksPerID
	return int(raw/perCopy)*l.ids*blocksPerID + int(raw%perCopy)
}

// AppendBlocks appends the block numbers that contents stand for: for indexes that are
// asked by tokens, a block's number is its only token.
func AppendBlocks(dst []uint32, contents []uint64) []uint32 {
	for _, c := range contents {
		dst = append(dst, uint32(unmix(c)))
	}
	return dst
}

// unmix is the inverse of Mix: block numbers back from hashes.
func unmix(z uint64) uint64 {
	z = (z ^ z>>31 ^ z>>62) * 0x319642B2D24D8EC3 // inverse of 0x94D049BB133111EB
	z = (z ^ z>>27 ^ z>>54) * 0x96DE1B173F119089 // inverse of 0xBF58476D1CE4E5B9
	return (z ^ z>>30 ^ z>>60) - 0x9E3779B97F4A7C15
}

func (m *model) add(a *Answers, request uint32, word int, set uint64, depth uint32) {
	if depth == 0 {
		return
	}
	for ; set != 0; set &= set - 1 {
		if w := word*64 + bits.TrailingZeros64(set); w < m.list.cfg.Workers {
			a.Add(request, uint32(w), depth)
		}
	}
}
