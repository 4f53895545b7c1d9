package fanout

import (
	"maps"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// table is where frames go, at one log index. It is immutable.
type table struct {
	view       *state.View
	partitions int
	slots      map[uint64]*slot // all that frames may come for
	own        []*slot          // of them, the lives that go on, in the order of the catalog
	routes     []*route         // by partition
	wants      []set            // by number of the peer: of what it is an owner or a target
	routeds    []set            // by number of the peer: of what it gets frames
	none       set
}

// route is who gets the frames of a partition. Partitions with the same receivers have
// the same route; numbers are never given out again.
type route struct {
	index int
	peers []*peer
}

func (t *table) want(p *peer) set {
	if p.index < len(t.wants) && t.wants[p.index] != nil {
		return t.wants[p.index]
	}
	return t.none
}

func (t *table) routed(p *peer) set {
	if p.index < len(t.routeds) && t.routeds[p.index] != nil {
		return t.routeds[p.index]
	}
	return t.none
}

func keyOf(g indexer.GroupID, s indexer.Slot) uint64 { return uint64(g)<<32 | uint64(s) }

// lingering is an owner that the log has replaced and that may not know it yet.
type lingering struct {
	p    indexer.PartitionID
	peer *peer
}

// SetView takes a new view. From when it returns, frames go where the view says. It
// must be called before ingest acts on the view; views come one at a time, older ones
// are ignored.
func (f *Fanout) SetView(v *state.View) {
	f.build.Lock()
	old := f.table.Load()
	if old.view != nil && v.Index < old.view.Index {
		f.build.Unlock()
		return
	}
	t := &table{view: v, partitions: len(v.Owners), none: newSet(len(v.Owners))}
	f.linger(old, v, time.Now())
	f.route(t)
	fresh, gone := f.slotsOf(t, old)
	f.table.Store(t)
	f.build.Unlock()
	for _, s := range gone {
		s.end()
	}
	for _, s := range fresh {
		s.mu.Lock()
		for _, pe := range f.peers.all() {
			s.openEmpty(t, pe)
		}
		s.mu.Unlock()
	}
	f.wakeUp()
}

// linger notes who is no receiver any more.
func (f *Fanout) linger(old *table, v *state.View, now time.Time) {
	for p, r := range old.routes {
		for _, pe := range r.peers {
			if old.want(pe).has(p) {
				f.build.linger[lingering{indexer.PartitionID(p), pe}] = now.Add(f.cfg.Linger)
			}
		}
	}
	for p := range v.Owners {
		for _, name := range v.Receivers(uint32(p)) {
			delete(f.build.linger, lingering{indexer.PartitionID(p), f.peers.get(name)})
		}
	}
}

// route fills in who gets what, from the view and from those who linger.
func (f *Fanout) route(t *table) {
	late := map[indexer.PartitionID][]*peer{}
	for l := range f.build.linger {
		late[l.p] = append(late[l.p], l.peer)
	}
	t.routes = make([]*route, t.partitions)
	var key []byte
	for p := range t.routes {
		var to []*peer
		for _, name := range t.view.Receivers(uint32(p)) {
			pe := f.peers.get(name)
			to = append(to, pe)
			t.wants = t.mark(t.wants, pe, p)
		}
		to = append(to, late[indexer.PartitionID(p)]...)
		for _, pe := range to {
			t.routeds = t.mark(t.routeds, pe, p)
		}
		slices.SortFunc(to, func(a, b *peer) int { return a.index - b.index })
		key = key[:0]
		for _, pe := range to {
			key = append(key, byte(pe.index), byte(pe.index>>8), byte(pe.index>>16))
		}
		r := f.build.routes[string(key)]
		if r == nil {
			r = &route{len(f.build.routes), to}
			f.build.routes[string(key)] = r
		}
		t.routes[p] = r
	}
}

// mark adds a partition to the set of a peer.
func (t *table) mark(sets []set, pe *peer, p int) []set {
	for len(sets) <= pe.index {
		sets = append(sets, nil)
	}
	if sets[pe.index] == nil {
		sets[pe.index] = newSet(t.partitions)
	}
	sets[pe.index].add(p)
	return sets
}

// slotsOf fills in the slots whose sources the view gives to this node, and those whose
// lives are over but whose last frames may still come. It returns the new ones and those
// that are not there any more.
func (f *Fanout) slotsOf(t, old *table) (fresh, gone []*slot) {
	t.slots = make(map[uint64]*slot, len(old.slots))
	for _, src := range t.view.Catalog.Sources() {
		a := t.view.Assignments[src.ID]
		if a.Node != f.cfg.Name {
			continue
		}
		for _, r := range src.Ranks {
			if r.Life == 0 {
				continue
			}
			name := copywire.SlotLife{Group: indexer.GroupID(src.Group.ID), Slot: indexer.Slot(r.Slot), Life: r.Life}
			key := keyOf(name.Group, name.Slot)
			s := old.slots[key]
			if s == nil || s.name != name || s.tenure != a.Tenure {
				s = &slot{
					f: f, name: name, tenure: a.Tenure, fresh: f.cfg.Fresh(a, r),
					touched: newSet(t.partitions), label: make([]uint64, t.partitions),
				}
				fresh = append(fresh, s)
			}
			t.slots[key] = s
			t.own = append(t.own, s)
		}
	}
	for _, r := range t.view.ToPurge[f.cfg.Name] {
		key := keyOf(indexer.GroupID(r.Group), indexer.Slot(r.Slot))
		if s := old.slots[key]; s != nil && s.name.Life == r.Life && t.slots[key] == nil {
			t.slots[key] = s
			s.mu.Lock()
			s.retired = true
			s.dropPending()
			s.mu.Unlock()
		}
	}
	for key, s := range old.slots {
		if t.slots[key] != s {
			gone = append(gone, s)
		}
	}
	return fresh, gone
}

// expire ends what lingers: those copies are closed first, so that a peer that becomes
// a receiver again has none that missed something. It returns when the next is due.
func (f *Fanout) expire(now time.Time) (next time.Time) {
	f.build.Lock()
	defer f.build.Unlock()
	over := map[*peer]set{}
	old := f.table.Load()
	for l, until := range f.build.linger {
		if now.Before(until) {
			if next.IsZero() || until.Before(next) {
				next = until
			}
			continue
		}
		delete(f.build.linger, l)
		if over[l.peer] == nil {
			over[l.peer] = newSet(old.partitions)
		}
		over[l.peer].add(int(l.p))
	}
	if len(over) == 0 {
		return next
	}
	for s := range maps.Values(old.slots) {
		s.mu.Lock()
		for pe, parts := range over {
			s.close(pe, parts)
			s.cancel(pe, parts)
		}
		s.mu.Unlock()
	}
	t := *old
	t.wants, t.routeds = nil, nil
	f.route(&t)
	f.table.Store(&t)
	return next
}

// ownsAnything reports whether the log calls a node an owner.
func (f *Fanout) ownsAnything(name string) bool {
	for _, owners := range f.table.Load().view.Owners {
		if slices.ContainsFunc(owners, func(o state.Owner) bool { return o.Name == name }) {
			return true
		}
	}
	return false
}
