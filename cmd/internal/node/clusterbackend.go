package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/cluster/control"
	"github.com/kvcluster/kvcluster/cluster/disk"
	"github.com/kvcluster/kvcluster/cluster/member"
	"github.com/kvcluster/kvcluster/cluster/search"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/router"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// clusterBackend is a member of a cluster as the router sees it: what is local comes
// from the node, the rest from the others.
type clusterBackend struct {
	backend
	m       *member.Member
	disk    *disk.Folder
	streams *streams
}

func newClusterBackend(cfg Config, m *member.Member, folder *disk.Folder) *clusterBackend {
	b := &clusterBackend{backend: backend{node: m.Node(), cfg: cfg}, m: m, disk: folder}
	b.streams = newStreams(cfg.Name, m, b.backend.Streams)
	return b
}

// NewSearcher implements router.Cluster.
func (b *clusterBackend) NewSearcher() router.Searcher {
	return clusterSearcher{b.m.Search().NewSearcher()}
}

type clusterSearcher struct{ *search.Searcher }

// Completeness implements router.Searcher.
func (s clusterSearcher) Completeness() (router.Completeness, error) {
	c, err := s.Searcher.Completeness()
	if err != nil {
		err = fmt.Errorf("%w: %w", router.ErrUnavailable, err)
	}
	return router.Completeness{Partial: c.Partial, Missing: c.Missing, Stale: c.Stale, MapAge: c.MapAge}, err
}

// DumpSlot implements router.Cluster.
func (b *clusterBackend) DumpSlot(ctx context.Context, g indexer.GroupID, s indexer.Slot, visit func(indexer.Stretch) error) error {
	return b.m.Search().DumpSlot(ctx, g, s, visit)
}

// Ready implements router.Cluster.
func (b *clusterBackend) Ready() (bool, string) {
	if ok, reason, _ := b.m.Search().Ready(); !ok {
		return false, reason
	}
	return b.backend.Ready()
}

// Streams implements router.Cluster.
func (b *clusterBackend) Streams() []router.StreamStatus { return b.streams.all() }

// PauseStream implements router.Cluster.
func (b *clusterBackend) PauseStream(ctx context.Context, instance string, rank uint32) error {
	return b.streams.control(ctx, instance, rank, true)
}

// ResumeStream implements router.Cluster.
func (b *clusterBackend) ResumeStream(ctx context.Context, instance string, rank uint32) error {
	return b.streams.control(ctx, instance, rank, false)
}

// Register implements router.Cluster.
func (b *clusterBackend) Register(ctx context.Context, r catalog.Registration) error {
	return b.decide(ctx, func(ctx context.Context) error { return unavailable(b.backend.Register(ctx, r)) })
}

// Unregister implements router.Cluster.
func (b *clusterBackend) Unregister(ctx context.Context, u catalog.Unregistration) error {
	return b.decide(ctx, func(ctx context.Context) error { return unavailable(b.backend.Unregister(ctx, u)) })
}

// decideTimeout bounds what needs the log: longer than an election, shorter than clients
// wait.
const decideTimeout = 15 * time.Second

// decide does something that the log has to decide. When it does not come to that, the
// error says what the log lacks.
func (b *clusterBackend) decide(ctx context.Context, do func(context.Context) error) error {
	dctx, cancel := context.WithTimeout(ctx, decideTimeout)
	defer cancel()
	err := do(dctx)
	if err == nil || dctx.Err() == nil || ctx.Err() != nil {
		return err
	}
	if lack := quorumLack(b.m.Control().Members()); lack != "" {
		return fmt.Errorf("%w: nothing can be decided, %s. It may still be done when they are back", router.ErrUnavailable, lack)
	}
	return err
}

// quorumLack says what the log lacks for a decision, "" = nothing that is known.
func quorumLack(members []control.MemberInfo) string {
	voters, alive, led := 0, 0, false
	var dead []string
	for _, m := range members {
		if m.Role != control.RoleLeader && m.Role != control.RoleVoter {
			continue
		}
		led = led || m.Role == control.RoleLeader
		voters++
		if m.Standing == control.StandingAlive || m.Standing == control.StandingLeaving {
			alive++
		} else {
			dead = append(dead, m.Name)
		}
	}
	switch need := voters/2 + 1; {
	case alive < need:
		return fmt.Sprintf("%d of %d voters are alive and %d are needed: start %s again", alive, voters, need, strings.Join(dead, ", "))
	case !led:
		return "the log has no leader at the moment"
	}
	return ""
}

// unavailable marks errors of a log that has no leader or no quorum at the moment.
func unavailable(err error) error {
	if err == nil || errors.Is(err, catalog.ErrConflict) || errors.Is(err, catalog.ErrNotFound) || errors.Is(err, catalog.ErrInvalid) || errors.Is(err, catalog.ErrExhausted) {
		return err
	}
	return fmt.Errorf("%w: %w", router.ErrUnavailable, err)
}

// Members implements router.Cluster.
func (b *clusterBackend) Members() []router.MemberStatus {
	var out []router.MemberStatus
	for _, m := range b.m.Control().Members() {
		x := router.MemberStatus{
			Name: m.Name, Address: m.Link, HTTP: m.HTTP, Role: string(m.Role), Phase: string(m.Phase), Boot: m.Boot,
			Alive: m.Standing == control.StandingAlive || m.Standing == control.StandingLeaving || m.Standing == control.StandingJoining,
			Zone:  m.Zone, Weight: m.Weight, Version: m.Version, Partitions: m.Owned, Ready: m.Ready, Sources: m.Sources,
		}
		if m.Standing == control.StandingJoining || m.Standing == control.StandingRefused {
			x.Phase = string(m.Standing)
		}
		if !m.Since.IsZero() {
			x.Since = time.Since(m.Since)
		}
		if m.Role == control.RoleNone {
			x.Role = "unknown"
		}
		out = append(out, x)
	}
	return out
}

// Shards implements router.Cluster.
func (b *clusterBackend) Shards() router.ShardsStatus {
	out := b.backend.Shards()
	v := b.node.View()
	for _, j := range v.Jobs {
		c := router.ChangeStatus{ID: j.ID}
		for _, m := range j.Moves {
			c.Moves = append(c.Moves, router.MoveStatus{Partition: m.Partition, To: m.To, Drop: m.Drop})
			if m.To != "" {
				p := &out.Partitions[m.Partition]
				p.Receivers = append(p.Receivers, m.To)
			}
		}
		for name := range j.Waiting {
			c.Waiting = append(c.Waiting, name)
		}
		for _, p := range b.m.Fanout().Progress() {
			if p.Job == j.ID {
				c.Done, c.Total, c.Bytes, c.Rate = p.Open, p.Copies, p.Bytes, float64(p.Rate)
			}
		}
		out.Changes = append(out.Changes, c)
	}
	return out
}

// Leave implements router.Cluster.
func (b *clusterBackend) Leave(ctx context.Context, name string) error {
	return b.decide(ctx, func(ctx context.Context) error { return memberError(b.m.BeginLeave(ctx, name)) })
}

// Remove implements router.Cluster.
func (b *clusterBackend) Remove(ctx context.Context, name string, force bool) error {
	return b.decide(ctx, func(ctx context.Context) error { return memberError(b.m.Control().Remove(ctx, name, force)) })
}

// Snapshot implements router.Cluster.
func (b *clusterBackend) Snapshot(ctx context.Context) (router.SnapshotResult, error) {
	r, err := b.m.Snapshot(ctx)
	if errors.Is(err, member.ErrSaving) || errors.Is(err, member.ErrNoFolder) {
		err = fmt.Errorf("%w: %w", catalog.ErrConflict, err)
	}
	return router.SnapshotResult{Path: r.Path, Bytes: r.Bytes, Slots: r.Slots, Copies: r.Copies, Blocks: r.Blocks, Took: r.Took}, err
}

// kindOf gives an error whose text stands for itself a kind that the router knows.
type kindOf struct{ kind, error error }

func (k kindOf) Error() string   { return k.error.Error() }
func (k kindOf) Unwrap() []error { return []error{k.kind, k.error} }

func memberError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, control.ErrNotMember):
		return kindOf{catalog.ErrNotFound, err}
	case errors.Is(err, control.ErrAlive), errors.Is(err, control.ErrMajority), errors.Is(err, member.ErrRefused):
		return kindOf{catalog.ErrConflict, err}
	}
	return fmt.Errorf("%w: %w", router.ErrUnavailable, err)
}

// Status implements router.Cluster.
func (b *clusterBackend) Status() router.NodeStatus {
	out := b.backend.Status()
	s := b.m.Search().Stats()
	out.Search = router.SearchStatus{
		Local: s.Local, Calls: s.Calls, Served: s.Served, Hedges: s.Hedges, HedgesWon: s.HedgesWon, Replans: s.Replans, Failed: s.Failed,
		ServedFailed: s.ServedFailed, Partial: s.Partial, Unreadable: s.Unreadable, Stale: s.Stale, Refused: s.Refused, LeaseFailed: s.LeaseFailed, HedgeDelay: s.HedgeDelay,
	}
	v := b.node.View()
	c := router.ClusterStatus{
		ID: v.Cluster.ClusterID, MapIndex: v.Index, LeaseHeld: s.LeaseHeld, MapAge: s.MapAge, Members: len(v.Members),
		Replicas: min(v.Cluster.Replicas, len(v.Members)), Changes: len(v.Jobs), LogLag: b.m.LogLag(),
		Disk: router.DiskStatus{Free: b.disk.FreeSpace(), Low: b.disk.LowSpace(), Known: true},
	}
	for _, m := range b.m.Control().Members() {
		if m.Role == control.RoleLeader {
			c.Leader = m.Name
		}
		if m.Standing == control.StandingAlive || m.Standing == control.StandingLeaving {
			c.Alive++
		}
	}
	most, total := 0, 0
	owned := map[string]int{}
	for p, owners := range v.Owners {
		ready := 0
		for _, o := range owners {
			owned[o.Name]++
			most = max(most, owned[o.Name])
			total++
			if v.Ready(uint32(p), o.Name) {
				ready++
			}
		}
		if ready < c.Replicas {
			c.Unready++
		}
		if ready == 0 {
			c.Unowned++
		}
	}
	if total > 0 {
		c.Balance = float64(most) * float64(len(v.Members)) / float64(total)
	}
	for _, st := range b.streams.recent() {
		if st.Degraded != "" {
			c.DegradedSlots++
		}
	}
	c.ID = cmp.Or(c.ID, "-")
	out.Cluster, out.Peers = c, b.peers()
	return out
}

// peers joins what fan-out and links count of the same peers.
func (b *clusterBackend) peers() (out []router.PeerTraffic) {
	sent := b.m.Fanout().Stats().Peers
	for name, l := range b.m.Links() {
		f := sent[name]
		out = append(out, router.PeerTraffic{
			Peer: name, Up: l.Up, BytesOut: l.BytesOut, BytesIn: l.BytesIn,
			Frames: f.Frames, Blocks: f.Blocks, Bytes: f.Bytes, FillBytes: f.FillBytes,
		})
	}
	slices.SortFunc(out, func(x, y router.PeerTraffic) int { return cmp.Compare(x.Peer, y.Peer) })
	return out
}
