package bench

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
)

// baseline is the plain obvious exact index in Go maps: one map from the hash of a
// path to the set of workers that hold its last block, and for each worker one from
// engine hash to path hash. It is the yardstick that moves with the machine.
type baseline struct {
	words int // 64-bit words of a worker set
	nodes map[uint64][]uint64
	held  []map[uint64]uint64
	live  []uint64
	rows  []indexer.Row
}

func newBaseline(workers int) *baseline {
	b := &baseline{words: (workers + 63) / 64, nodes: map[uint64][]uint64{}, held: make([]map[uint64]uint64, workers)}
	for i := range b.held {
		b.held[i] = map[uint64]uint64{}
	}
	b.live = make([]uint64, b.words)
	return b
}

// rootPath is the hash of the empty path.
const rootPath = 0x6b76636c7573

func (b *baseline) query(locals []uint64) []indexer.Row {
	b.rows = b.rows[:0]
	for i := range b.live {
		b.live[i] = ^uint64(0)
	}
	path := uint64(rootPath)
	for depth, local := range locals {
		path = oplist.Mix(path ^ local)
		set, any := b.nodes[path], uint64(0)
		for w := range b.live {
			var now uint64
			if set != nil {
				now = b.live[w] & set[w]
			}
			b.drop(w, b.live[w]&^now, depth)
			b.live[w] = now
			any |= now
		}
		if any == 0 {
			return b.rows
		}
	}
	for w := range b.live {
		b.drop(w, b.live[w], len(locals))
	}
	return b.rows
}

// drop scores the workers that hold exactly depth blocks.
func (b *baseline) drop(word int, set uint64, depth int) {
	if depth == 0 {
		return
	}
	for ; set != 0; set &= set - 1 {
		b.rows = append(b.rows, indexer.Row{Slot: indexer.Slot(64*word + bits.TrailingZeros64(set)), Depth: uint32(depth)})
	}
}

func (b *baseline) store(worker uint32, hasParent bool, parent uint64, locals, keys []uint64) {
	path := uint64(rootPath)
	if hasParent {
		p, ok := b.held[worker][parent]
		if !ok {
			return
		}
		path = p
	}
	for i, local := range locals {
		path = oplist.Mix(path ^ local)
		b.held[worker][keys[i]] = path
		set := b.nodes[path]
		if set == nil {
			set = make([]uint64, b.words)
			b.nodes[path] = set
		}
		set[worker/64] |= 1 << (worker % 64)
	}
}

func (b *baseline) remove(worker uint32, keys []uint64) {
	for _, k := range keys {
		path, ok := b.held[worker][k]
		if !ok {
			continue
		}
		delete(b.held[worker], k)
		set := b.nodes[path]
		set[worker/64] &^= 1 << (worker % 64)
		any := uint64(0)
		for _, w := range set {
			any |= w
		}
		if any == 0 {
			delete(b.nodes, path)
		}
	}
}

func (b *baseline) counts() (held, distinct uint64) {
	for _, m := range b.held {
		held += uint64(len(m))
	}
	return held, uint64(len(b.nodes))
}

// mappedBytes is 0: everything is on the Go heap.
func (b *baseline) mappedBytes() uint64 { return 0 }

func (b *baseline) close() error { return nil }
