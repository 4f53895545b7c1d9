package router

import (
	"sync"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// place is the position of a rank in the order of answers: by instance, then by rank.
type place int32

// rankName is what an answer says about one rank.
type rankName struct {
	instance string
	key      []byte // the instance as a JSON key, with the colon
	rank     uint32
	slot     indexer.Slot
	life     uint64
	first    bool         // first rank of its instance
	matched  *atomic.Bool // some query found a block of it
}

// groupNames translates the slots of one group at one catalog index. It is immutable
// but for the usage counters that it points to.
type groupNames struct {
	group   *catalog.Group
	places  []place // by slot, -1 = nobody's
	ranks   []rankName
	queries *atomic.Uint64 // of this group, since its number was given
}

// nameCache keeps the names of the latest view that was asked for, and what queries have
// matched.
type nameCache struct {
	current atomic.Pointer[viewNames]
	matched sync.Map // life to *atomic.Bool
	queries sync.Map // group ID to *atomic.Uint64
}

type viewNames struct {
	view   *catalog.View
	groups sync.Map // group ID to *groupNames
}

// of returns the names of a group of a view.
func (n *nameCache) of(v *catalog.View, g *catalog.Group) *groupNames {
	cur := n.current.Load()
	if cur == nil || cur.view != v {
		next := &viewNames{view: v}
		if cur != nil && cur.view.Index > v.Index { // a slow query with an old view
			return n.build(v, g)
		}
		n.current.CompareAndSwap(cur, next) // the loser of a race uses its own once
		cur = next
	}
	if g, ok := cur.groups.Load(g.ID); ok {
		return g.(*groupNames)
	}
	out, _ := cur.groups.LoadOrStore(g.ID, n.build(v, g))
	return out.(*groupNames)
}

func (n *nameCache) build(v *catalog.View, g *catalog.Group) *groupNames {
	queries, _ := n.queries.LoadOrStore(g.ID, new(atomic.Uint64))
	out := &groupNames{group: g, places: make([]place, g.NumSlots()), queries: queries.(*atomic.Uint64)}
	for i := range out.places {
		out.places[i] = -1
	}
	for _, w := range v.Workers() {
		if w.Group.ID != g.ID {
			continue
		}
		key := append(appendString(nil, w.Instance), ':')
		for i, r := range w.Ranks {
			matched, _ := n.matched.LoadOrStore(r.Life, new(atomic.Bool))
			out.places[r.Slot] = place(len(out.ranks))
			out.ranks = append(out.ranks, rankName{
				instance: w.Instance, key: key, rank: r.Rank, slot: indexer.Slot(r.Slot), life: r.Life, first: i == 0,
				matched: matched.(*atomic.Bool),
			})
		}
	}
	return out
}

// usage returns how many queries the group had and whether one of them matched the life.
func (n *nameCache) usage(group uint32, life uint64) (queries uint64, matched bool) {
	if q, ok := n.queries.Load(group); ok {
		queries = q.(*atomic.Uint64).Load()
	}
	if m, ok := n.matched.Load(life); ok {
		matched = m.(*atomic.Bool).Load()
	}
	return queries, matched
}

// prune forgets lives and groups that the view no longer has.
func (n *nameCache) prune(v *catalog.View) {
	lives := map[uint64]bool{}
	for _, w := range v.Workers() {
		for _, r := range w.Ranks {
			lives[r.Life] = true
		}
	}
	n.matched.Range(func(life, _ any) bool {
		if !lives[life.(uint64)] {
			n.matched.Delete(life)
		}
		return true
	})
	n.queries.Range(func(id, _ any) bool {
		if _, ok := v.GroupByID(id.(uint32)); !ok {
			n.queries.Delete(id)
		}
		return true
	})
}
