package disk

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"github.com/kvcluster/kvcluster/cluster/raftlog"
)

// boltTimeout bounds the wait for bbolt's own lock. The folder's lock is held already,
// so only a tool that looks into raft.db can be in the way.
const boltTimeout = time.Second

// keptSnapshots: the newest, and one before it in case the newest is damaged.
const keptSnapshots = 2

// stores are what is open between Stores and Close.
type stores struct {
	bolt  *raftboltdb.BoltStore
	guard *guard
	raftlog.Stores
}

func (s *stores) close() error { return s.bolt.Close() }

// Stores opens raft's log and snapshots, after reading and checking all of them. It may
// be called again and gives the same stores; Close closes them. Errors are ErrCorrupt,
// ErrNoSpace, ErrReadOnly and ErrInUse.
func (f *Folder) Stores() (raftlog.Stores, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return raftlog.Stores{}, fmt.Errorf("data folder %s: %w", f.cfg.Dir, ErrClosed)
	}
	if f.mu.stores == nil {
		s, err := f.openStores()
		if err != nil {
			return raftlog.Stores{}, err
		}
		f.mu.stores = s
	}
	return f.mu.stores.Stores, nil
}

// HasData reports whether the folder holds raft state of a cluster: a term, an entry or a
// snapshot. Stores must have been called.
func (f *Folder) HasData() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.stores == nil {
		return false
	}
	has, err := raft.HasExistingState(f.mu.stores.guard, f.mu.stores.guard, f.mu.stores.Snapshots)
	return err == nil && has
}

func (f *Folder) openStores() (_ *stores, err error) {
	snaps, err := raft.NewFileSnapshotStoreWithLogger(f.cfg.Dir, keptSnapshots, raftlog.HCLog(f.log))
	if err != nil {
		return nil, f.explain(err, "hold snapshots")
	}
	if err := f.checkLog(snaps); err != nil {
		return nil, err
	}
	bolt, err := f.openBolt(&bbolt.Options{Timeout: boltTimeout})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = bolt.Close()
		}
	}()
	// From here on a missing log is damage, and no longer a new folder.
	if err := f.changeLocked(func(id *Identity) error { id.HasLog = true; return nil }); err != nil {
		return nil, err
	}
	g := &guard{folder: f, bolt: bolt}
	return &stores{bolt: bolt, guard: g, Stores: raftlog.Stores{Log: newCache(g, f.cfg.CachedEntries), Stable: g, Snapshots: snaps}}, nil
}

// openBolt opens raft.db and says in words why it cannot.
func (f *Folder) openBolt(opts *bbolt.Options) (bolt *raftboltdb.BoltStore, err error) {
	err = f.trapped(func() (err error) {
		bolt, err = raftboltdb.New(raftboltdb.Options{Path: f.path(logFile), BoltOptions: opts})
		return err
	})
	return bolt, err
}

// explainBolt sorts the errors of bbolt.
func (f *Folder) explainBolt(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, berrors.ErrTimeout):
		return newFault(ErrInUse, err, "%s is held by another program, perhaps a tool that looks into it. Stop that one and start the node again.", f.path(logFile))
	case noSpace(err) || os.IsPermission(err):
		return f.explain(err, "be written")
	}
	return f.damaged(logFile, err, "is damaged (%v)", err)
}
