package sim

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/gossip"
)

// detect is how long gossip takes to call somebody dead.
const detect = time.Second

// rumours stands for gossip: whoever can be reached, also by way of others, is alive, and
// who cannot is dead after a while.
type rumours struct {
	net *network
	mu  struct {
		sync.Mutex
		metas   map[string]gossip.Meta // by name: of the latest process
		running map[string]bool
		lost    map[pair]time.Time // since when one cannot be reached from another
		watch   []chan struct{}
	}
}

func newRumours(net *network) *rumours {
	r := &rumours{net: net}
	r.mu.metas, r.mu.running, r.mu.lost = map[string]gossip.Meta{}, map[string]bool{}, map[pair]time.Time{}
	return r
}

// begin makes a process known.
func (r *rumours) begin(m gossip.Meta) *rumour {
	r.mu.Lock()
	r.mu.metas[m.Name], r.mu.running[m.Name] = m, true
	for p := range r.mu.lost {
		if p.from == m.Name || p.to == m.Name {
			delete(r.mu.lost, p)
		}
	}
	r.mu.Unlock()
	r.update()
	return &rumour{all: r, name: m.Name}
}

// end makes it unreachable; with a farewell it is called dead at once.
func (r *rumours) end(name string, farewell bool) {
	r.mu.Lock()
	r.mu.running[name] = false
	if farewell {
		for other := range r.mu.metas {
			r.mu.lost[pair{other, name}] = time.Now().Add(-detect)
		}
	}
	r.mu.Unlock()
	r.update()
}

// update takes down who has become unreachable, and wakes those who watch.
func (r *rumours) update() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for a := range r.mu.metas {
		reached := r.reachedLocked(a)
		for b := range r.mu.metas {
			p := pair{a, b}
			if reached[b] {
				delete(r.mu.lost, p)
			} else if _, known := r.mu.lost[p]; !known {
				r.mu.lost[p] = now
			}
		}
	}
	r.wakeLocked()
	time.AfterFunc(detect, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.wakeLocked()
	})
}

func (r *rumours) wakeLocked() {
	for _, ch := range r.mu.watch {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// reachedLocked returns whom a node can talk with, also by way of others.
func (r *rumours) reachedLocked(from string) map[string]bool {
	reached, next := map[string]bool{from: true}, []string{from}
	for len(next) > 0 {
		a := next[0]
		next = next[1:]
		for b := range r.mu.metas {
			if !reached[b] && r.mu.running[a] && r.mu.running[b] && r.net.open(a, b, planeGossip) && r.net.open(b, a, planeGossip) {
				reached[b] = true
				next = append(next, b)
			}
		}
	}
	return reached
}

// rumour implements member.Gossip for one process.
type rumour struct {
	all  *rumours
	name string
}

// Peers implements member.Gossip.
func (g *rumour) Peers() []gossip.Peer {
	r := g.all
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []gossip.Peer
	for name, m := range r.mu.metas {
		since, lost := r.mu.lost[pair{g.name, name}]
		out = append(out, gossip.Peer{
			Meta: m, Address: name + ":7946", Alive: !lost || time.Since(since) < detect, Since: since.Add(detect),
		})
	}
	slices.SortFunc(out, func(a, b gossip.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// Watch implements member.Gossip.
func (g *rumour) Watch() <-chan struct{} {
	ch := make(chan struct{}, 1)
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	g.all.mu.watch = append(g.all.mu.watch, ch)
	return ch
}

// Meta implements member.Gossip.
func (g *rumour) Meta() gossip.Meta {
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	return g.all.mu.metas[g.name]
}

// SetMeta implements member.Gossip.
func (g *rumour) SetMeta(m gossip.Meta) error {
	g.all.mu.Lock()
	defer g.all.mu.Unlock()
	if now := g.all.mu.metas[g.name]; now.Boot == m.Boot {
		g.all.mu.metas[g.name] = m
		g.all.wakeLocked()
	}
	return nil
}
