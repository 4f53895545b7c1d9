package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/hashicorp/raft"
)

type logStore struct{ f *Folder }

// FirstIndex implements raft.LogStore.
func (s logStore) FirstIndex() (i uint64, err error) {
	err = s.f.read(func(c *content) error { i = c.low; return nil })
	return i, err
}

// LastIndex implements raft.LogStore.
func (s logStore) LastIndex() (i uint64, err error) {
	err = s.f.read(func(c *content) error { i = c.high; return nil })
	return i, err
}

// GetLog implements raft.LogStore. A killed process can still read what is there: raft
// panics when it cannot read an entry that it is about to apply.
func (s logStore) GetLog(index uint64, log *raft.Log) error {
	d := s.f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	l, ok := d.mu.logs[index]
	if !ok {
		return raft.ErrLogNotFound
	}
	*log = l
	return nil
}

// StoreLog implements raft.LogStore.
func (s logStore) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore: all of them or none.
func (s logStore) StoreLogs(logs []*raft.Log) error {
	copies := make([]raft.Log, len(logs))
	for i, l := range logs {
		copies[i] = *l
		copies[i].Data = slices.Clone(l.Data)
		copies[i].Extensions = slices.Clone(l.Extensions)
	}
	return s.f.write(true, func(c *content) error {
		for _, l := range copies {
			c.logs[l.Index] = l
			if c.low == 0 || l.Index < c.low {
				c.low = l.Index
			}
			c.high = max(c.high, l.Index)
		}
		return nil
	})
}

// DeleteRange implements raft.LogStore.
func (s logStore) DeleteRange(first, last uint64) error {
	return s.f.write(false, func(c *content) error {
		for i := max(first, c.low); i <= min(last, c.high); i++ {
			delete(c.logs, i)
		}
		switch {
		case first <= c.low && last >= c.high:
			c.low, c.high = 0, 0
		case first <= c.low:
			c.low = max(c.low, last+1)
		case last >= c.high:
			c.high = min(c.high, first-1)
		}
		return nil
	})
}

type stableStore struct{ f *Folder }

// errNotFound has the text that raft expects.
var errNotFound = errors.New("not found")

// Set implements raft.StableStore.
func (s stableStore) Set(key, val []byte) error {
	key, val = slices.Clone(key), slices.Clone(val)
	return s.f.write(false, func(c *content) error { c.kv[string(key)] = val; return nil })
}

// Get implements raft.StableStore.
func (s stableStore) Get(key []byte) (val []byte, err error) {
	err = s.f.read(func(c *content) error {
		v, ok := c.kv[string(key)]
		if !ok {
			return errNotFound
		}
		val = slices.Clone(v)
		return nil
	})
	return val, err
}

// SetUint64 implements raft.StableStore.
func (s stableStore) SetUint64(key []byte, val uint64) error {
	name := string(key)
	err := s.f.write(false, func(c *content) error { c.num[name] = val; return nil })
	if name == "CurrentTerm" && errors.Is(err, ErrKilled) {
		return nil // see the package: raft would panic
	}
	return err
}

// GetUint64 implements raft.StableStore.
func (s stableStore) GetUint64(key []byte) (val uint64, err error) {
	err = s.f.read(func(c *content) error {
		v, ok := c.num[string(key)]
		if !ok {
			return errNotFound
		}
		val = v
		return nil
	})
	return val, err
}

type snapshotStore struct{ f *Folder }

// List implements raft.SnapshotStore.
func (s snapshotStore) List() (out []*raft.SnapshotMeta, err error) {
	err = s.f.read(func(c *content) error {
		for _, n := range c.snaps {
			m := n.meta
			out = append(out, &m)
		}
		return nil
	})
	return out, err
}

// Open implements raft.SnapshotStore.
func (s snapshotStore) Open(id string) (meta *raft.SnapshotMeta, r io.ReadCloser, err error) {
	err = s.f.read(func(c *content) error {
		for _, n := range c.snaps {
			if n.meta.ID == id {
				m := n.meta
				meta, r = &m, io.NopCloser(bytes.NewReader(n.data))
				return nil
			}
		}
		return fmt.Errorf("memory disk: no snapshot %s", id)
	})
	return meta, r, err
}

// Create implements raft.SnapshotStore.
func (s snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	k := &sink{f: s.f, meta: raft.SnapshotMeta{
		Version: version, Index: index, Term: term, Configuration: conf.Clone(), ConfigurationIndex: confIndex,
	}}
	return k, s.f.read(func(*content) error {
		s.f.disk.mu.stats.Writes++
		k.meta.ID = fmt.Sprintf("%d-%d-%d", term, index, s.f.disk.mu.stats.Writes)
		return nil
	})
}

// sink collects a snapshot until it is closed.
type sink struct {
	f    *Folder
	meta raft.SnapshotMeta
	buf  bytes.Buffer
	over bool
}

// ID implements raft.SnapshotSink.
func (k *sink) ID() string { return k.meta.ID }

// Write implements io.Writer.
func (k *sink) Write(b []byte) (int, error) { return k.buf.Write(b) }

// Cancel implements raft.SnapshotSink.
func (k *sink) Cancel() error {
	k.over = true
	return nil
}

// Close puts the snapshot on the disk.
func (k *sink) Close() error {
	if k.over {
		return nil
	}
	k.over = true
	k.meta.Size = int64(k.buf.Len())
	return k.f.write(true, func(c *content) error {
		c.snaps = append([]snap{{k.meta, k.buf.Bytes()}}, c.snaps...)
		slices.SortStableFunc(c.snaps, func(a, b snap) int {
			if a.meta.Term != b.meta.Term {
				return int(int64(b.meta.Term) - int64(a.meta.Term))
			}
			return int(int64(b.meta.Index) - int64(a.meta.Index))
		})
		c.snaps = c.snaps[:min(len(c.snaps), keptSnapshots)]
		return nil
	})
}
