package memory

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/disk"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
)

// Folder is a Disk in the hands of one process. It has the methods of disk.Folder.
type Folder struct {
	disk *Disk
	dead chan struct{} // closed by Kill and Close
	turn chan struct{} // held by the one that writes; a channel, because it is held over a wait
}

// read calls fn under the disk's lock unless the process is dead.
func (f *Folder) read(fn func(*content) error) error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.mu.folder != f {
		return ErrKilled
	}
	return fn(&f.disk.mu.content)
}

// write does the same when the sync delay is over. needsRoom is for what a full disk
// refuses.
func (f *Folder) write(needsRoom bool, fn func(*content) error) error {
	select {
	case f.turn <- struct{}{}:
	case <-f.dead:
		return ErrKilled
	}
	defer func() { <-f.turn }()
	d := f.disk
	d.mu.Lock()
	delay, alive := d.mu.delay, d.mu.folder == f
	d.mu.Unlock()
	if !alive {
		return ErrKilled
	}
	if delay > 0 {
		t := time.NewTimer(delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-f.dead:
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.mu.folder != f:
		return f.interruptedLocked(delay, fn)
	case d.mu.full && needsRoom:
		return errFull{}
	}
	return d.putLocked(fn)
}

// interruptedLocked decides about a write that was under way at a Kill. The disk may
// have a new process already; then the write was before it or never.
func (f *Folder) interruptedLocked(delay time.Duration, fn func(*content) error) error {
	d := f.disk
	if delay == 0 || d.mu.folder != nil || d.mu.lying || d.mu.full || d.mu.rng.IntN(2) == 0 {
		d.mu.stats.Lost++
		return ErrKilled
	}
	d.mu.stats.Kept++
	_ = d.putLocked(fn)
	return ErrKilled
}

func (d *Disk) putLocked(fn func(*content) error) error {
	if d.mu.lying && d.mu.synced == nil {
		d.mu.synced = d.mu.content.clone()
	}
	d.mu.stats.Writes++
	return fn(&d.mu.content)
}

// Identity as in disk.Folder.
func (f *Folder) Identity() (id disk.Identity) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.mu.id
}

// SetName as in disk.Folder.
func (f *Folder) SetName(name string) error {
	return f.write(false, func(c *content) error { return setOnce(&c.id.Name, name) })
}

// SetClusterID as in disk.Folder.
func (f *Folder) SetClusterID(id string) error {
	return f.write(false, func(c *content) error { return setOnce(&c.id.ClusterID, id) })
}

func setOnce(v *string, to string) error {
	if *v != "" && *v != to {
		return fmt.Errorf("memory disk: %w: %q, not %q", disk.ErrOtherNode, *v, to)
	}
	*v = to
	return nil
}

// Stores as in disk.Folder.
func (f *Folder) Stores() (raftlog.Stores, error) {
	err := f.write(false, func(c *content) error { c.id.HasLog = true; return nil })
	if err != nil {
		return raftlog.Stores{}, err
	}
	return raftlog.Stores{Log: logStore{f}, Stable: stableStore{f}, Snapshots: snapshotStore{f}}, nil
}

// HasData as in disk.Folder.
func (f *Folder) HasData() bool {
	has, err := raft.HasExistingState(logStore{f}, stableStore{f}, snapshotStore{f})
	return err == nil && has
}

// LowSpace as in disk.Folder.
func (f *Folder) LowSpace() bool {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	return f.disk.mu.low || f.disk.mu.full
}

// Peers as in disk.Folder.
func (f *Folder) Peers() (addrs []string) {
	_ = f.read(func(c *content) error { addrs = slices.Clone(c.peers); return nil })
	return addrs
}

// SavePeers as in disk.Folder.
func (f *Folder) SavePeers(addrs []string) error {
	return f.write(true, func(c *content) error { c.peers = slices.Clone(addrs); return nil })
}

// Run as in disk.Folder; there is nothing to watch.
func (f *Folder) Run(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// Close as in disk.Folder: the process ends in good order, and everything survives.
func (f *Folder) Close() error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.folder == f {
		d.mu.folder, d.mu.synced = nil, nil
		close(f.dead)
	}
	return nil
}
