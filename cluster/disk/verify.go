package disk

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"strings"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// trapped runs fn, which touches bbolt's mapping of raft.db, and turns what a damaged
// file does to it into an error: panics of bbolt's own checks, and the memory fault of a
// page behind the end of a truncated file, which would end the process otherwise. What
// bbolt held at that moment stays held, so the folder must not be opened again by this
// process.
func (f *Folder) trapped(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- fmt.Errorf("%v", p)
			}
		}()
		debug.SetPanicOnFault(true) // of this goroutine only
		done <- fn()
	}()
	return f.explainBolt(<-done)
}

// extent is what raft.db holds.
type extent struct {
	first, last uint64
	term        uint64 // CurrentTerm, 0 = none
}

// checkLog reads every entry and every snapshot once. The log is opened for reading
// only: a damaged file must not be written to.
func (f *Folder) checkLog(snaps *raft.FileSnapshotStore) error {
	st, err := os.Stat(f.path(logFile))
	switch {
	case err == nil && st.Size() > 0:
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return f.explain(err, "be read")
	case f.mu.id.HasLog && err == nil:
		return f.damaged(logFile, nil, "is empty, but this node had a raft log")
	case f.mu.id.HasLog:
		return f.damaged(logFile, err, "is missing, but this node had a raft log")
	default:
		return nil // a new folder
	}
	var ext extent
	if err := f.trapped(func() (err error) {
		if ext, err = f.readBolt(); err != nil {
			return err
		}
		return f.readEntries(ext)
	}); err != nil {
		return err
	}
	return f.checkSnapshots(snaps, ext)
}

// readBolt reads all keys and values that raft will read.
func (f *Folder) readBolt() (ext extent, err error) {
	db, err := bbolt.Open(f.path(logFile), 0o600, &bbolt.Options{Timeout: boltTimeout, ReadOnly: true})
	if err != nil {
		return ext, err
	}
	defer db.Close()
	return ext, db.View(func(tx *bbolt.Tx) error {
		logs, conf := tx.Bucket([]byte("logs")), tx.Bucket([]byte("conf"))
		if logs == nil || conf == nil {
			if f.mu.id.HasLog {
				return errors.New("its buckets are missing")
			}
			return nil // a crash while it was made: nothing was confirmed
		}
		if err := conf.ForEach(ext.checkValue); err != nil {
			return err
		}
		return logs.ForEach(func(k, v []byte) error {
			if len(k) != 8 {
				return fmt.Errorf("a key of %d bytes among its entries", len(k))
			}
			index := decodeIndex(k)
			if ext.first == 0 {
				ext.first = index
			} else if index != ext.last+1 {
				return fmt.Errorf("entries %d to %d are missing", ext.last+1, index-1)
			}
			ext.last = index
			return nil
		})
	})
}

// readEntries decodes all entries as raft will, checksums included.
func (f *Folder) readEntries(ext extent) error {
	if ext.first == 0 {
		return nil
	}
	bolt, err := raftboltdb.New(raftboltdb.Options{
		Path: f.path(logFile), BoltOptions: &bbolt.Options{Timeout: boltTimeout, ReadOnly: true},
	})
	if err != nil {
		return err
	}
	defer bolt.Close()
	for i := ext.first; i <= ext.last; i++ {
		var l raft.Log
		if err := bolt.GetLog(i, &l); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if l.Index != i {
			return fmt.Errorf("entry %d calls itself %d", i, l.Index)
		}
		if err := unseal(&l); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if l.Term > ext.term { // raft stores a term before it takes entries of it
			return fmt.Errorf("entry %d has term %d, and the last one that this node knew of is said to be %d", i, l.Term, ext.term)
		}
	}
	return nil
}

func decodeIndex(k []byte) (n uint64) {
	for _, b := range k {
		n = n<<8 | uint64(b)
	}
	return n
}

// checkValue checks what is stored beside the entries: terms and votes.
func (e *extent) checkValue(k, v []byte) error {
	val, err := unsealValue(k, v)
	if err != nil {
		return err
	}
	switch string(k) {
	case "CurrentTerm", "LastVoteTerm":
		if len(val) != 8 {
			return fmt.Errorf("%s has %d bytes instead of 8", k, len(val))
		}
		if string(k) == "CurrentTerm" {
			e.term = binary.BigEndian.Uint64(val)
		}
	}
	return nil
}

// checkSnapshots makes sure that snapshot and log join. A newest snapshot that cannot
// be read is only a warning where the log reaches back behind the one before it: raft
// takes that one then.
func (f *Folder) checkSnapshots(snaps *raft.FileSnapshotStore, ext extent) error {
	names, err := f.snapshotNames()
	if err != nil {
		return f.explain(err, "be read")
	}
	listed, err := snaps.List()
	if err != nil {
		return f.explain(err, "be read")
	}
	readable := map[string]uint64{}
	var base uint64 // index of the newest snapshot that can be read
	for _, m := range listed {
		_, r, err := snaps.Open(m.ID)
		if err != nil {
			continue
		}
		_, err = io.Copy(io.Discard, r)
		if err = errors.Join(err, r.Close()); err == nil {
			readable[m.ID] = m.Index
			base = max(base, m.Index)
		}
	}
	for _, name := range names {
		var term, index, ms uint64
		if _, ok := readable[name]; ok {
			continue
		}
		if n, _ := fmt.Sscanf(name, "%d-%d-%d", &term, &index, &ms); n != 3 || index <= base {
			continue // older than one that can be read, or not raft's
		}
		if ext.first == 0 || ext.first > base+1 || ext.last < index {
			return f.damaged(snapshotsDir+"/"+name, nil, "is damaged, and the raft log does not reach back behind it")
		}
		f.log.Warn("snapshot is damaged; the one before it and the log are used", "snapshot", name, "index", base)
	}
	if ext.first > base+1 {
		return f.damaged(logFile, nil, "begins at entry %d, but the snapshot that it follows is missing", ext.first)
	}
	return nil
}

func (f *Folder) snapshotNames() ([]string, error) {
	entries, err := os.ReadDir(f.path(snapshotsDir))
	var names []string
	for _, e := range entries {
		if e.IsDir() && !strings.HasSuffix(e.Name(), ".tmp") {
			names = append(names, e.Name())
		}
	}
	return names, err
}
