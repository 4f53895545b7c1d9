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
	first    bool // first rank of its instance
	usage    *usage
}

// usage is what queries have made of one life.
type usage struct {
	matched atomic.Bool // some query found a block of it
	// holding is the number of queries of the group when the life was first seen to hold
	// something, plus one; 0 = it was not.
	holding atomic.Uint64
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
	lives   sync.Map // life to *usage
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
			used, _ := n.lives.LoadOrStore(r.Life, new(usage))
			out.places[r.Slot] = place(len(out.ranks))
			out.ranks = append(out.ranks, rankName{
				instance: w.Instance, key: key, rank: r.Rank, slot: indexer.Slot(r.Slot), life: r.Life, first: i == 0,
				usage: used.(*usage),
			})
		}
	}
	return out
}

// missed returns how many queries of its group a life has missed while it held blocks;
// 0 when one of them matched it. It is called when the life holds something.
func (n *nameCache) missed(group uint32, life uint64) uint64 {
	count, _ := n.queries.LoadOrStore(group, new(atomic.Uint64))
	used, _ := n.lives.LoadOrStore(life, new(usage))
	u, queries := used.(*usage), count.(*atomic.Uint64).Load()
	u.holding.CompareAndSwap(0, queries+1)
	if u.matched.Load() {
		return 0
	}
	return queries + 1 - u.holding.Load()
}

// prune forgets lives and groups that the view no longer has. Those that are newer than
// the view stay: somebody counts in them already.
func (n *nameCache) prune(v *catalog.View) {
	lives := map[uint64]bool{}
	for _, w := range v.Workers() {
		for _, r := range w.Ranks {
			lives[r.Life] = true
		}
	}
	n.lives.Range(func(life, _ any) bool {
		if l := life.(uint64); l <= v.Index && !lives[l] {
			n.lives.Delete(life)
		}
		return true
	})
	var newest uint32
	for _, g := range v.Groups() {
		newest = max(newest, g.ID)
	}
	n.queries.Range(func(id, _ any) bool {
		if _, ok := v.GroupByID(id.(uint32)); !ok && id.(uint32) < newest {
			n.queries.Delete(id)
		}
		return true
	})
}
