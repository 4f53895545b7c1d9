package mockengine

// pool is the device cache of one worker, after vLLM's: a fixed number of physical
// blocks, of which some are pinned by running requests, some are cached (hashed and
// unpinned, in order of last release) and the rest is free. Several physical blocks
// can hold copies of one logical block; the block is resident while one copy is.
//
// Physical block 0 is the head of the ring of cached blocks and holds nothing.
type pool struct {
	blocks   []physical
	free     int32 // list through next, 0 = none
	numFree  int
	cached   int // blocks in the ring
	resident map[uint64]residence
}

type physical struct {
	key        uint64 // path key, when hashed
	pins       int32
	prev, next int32 // ring of cached blocks, or the free list through next
	sibling    int32 // next copy of the same key, 0 = none
	hashed     bool
}

// residence is a logical block that at least one physical block holds.
type residence struct {
	engine uint64 // engine hash
	first  int32  // newest copy
	copies int32
}

func newPool(capacity int) *pool {
	p := &pool{}
	p.reset(capacity)
	return p
}

// reset forgets everything, as a restarted process does.
func (p *pool) reset(capacity int) {
	p.blocks = make([]physical, capacity+1)
	p.resident = make(map[uint64]residence)
	p.free, p.numFree, p.cached = 0, 0, 0
	for i := int32(capacity); i >= 1; i-- {
		p.blocks[i].next = p.free
		p.free = i
		p.numFree++
	}
}

func (p *pool) capacity() int { return len(p.blocks) - 1 }

func (p *pool) has(key uint64) bool { _, ok := p.resident[key]; return ok }

// prefix returns how many leading keys are resident.
func (p *pool) prefix(keys []uint64) int {
	n := 0
	for n < len(keys) && p.has(keys[n]) {
		n++
	}
	return n
}

// admit pins one copy of each of the first hit keys, which must be resident, and
// reserves further blocks up to total. When free blocks do not suffice it evicts
// the least recently released cached blocks; evicted gets those whose last copy
// went, with every those of which a copy went, in that order. It changes nothing and returns false when pinned
// blocks leave too little room.
func (p *pool) admit(keys []uint64, hit, total int, held []int32, evicted []evictedBlock, every bool) ([]int32, []evictedBlock, bool) {
	room := p.numFree + p.cached
	from := len(held)
	for _, k := range keys[:hit] {
		b := p.resident[k].first
		if p.blocks[b].pins == 0 {
			room-- // it leaves the ring without giving a block
		}
		held = append(held, b)
	}
	if total-hit > room {
		return held[:from], evicted, false
	}
	for _, b := range held[from:] {
		if p.blocks[b].pins == 0 {
			p.unlink(b)
		}
		p.blocks[b].pins++
	}
	for range total - hit {
		if p.free == 0 {
			key, engine, gone := p.evict()
			if gone || every {
				evicted = append(evicted, evictedBlock{key: key, engine: engine, copyLeft: !gone})
			}
		}
		b := p.free
		p.free = p.blocks[b].next
		p.numFree--
		p.blocks[b] = physical{pins: 1}
		held = append(held, b)
	}
	return held, evicted, true
}

type evictedBlock struct {
	key, engine uint64
	copyLeft    bool // another copy is still resident
}

// evict frees the least recently released cached block; gone says that it was the
// last copy of its key.
func (p *pool) evict() (key, engine uint64, gone bool) {
	b := p.blocks[0].prev
	p.unlink(b)
	key = p.blocks[b].key
	r := p.resident[key]
	engine = r.engine
	p.forgetCopy(b, r)
	p.blocks[b] = physical{next: p.free}
	p.free = b
	p.numFree++
	return key, engine, !p.has(key)
}

func (p *pool) forgetCopy(b int32, r residence) {
	key := p.blocks[b].key
	r.copies--
	if r.copies == 0 {
		delete(p.resident, key)
		return
	}
	if r.first == b {
		r.first = p.blocks[b].sibling
	} else {
		at := r.first
		for p.blocks[at].sibling != b {
			at = p.blocks[at].sibling
		}
		p.blocks[at].sibling = p.blocks[b].sibling
	}
	p.resident[key] = r
}

// commit makes a pinned block visible under its key: it has been computed. fresh is
// false when another copy is visible already.
func (p *pool) commit(b int32, key, engine uint64) (fresh bool) {
	r, ok := p.resident[key]
	p.blocks[b].key, p.blocks[b].hashed = key, true
	p.blocks[b].sibling = r.first
	p.resident[key] = residence{engine: engine, first: b, copies: r.copies + 1}
	return !ok
}

// release unpins the blocks of a finished request, last one first, so that the
// tail of its chain is evicted before the head.
func (p *pool) release(held []int32) {
	for i := len(held) - 1; i >= 0; i-- {
		b := held[i]
		p.blocks[b].pins--
		if p.blocks[b].pins > 0 {
			continue
		}
		if !p.blocks[b].hashed {
			p.blocks[b] = physical{next: p.free}
			p.free = b
			p.numFree++
			continue
		}
		last := p.blocks[0].next
		p.blocks[b].prev, p.blocks[b].next = 0, last
		p.blocks[last].prev = b
		p.blocks[0].next = b
		p.cached++
	}
}

func (p *pool) unlink(b int32) {
	prev, next := p.blocks[b].prev, p.blocks[b].next
	p.blocks[prev].next = next
	p.blocks[next].prev = prev
	p.cached--
}

// hostPool is the host tier of one worker, after SGLang's HiCache in write-through
// mode: every computed block is copied to the host while there is room, the device
// copy goes first, and only blocks without a device copy can be evicted.
type hostPool struct {
	capacity int
	place    map[uint64]int32
	nodes    []hostNode // node 0 heads the ring of evictable blocks
	free     int32
}

type hostNode struct {
	key, engine uint64
	prev, next  int32
	evictable   bool
}

func newHostPool(capacity int) *hostPool {
	h := &hostPool{capacity: capacity}
	h.reset()
	return h
}

func (h *hostPool) reset() {
	h.place = make(map[uint64]int32)
	h.nodes = make([]hostNode, 1, 64)
	h.free = 0
}

func (h *hostPool) has(key uint64) bool { _, ok := h.place[key]; return ok }

// add copies a block that is on the device. ok is false when it is there already
// or nothing can make room; evicted is the block that had to go, if any.
func (h *hostPool) add(key, engine uint64) (evicted evictedBlock, any, ok bool) {
	if h.capacity == 0 || h.has(key) {
		return evicted, false, false
	}
	if len(h.place) >= h.capacity {
		n := h.nodes[0].prev
		if n == 0 {
			return evicted, false, false
		}
		evicted, any = evictedBlock{key: h.nodes[n].key, engine: h.nodes[n].engine}, true
		h.unlink(n)
		delete(h.place, evicted.key)
		h.nodes[n].next = h.free
		h.free = n
	}
	n := h.free
	if n != 0 {
		h.free = h.nodes[n].next
	} else {
		n = int32(len(h.nodes))
		h.nodes = append(h.nodes, hostNode{})
	}
	h.nodes[n] = hostNode{key: key, engine: engine}
	h.place[key] = n
	return evicted, any, true
}

// deviceGone makes a block evictable, deviceBack protects it again.
func (h *hostPool) deviceGone(key uint64) {
	n, ok := h.place[key]
	if !ok || h.nodes[n].evictable {
		return
	}
	last := h.nodes[0].next
	h.nodes[n].prev, h.nodes[n].next, h.nodes[n].evictable = 0, last, true
	h.nodes[last].prev = n
	h.nodes[0].next = n
}

func (h *hostPool) deviceBack(key uint64) {
	if n, ok := h.place[key]; ok && h.nodes[n].evictable {
		h.unlink(n)
	}
}

func (h *hostPool) unlink(n int32) {
	prev, next := h.nodes[n].prev, h.nodes[n].next
	h.nodes[prev].next = next
	h.nodes[next].prev = prev
	h.nodes[n].evictable = false
}
