package member

import (
	"context"
	"maps"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
)

// peersEvery is how often the set of peers is looked at when nothing has changed.
const peersEvery = time.Second

// followPeers keeps the links pointed at the members of the log and at those that gossip
// shows: a node that wants to be taken in has to be talked to as well.
func (m *Member) followPeers(ctx context.Context) error {
	changed := m.deps.Gossip.Watch()
	views := m.views()
	t := time.NewTicker(peersEvery)
	defer t.Stop()
	var last map[string]string
	for {
		m.noteLiving()
		now := m.linkPeers()
		if !maps.Equal(now, last) {
			if err := m.hub.SetPeers(now); err != nil {
				m.log.Warn("links to some nodes cannot be made", "error", err)
			}
			for name := range last {
				if _, still := now[name]; !still {
					m.owner.Forget(name)
				}
			}
			last = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-views:
		case <-t.C:
		}
	}
}

// linkPeers returns where the links of the other nodes are. What gossip hears from a
// living node is newer than what the log has.
func (m *Member) linkPeers() map[string]string {
	out := map[string]string{}
	for _, x := range m.control.View().Members {
		if x.Name != m.cfg.Self.Name && x.Link != "" {
			out[x.Name] = x.Link
		}
	}
	for _, p := range m.deps.Gossip.Peers() {
		if p.Name == m.cfg.Self.Name || p.Link == "" || !p.Alive {
			continue
		}
		if p.ClusterID == "" || p.ClusterID == m.cfg.ClusterID {
			out[p.Name] = p.Link
		}
	}
	return out
}

// views delivers when the log's state has changed; changes are merged.
func (m *Member) views() <-chan struct{} {
	ch := make(chan struct{}, 1)
	m.control.Subscribe(func(*state.View) {
		select {
		case ch <- struct{}{}:
		default:
		}
	})
	return ch
}
