package gossip

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
)

// delegate is what memberlist calls back, mostly under its own lock: see the package's
// invariants.
type delegate struct{ g *Gossip }

// NodeMeta implements memberlist.Delegate.
func (d *delegate) NodeMeta(int) []byte { return d.g.table.packed() }

// NotifyMsg implements memberlist.Delegate: no messages of ours go through memberlist.
func (d *delegate) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (d *delegate) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (d *delegate) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (d *delegate) MergeRemoteState([]byte, bool) {}

var errNotOurs = errors.New("of another cluster or version")

// NotifyAlive implements memberlist.AliveDelegate: it keeps strangers out that were only
// heard of.
func (d *delegate) NotifyAlive(n *memberlist.Node) error {
	if n.Name == d.g.table.self {
		return nil
	}
	m, err := UnpackMeta(n.Meta)
	if err != nil {
		return err
	}
	if nodeName(m) != n.Name {
		return fmt.Errorf("%w: it calls itself %s", ErrMeta, nodeName(m))
	}
	own, cluster := d.g.table.own()
	if m.ClusterID != "" && cluster != "" && m.ClusterID != cluster {
		d.g.stats.refused.Add(1)
		return fmt.Errorf("%w: node %q at %s has cluster %s, not %s", errNotOurs, m.Name, n.Address(), m.ClusterID, cluster)
	}
	if m.Protocol != own.Protocol {
		d.g.stats.refused.Add(1)
		return fmt.Errorf("%w: node %q at %s speaks version %d, not %d", errNotOurs, m.Name, n.Address(), m.Protocol, own.Protocol)
	}
	return nil
}

// NotifyJoin implements memberlist.EventDelegate.
func (d *delegate) NotifyJoin(n *memberlist.Node) { d.NotifyUpdate(n) }

// NotifyUpdate implements memberlist.EventDelegate.
func (d *delegate) NotifyUpdate(n *memberlist.Node) {
	if m, err := UnpackMeta(n.Meta); err == nil {
		d.g.table.set(n.Name, m, n.Address())
	}
}

// NotifyLeave implements memberlist.EventDelegate.
func (d *delegate) NotifyLeave(n *memberlist.Node) { d.g.table.kill(n.Name) }

// tellChanges wakes the watchers, once per burst.
func (g *Gossip) tellChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.table.dirty:
		}
		t := time.NewTimer(g.cfg.Coalesce)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
		// What came meanwhile is told with it; Peers is read after this.
		select {
		case <-g.table.dirty:
		default:
		}
		g.stats.changes.Add(1)
		g.table.tell()
	}
}
