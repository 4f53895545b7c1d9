package tree

// The child table of a lane finds the chain that begins with a block below a
// position, and the root of a tree. It is one open table of buckets of one cache
// line, 8 entries of
//
//	chain ref (32) | hash (32)
//
// The bucket is the hash scaled to the number of buckets, so growing needs no keys. A
// full bucket overflows into the next one; a lookup ends at the first bucket with an
// empty entry. Entries never move within a table, so readers need no lock: a bigger
// table is built aside and published in one word.
//
// A hit on the hash is only a candidate: the caller compares parent, fork and the
// first local hash, which are in the chain itself.
type childTable struct {
	word uint64 // table ref (32) | buckets (32); readers load it
	live uint32
	dead uint32 // entries of removed chains in buckets that have overflowed
}

const (
	bucketEntries = 8
	bucketUnits   = 4
	deadEntry     = 1 << 32 // no ref
	leastBuckets  = 8
)

func childHash(parent ref, fork uint32, local uint64) uint32 {
	return uint32(mix(local+(uint64(parent)<<13|uint64(fork))*0x9e3779b97f4a7c15) >> 32)
}

func rootHash(group, partition uint32, anchor uint64) uint32 {
	return uint32(mix(anchor^mix(pack(group, partition)+0x632be59bd9b4e019)) >> 32)
}

// filterBit is the bit of the child filter in the parent's header. No bit, no child.
func filterBit(hash uint32) uint64 { return 1 << (32 + hash&31) }

func scale(hash, n uint32) uint32 { return uint32(uint64(hash) * uint64(n) >> 32) }

// initTable makes the first table.
func (l *Lane) initTable() {
	l.children = childTable{}
	store(&l.children.word, pack(uint32(l.newBuckets(leastBuckets)), leastBuckets))
}

func (l *Lane) newBuckets(n uint32) ref {
	r := l.arena.alloc(n*bucketUnits, forChildren)
	clear(l.arena.words(r, int(n)*bucketEntries))
	return r
}

// findChild returns the chain below fork of parent that begins with local, or 0.
func (l *Lane) findChild(parent ref, fork uint32, local uint64, hash uint32) ref {
	t := l.children.word
	n := hi(t)
	b := scale(hash, n)
	for {
		bucket := (*[bucketEntries]uint64)(l.arena.at(ref(lo(t) + b*bucketUnits)))
		open := false
		for _, e := range bucket {
			if hi(e) == hash && lo(e) != 0 {
				h := l.arena.header(ref(e))
				if h[hParent] == packParent(parent, fork, kindChain) && *l.arena.word(h.content(), 0) == local {
					return ref(e)
				}
			}
			open = open || e == 0
		}
		if open {
			return 0
		}
		if b++; b == n {
			b = 0
		}
	}
}

// findRoot returns the root of a tree, or 0.
func (l *Lane) findRoot(k treeKey, anchor uint64, hash uint32) ref {
	t := l.children.word
	n := hi(t)
	b := scale(hash, n)
	for {
		bucket := (*[bucketEntries]uint64)(l.arena.at(ref(lo(t) + b*bucketUnits)))
		open := false
		for _, e := range bucket {
			if hi(e) == hash && lo(e) != 0 {
				h := l.arena.header(ref(e))
				if h.isRoot() && h[hCuts] == pack(k.group, k.partition) && h[hCuts+1] == anchor {
					return ref(e)
				}
			}
			open = open || e == 0
		}
		if open {
			return 0
		}
		if b++; b == n {
			b = 0
		}
	}
}

// publish enters a chain or root.
func (l *Lane) publish(c ref, hash uint32) {
	n := hi(l.children.word)
	if l.children.live+l.children.dead >= n*bucketEntries*3/4 {
		l.rebuildTable()
		n = hi(l.children.word)
	}
	l.insertEntry(ref(l.children.word), n, pack(uint32(c), hash))
	l.children.live++
}

func (l *Lane) insertEntry(table ref, n uint32, entry uint64) {
	for b := scale(hi(entry), n); ; {
		bucket := (*[bucketEntries]uint64)(l.arena.at(table + ref(b*bucketUnits)))
		for i := range bucket {
			if lo(bucket[i]) == 0 {
				if bucket[i] == deadEntry {
					l.children.dead--
				}
				store(&bucket[i], entry)
				return
			}
		}
		if b++; b == n {
			b = 0
		}
	}
}

// unpublish takes a chain or root out.
func (l *Lane) unpublish(c ref, hash uint32) {
	t := l.children.word
	n := hi(t)
	want := pack(uint32(c), hash)
	for b := scale(hash, n); ; {
		bucket := (*[bucketEntries]uint64)(l.arena.at(ref(lo(t) + b*bucketUnits)))
		at, open := -1, false
		for i, e := range bucket {
			if e == want {
				at = i
			}
			open = open || e == 0
		}
		if at >= 0 {
			// A bucket without an empty entry may have overflowed: what lies beyond it
			// must still be found.
			if open {
				store(&bucket[at], 0)
			} else {
				store(&bucket[at], deadEntry)
				l.children.dead++
			}
			l.children.live--
			break
		}
		if open {
			panic("tree: chain is not in the child table")
		}
		if b++; b == n {
			b = 0
		}
	}
	if n > leastBuckets && l.children.live < n {
		l.rebuildTable()
	}
}

// rebuildTable makes a table of the right size and publishes it.
func (l *Lane) rebuildTable() {
	old := l.children.word
	n := max(leastBuckets, l.children.live/4+1)
	next := l.newBuckets(n)
	l.children.dead = 0
	for _, e := range l.arena.words(ref(old), int(hi(old))*bucketEntries) {
		if lo(e) != 0 {
			l.insertEntry(next, n, e)
		}
	}
	store(&l.children.word, pack(uint32(next), n))
	l.retire(ref(old), hi(old)*bucketUnits, forChildren)
}

// tableBytes is what the next rebuild may take.
func (l *Lane) tableBytes() uint64 {
	return uint64(l.children.live/4+leastBuckets) * bucketUnits * unitBytes
}
