package gossip

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Peer is a node as gossip sees it.
type Peer struct {
	Meta
	Address string // host:port of its gossip
	Alive   bool
	Since   time.Time // of the last change of Alive
}

// maxDead bounds the dead nodes that are remembered.
const maxDead = 1024

// table holds every run of every node that was heard of. Its lock is taken under
// memberlist's, and nothing is waited for under it.
type table struct {
	self  string // memberlist's name of this node
	dirty chan struct{}

	mu struct {
		sync.Mutex
		meta     Meta // of this node
		packed   []byte
		cluster  string
		runs     map[string]*Peer // by memberlist's name
		watchers []chan struct{}
	}
	changed chan struct{}
}

func newTable(self string) *table {
	t := &table{self: self, dirty: make(chan struct{}, 1)}
	t.mu.runs = map[string]*Peer{}
	t.changed = t.watch()
	return t
}

func (t *table) watch() chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	ch := make(chan struct{}, 1)
	t.mu.watchers = append(t.mu.watchers, ch)
	return ch
}

func (t *table) setMeta(m Meta, cluster string) {
	packed, err := m.Pack()
	if err != nil {
		return // checked by New and SetMeta
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.meta, t.mu.packed, t.mu.cluster = m, packed, cluster
}

func (t *table) packed() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.packed
}

func (t *table) own() (m Meta, cluster string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.meta, t.mu.cluster
}

// set notes a run that is alive.
func (t *table) set(name string, m Meta, address string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.mu.runs[name]
	if p == nil || !p.Alive {
		p = &Peer{Since: time.Now()}
		t.mu.runs[name] = p
	}
	p.Meta, p.Address, p.Alive = m, address, true
	t.trimLocked()
	t.poke()
}

// kill notes that a run is dead or has left.
func (t *table) kill(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.mu.runs[name]; p != nil && p.Alive {
		p.Alive, p.Since = false, time.Now()
		t.trimLocked()
		t.poke()
	}
}

// poke says that something has changed; the teller of changes waits for more of it.
func (t *table) poke() {
	select {
	case t.dirty <- struct{}{}:
	default:
	}
}

// tell wakes who watches.
func (t *table) tell() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ch := range t.mu.watchers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// trimLocked forgets dead runs of nodes that have a better one, and the longest dead
// beyond maxDead.
func (t *table) trimLocked() {
	best := t.bestLocked()
	var dead []string
	for name, p := range t.mu.runs {
		switch {
		case p.Alive:
		case best[p.ServerID] != p:
			delete(t.mu.runs, name)
		default:
			dead = append(dead, name)
		}
	}
	if len(dead) <= maxDead {
		return
	}
	slices.SortFunc(dead, func(a, b string) int { return t.mu.runs[a].Since.Compare(t.mu.runs[b].Since) })
	for _, name := range dead[:len(dead)-maxDead] {
		delete(t.mu.runs, name)
	}
}

// bestLocked returns the run that counts, by server id.
func (t *table) bestLocked() map[string]*Peer {
	best := map[string]*Peer{}
	for _, p := range t.mu.runs {
		if b := best[p.ServerID]; b == nil || better(p, b) {
			best[p.ServerID] = p
		}
	}
	return best
}

func better(a, b *Peer) bool {
	if a.Alive != b.Alive {
		return a.Alive
	}
	if c := cmp.Compare(a.Started, b.Started); c != 0 {
		return c > 0
	}
	if c := a.Since.Compare(b.Since); c != 0 {
		return c > 0
	}
	return a.Boot > b.Boot
}

// peers returns one Peer per server id, by name.
func (t *table) peers() []Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Peer
	for _, p := range t.bestLocked() {
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b Peer) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ServerID, b.ServerID))
	})
	return out
}

// counted returns the runs that memberlist counts: those that are alive or died within d.
func (t *table) counted(d time.Duration) (n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.mu.runs {
		if p.Alive || time.Since(p.Since) < d {
			n++
		}
	}
	return n
}

// rivals returns the runs that are alive under m's name or server id without being m.
func (t *table) rivals(m Meta) []Peer {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []Peer
	for _, p := range t.mu.runs {
		sameNode := p.ServerID == m.ServerID
		if p.Alive && (sameNode && p.Boot != m.Boot || !sameNode && p.Name == m.Name) {
			out = append(out, *p)
		}
	}
	slices.SortFunc(out, func(a, b Peer) int { return strings.Compare(a.Address, b.Address) })
	return out
}

func (t *table) forget(serverID string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, p := range t.mu.runs {
		if p.ServerID == serverID && !p.Alive {
			delete(t.mu.runs, name)
			t.poke()
		}
	}
}

// Peers returns every node that was heard of, this one included, by name: one Peer per
// ServerID. Nodes that died are in it until Forget, a bounded number of them.
func (g *Gossip) Peers() []Peer { return g.table.peers() }

// Changed returns a channel that gets a value after Peers has changed; a burst of
// changes is one value. It is one channel for one reader; others take Watch.
func (g *Gossip) Changed() <-chan struct{} { return g.table.changed }

// Watch returns a further channel like that of Changed. It lives as long as the Gossip.
func (g *Gossip) Watch() <-chan struct{} { return g.table.watch() }

// Forget drops a node that is not alive, so that it is neither reported nor tried again.
func (g *Gossip) Forget(serverID string) { g.table.forget(serverID) }
