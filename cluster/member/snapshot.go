package member

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/owner"
	"github.com/kvcluster/kvcluster/cluster/snapshot"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/link"
)

// lastSave bounds the snapshot at the end of a process: who stops it waits for it.
const lastSave = 10 * time.Second

// Errors of Snapshot.
var (
	// ErrNoFolder: the node keeps nothing on disk.
	ErrNoFolder = errors.New("this node has no data folder")
	// ErrSaving: another snapshot is being written.
	ErrSaving = errors.New("a snapshot is being written already")
)

// saving is the snapshot of this node's copies (rule T7).
type saving struct {
	one    sync.Mutex // while one is written
	loaded *snapshot.Loaded
	kept   chan struct{} // closed when what was loaded is in the owner's table

	mu struct {
		sync.Mutex
		loading bool
		refused map[indexer.Header]bool // copies whose content the index did not take
	}
}

// onFault is the fault handler of the index.
func (m *Member) onFault(h indexer.Header, err error) {
	s := &m.saving
	s.mu.Lock()
	loading := s.mu.loading
	if loading {
		s.mu.refused[copyOf(h)] = true
	}
	s.mu.Unlock()
	if !loading {
		m.owner.OnFault(h, err)
	}
}

// copyOf leaves of a header what names a copy.
func copyOf(h indexer.Header) indexer.Header {
	return indexer.Header{Group: h.Group, Partition: h.Partition, Slot: h.Slot, Life: h.Life}
}

func (m *Member) header() snapshot.Header {
	return snapshot.Header{ClusterID: m.cfg.ClusterID, ServerID: m.cfg.Self.ServerID}
}

// load reads what an earlier process has left into the index. Nobody knows of it before
// keep: this node is no member yet.
func (m *Member) load(ctx context.Context) (err error) {
	s := &m.saving
	s.loaded = &snapshot.Loaded{}
	if m.cfg.Dir == "" {
		return nil
	}
	s.mu.loading, s.mu.refused = true, map[indexer.Header]bool{}
	s.loaded, err = snapshot.Load(ctx, m.cfg.Dir, m.header(), m.index, m.log)
	if err != nil {
		s.loaded = &snapshot.Loaded{}
	}
	return err
}

// keep enters what was loaded into the owner's table, if the log still knows it. The log
// has taken note of this process, so every life that ends from now on is purged here.
func (m *Member) keep(ctx context.Context) error {
	s, v := &m.saving, m.control.View()
	lives := livesOf(v)
	if at := s.loaded.Header; at.Partitions != v.Cluster.Partitions && len(s.loaded.Slots) > 0 {
		m.log.Error("the snapshot of this node's copies is not used", "partitions", at.Partitions, "of_cluster", v.Cluster.Partitions)
		lives = nil
	}
	slots, blocks, bytes, took := s.loaded.Result.Slots, s.loaded.Result.Blocks, s.loaded.Result.Bytes, s.loaded.Result.Took
	n, err := s.loaded.Keep(ctx, func(l copywire.SlotLife) (bool, func(indexer.PartitionID) bool) {
		return lives[l], func(p indexer.PartitionID) bool {
			return ownerIn(v, p, m.cfg.Self.Name)
		}
	}, func(k snapshot.Kept) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		labels := k.Labels[:0]
		for _, x := range k.Labels {
			if !s.mu.refused[indexer.Header{Group: k.Group, Partition: x.Partition, Slot: k.Slot, Life: k.Life}] {
				labels = append(labels, x)
			}
		}
		return m.owner.Keep(k.SlotLife, labels, k.Empty, k.Cursor)
	})
	if err != nil {
		return fmt.Errorf("keep copies of the snapshot: %w", err)
	}
	s.mu.Lock()
	s.mu.loading, s.mu.refused = false, nil
	s.mu.Unlock()
	if slots > 0 {
		m.log.Info("copies from the snapshot; they are used once their engines have proved that they are still the same",
			"slots", slots, "copies", n, "blocks", blocks, "bytes", bytes, "seconds", took.Seconds(), "log_index", s.loaded.Header.Index)
	}
	close(s.kept)
	return nil
}

// livesOf are the lives that the log has.
func livesOf(v *state.View) map[copywire.SlotLife]bool {
	out := map[copywire.SlotLife]bool{}
	for _, src := range v.Catalog.Sources() {
		for _, r := range src.Ranks {
			out[copywire.SlotLife{Group: indexer.GroupID(src.Group.ID), Slot: indexer.Slot(r.Slot), Life: r.Life}] = true
		}
	}
	return out
}

// whenKept lets calls wait until the table has what was loaded.
func (m *Member) whenKept(fn link.CallHandler) link.CallHandler {
	return func(ctx context.Context, peer string, req []byte) ([]byte, error) {
		select {
		case <-m.saving.kept:
			return fn(ctx, peer, req)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// saveEvery writes snapshots until ctx is done.
func (m *Member) saveEvery(ctx context.Context) error {
	if m.cfg.Dir == "" || m.cfg.SnapshotEvery <= 0 {
		<-ctx.Done()
		return nil
	}
	t := time.NewTicker(m.cfg.SnapshotEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if _, err := m.Snapshot(ctx); err != nil && !errors.Is(err, ErrSaving) && ctx.Err() == nil {
			m.log.Warn("no snapshot; the next one is tried in time", "error", err, "every", m.cfg.SnapshotEvery)
		}
	}
}

// saveLast writes the snapshot of a process that ends in order.
func (m *Member) saveLast() {
	if m.cfg.Dir == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastSave)
	defer cancel()
	if _, err := m.Snapshot(ctx); err != nil {
		m.log.Warn("no snapshot at the end; the earlier one stays", "error", err)
	}
}

// Snapshot writes the copies of this node to its folder. Reading and writing go on
// meanwhile. Errors wrap ErrNoFolder and ErrSaving, or are those of the disk.
func (m *Member) Snapshot(ctx context.Context) (snapshot.Result, error) {
	if m.cfg.Dir == "" {
		return snapshot.Result{}, ErrNoFolder
	}
	if !m.saving.one.TryLock() {
		return snapshot.Result{}, ErrSaving
	}
	defer m.saving.one.Unlock()
	v := m.control.View()
	lives, skipped, blocks := livesOf(v), 0, uint64(0)
	h := m.header()
	h.Partitions, h.Index, h.Time = v.Cluster.Partitions, v.Index, time.Now().UnixNano()
	var dump []byte
	held := func(p indexer.PartitionID) bool { return ownerIn(m.control.View(), p, m.cfg.Self.Name) }
	res, err := snapshot.Save(ctx, m.cfg.Dir, h, func(emit func(snapshot.Slot) error) error {
		for l := range m.owner.Lives {
			if !lives[l] {
				continue
			}
			out, err := m.owner.Save(ctx, dump[:0], l, snapshot.MaxSlotBytes, held)
			switch {
			case errors.Is(err, owner.ErrLife):
				continue
			case errors.Is(err, owner.ErrLarge):
				m.log.Warn("a slot is too large for a snapshot", "slot", l, "error", err)
				skipped++
				continue
			case err != nil:
				return err
			}
			dump, blocks = out.Dump, blocks+out.Blocks
			if out.Copies == 0 {
				continue
			}
			if err := emit(snapshot.Slot{SlotLife: l, Cursor: out.Cursor, Copies: out.Copies, Dump: out.Dump}); err != nil {
				return err
			}
		}
		return nil
	})
	res.Skipped, res.Blocks = skipped, blocks
	if err == nil {
		m.log.Info("snapshot written", "file", res.Path, "bytes", res.Bytes, "slots", res.Slots, "copies", res.Copies, "blocks", res.Blocks, "seconds", res.Took.Seconds())
	}
	return res, err
}
