package reference

import "github.com/kvcluster/kvcluster/indexer"

// pathKey names a path of local hashes. It is only ever used for the eviction log:
// coverage never depends on a hash of a path.
type pathKey uint64

func rootPath(anchor uint64) pathKey { return pathKey(anchor ^ 0x9e3779b97f4a7c15) }

// next mixes one more block into the path (the finaliser of SplitMix64).
func (k pathKey) next(local uint64) pathKey {
	z := uint64(k)*0xd1342543de82ef95 + local + 1
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return pathKey(z ^ z>>31)
}

// evicted names a position that a slot held and dropped.
type evicted struct {
	group     indexer.GroupID
	partition indexer.PartitionID
	slot      indexer.Slot
	path      pathKey
}

// evictionLog remembers the last evictions, oldest forgotten first.
type evictionLog struct {
	limit int
	ring  []evicted
	next  int
	in    map[evicted]int // how often it is in the ring
}

func (l *evictionLog) reset() { l.ring, l.next, l.in = nil, 0, map[evicted]int{} }

func (l *evictionLog) add(e evicted) {
	switch {
	case l.limit == 0:
		return
	case len(l.ring) < l.limit:
		l.ring = append(l.ring, e)
	default:
		l.uncount(l.ring[l.next])
		l.ring[l.next] = e
		l.next = (l.next + 1) % l.limit
	}
	l.in[e]++
}

func (l *evictionLog) uncount(e evicted) {
	if n := l.in[e]; n > 1 {
		l.in[e] = n - 1
	} else {
		delete(l.in, e)
	}
}

// refill takes back what the log says of a position that is stored again. Its
// entries stay in the ring, where they count for nothing.
func (l *evictionLog) refill(e evicted) { delete(l.in, e) }

// forget takes back what the log says of a slot.
func (l *evictionLog) forget(g indexer.GroupID, s indexer.Slot) {
	for e := range l.in {
		if e.group == g && e.slot == s {
			delete(l.in, e)
		}
	}
}

func (l *evictionLog) has(e evicted) bool { return l.in[e] > 0 }
