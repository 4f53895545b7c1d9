package bench

import (
	"math/bits"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/indexer"
)

// baseline is the plain obvious exact index in Go maps: one map from the hash of a
// path to the node of its last block, which has the set of workers that hold it, and
// for each worker one map from engine hash to node. It is the yardstick that moves
// with the machine.
type baseline struct {
	words int // 64-bit words of a worker set
	nodes map[uint64]uint32
	held  []map[uint64]uint32
	paths []uint64 // by node
	sets  []uint64 // words for each node
	free  []uint32 // nodes without a holder
	live  []uint64
	rows  []indexer.Row
}

func newBaseline(workers int) *baseline {
	b := &baseline{words: (workers + 63) / 64, nodes: map[uint64]uint32{}, held: make([]map[uint64]uint32, workers)}
	for i := range b.held {
		b.held[i] = map[uint64]uint32{}
	}
	b.live = make([]uint64, b.words)
	return b
}

func (b *baseline) set(node uint32) []uint64 { return b.sets[int(node)*b.words:][:b.words] }

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
		node, ok := b.nodes[path]
		any := uint64(0)
		for w := range b.live {
			var now uint64
			if ok {
				now = b.live[w] & b.set(node)[w]
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
		path = b.paths[p]
	}
	for i, local := range locals {
		path = oplist.Mix(path ^ local)
		node, ok := b.nodes[path]
		if !ok {
			node = b.newNode(path)
			b.nodes[path] = node
		}
		b.held[worker][keys[i]] = node
		b.set(node)[worker/64] |= 1 << (worker % 64)
	}
}

func (b *baseline) newNode(path uint64) uint32 {
	if n := len(b.free); n > 0 {
		node := b.free[n-1]
		b.free = b.free[:n-1]
		b.paths[node] = path
		return node
	}
	b.paths = append(b.paths, path)
	b.sets = append(b.sets, make([]uint64, b.words)...)
	return uint32(len(b.paths) - 1)
}

func (b *baseline) remove(worker uint32, keys []uint64) {
	for _, k := range keys {
		node, ok := b.held[worker][k]
		if !ok {
			continue
		}
		delete(b.held[worker], k)
		set, any := b.set(node), uint64(0)
		set[worker/64] &^= 1 << (worker % 64)
		for _, w := range set {
			any |= w
		}
		if any == 0 {
			delete(b.nodes, b.paths[node])
			b.free = append(b.free, node)
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

func (b *baseline) parts() map[string]uint64 { return nil }

func (b *baseline) rest() {}

func (b *baseline) close() error { return nil }
