package node

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/kvcluster/kvcluster/cluster"
	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/router"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine"
)

// backend is a node as the router sees it.
type backend struct {
	node *cluster.Node
	cfg  Config
}

func (b *backend) View() *catalog.View  { return b.node.View().Catalog }
func (b *backend) Layout() shard.Layout { return b.node.Layout() }
func (b *backend) Bigram(g uint32) bool { return b.node.Bigram(g) }
func (b *backend) NewSearcher() router.Searcher {
	return router.NewLocalSearcher(b.node.Index().NewReader(), func() uint64 { return b.node.View().Index })
}

func (b *backend) Register(ctx context.Context, r catalog.Registration) error {
	return b.node.Register(ctx, r)
}

func (b *backend) Unregister(ctx context.Context, u catalog.Unregistration) error {
	return b.node.Unregister(ctx, u)
}

func (b *backend) PauseStream(ctx context.Context, instance string, rank uint32) error {
	return b.node.Ingest().Pause(ctx, instance, rank)
}

func (b *backend) ResumeStream(ctx context.Context, instance string, rank uint32) error {
	return b.node.Ingest().Resume(ctx, instance, rank)
}

func (b *backend) DumpSlot(ctx context.Context, g indexer.GroupID, s indexer.Slot, visit func(indexer.Stretch) error) error {
	for p := range b.node.Layout().Partitions {
		if err := b.node.Index().Dump(ctx, g, indexer.PartitionID(p), s, visit); err != nil {
			return err
		}
	}
	return nil
}

func (b *backend) Ready() (bool, string) {
	if len(b.View().Workers()) < b.cfg.MinWorkers {
		return false, router.ReasonInitialWorkers
	}
	return true, ""
}

// Members implements router.Cluster.
func (b *backend) Members() []router.MemberStatus {
	v := b.node.View()
	var out []router.MemberStatus
	for _, m := range v.Members {
		x := router.MemberStatus{
			Name: m.Name, Address: m.Link, HTTP: m.HTTP, Role: "leader", Phase: string(m.Phase), Alive: true,
			Boot: m.Boot, Zone: m.Zone, Weight: m.Weight, Version: m.Version, Sources: len(v.Assignments),
		}
		for p := range v.Owners {
			if v.Ready(uint32(p), m.Name) {
				x.Partitions, x.Ready = x.Partitions+1, x.Ready+1
			}
		}
		out = append(out, x)
	}
	return out
}

// Shards implements router.Cluster.
func (b *backend) Shards() router.ShardsStatus {
	v := b.node.View()
	out := router.ShardsStatus{Partitions: make([]router.PartitionStatus, len(v.Owners))}
	for p, owners := range v.Owners {
		x := &out.Partitions[p]
		x.HeldBlocks = -1
		for _, o := range owners {
			x.Owners = append(x.Owners, router.OwnerStatus{Name: o.Name, Ready: v.Ready(uint32(p), o.Name)})
		}
	}
	return out
}

// Leave implements router.Cluster.
func (b *backend) Leave(_ context.Context, name string) error {
	if _, ok := b.node.View().Member(name); !ok {
		return fmt.Errorf("member %s: %w", name, catalog.ErrNotFound)
	}
	return fmt.Errorf("%w: %s is the only member: stop it instead", catalog.ErrConflict, name)
}

// Remove implements router.Cluster.
func (b *backend) Remove(ctx context.Context, name string, _ bool) error { return b.Leave(ctx, name) }

// Snapshot implements router.Cluster.
func (b *backend) Snapshot(context.Context) (router.SnapshotResult, error) {
	return router.SnapshotResult{}, fmt.Errorf("%w: this node has no data folder; start it with --data", catalog.ErrConflict)
}

// Streams implements router.Cluster.
func (b *backend) Streams() []router.StreamStatus {
	now := time.Now()
	var out []router.StreamStatus
	for _, s := range b.node.Ingest().Status() {
		for i := range s.Ranks {
			out = append(out, streamStatus(now, s, &s.Ranks[i]))
		}
	}
	return out
}

func streamStatus(now time.Time, s *ingest.SourceStatus, r *ingest.RankStatus) router.StreamStatus {
	out := router.StreamStatus{
		Instance: s.Instance, Rank: r.Rank, Group: uint32(s.Group), State: router.StreamState(r.State.String()), LastError: r.LastError,
		Registered: now.Sub(s.Opened), LastEvent: -1, Life: r.Life, Sequence: -1, Acknowledged: -1, Batches: r.Counters.Batches, Gaps: s.Counters.Gaps, Replays: s.Counters.Replays,
		Lives: 1 + r.Counters.Lives, Inherited: r.Counters.Inherited, Loose: r.Counters.InheritedLoose, Orphans: r.Translator.Orphans, OrphansLost: r.Counters.OrphansLost, Held: r.Translator.Held,
		Degraded: r.Degraded, Refused: r.Translator.Refused, Lag: r.Lag, Warnings: r.Warnings, Losses: s.Counters.Losses,
		Rejected: map[string]uint64{}, RejectedBlocks: map[string]uint64{},
	}
	if out.LastError == "" {
		out.LastError = s.LastError
	}
	if r.HasSequence {
		out.Sequence = int64(min(r.Sequence, math.MaxInt64))
	}
	if r.HasAcknowledged {
		out.Acknowledged = int64(min(r.Acknowledged, math.MaxInt64))
	}
	if !r.LastEvent.IsZero() {
		out.LastEvent = now.Sub(r.LastEvent)
	}
	for kind := range r.Counters.Events {
		for result, n := range r.Counters.Events[kind] {
			out.Events += n
			if res := ingest.Result(result); n > 0 && (res == ingest.Rejected || res == ingest.Refused || res == ingest.OtherGroup || res == ingest.WrongBlockSize) {
				out.Rejected[res.String()] += n
			}
		}
	}
	for reason, n := range r.Counters.Skipped {
		if n > 0 {
			out.Rejected[engine.SkipReason(reason).String()] += uint64(n)
		}
	}
	for reason, n := range map[string]uint64{
		ingest.OtherGroup.String(): r.Counters.OtherGroupBlocks, ingest.WrongBlockSize.String(): r.Counters.WrongSizeBlocks,
		"uncredited": r.Counters.Uncredited, "shed": r.Counters.Shed,
	} {
		if n > 0 {
			out.RejectedBlocks[reason] = n
		}
	}
	out.BlockSizeMismatches, out.SeenBlockSize = r.Counters.Events[engine.Stored][ingest.WrongBlockSize], r.WrongBlockSize
	return out
}

// Status implements router.Cluster.
func (b *backend) Status() router.NodeStatus {
	out := router.NodeStatus{
		Node: b.cfg.Name, Version: b.cfg.Version, MinWorkers: b.cfg.MinWorkers, Index: b.node.Index().Stats(),
		Events: router.EventCounts{Applied: map[router.EventResult]uint64{}}, Lag: lagHistogram(b.node.Ingest().Lag()),
	}
	kinds := map[engine.Kind]string{engine.Stored: "stored", engine.Removed: "removed", engine.Cleared: "cleared"}
	for _, s := range b.node.Ingest().Status() {
		for i := range s.Ranks {
			c := &s.Ranks[i].Counters
			for kind, name := range kinds {
				for result, n := range c.Events[kind] {
					if n > 0 {
						out.Events.Applied[router.EventResult{Type: name, Status: ingest.Result(result).String()}] += n
					}
				}
			}
			out.Events.UnknownRemoves += c.Unknown - c.UnknownLower
			out.Events.UnknownLowerRemoves += c.UnknownLower
			out.Events.DuplicateStores += c.DuplicateStores
		}
	}
	return out
}

// lagHistogram makes counts cumulative, as Prometheus wants them.
func lagHistogram(h ingest.LagHistogram) router.Histogram {
	out := router.Histogram{Sum: h.Sum.Seconds()}
	var sum uint64
	for i, n := range h.Counts {
		sum += n
		if i < len(h.Bounds) {
			out.Bounds = append(out.Bounds, h.Bounds[i].Seconds())
			out.Counts = append(out.Counts, sum)
		}
	}
	out.Count = sum
	return out
}
