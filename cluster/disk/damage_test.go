package disk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// used makes a folder with a log of 300 entries, two snapshots and a term, closed.
func used(t *testing.T) Config {
	t.Helper()
	cfg := small(t.TempDir())
	f := mustOpen(t, cfg)
	s := mustStores(t, f)
	fill(t, s, 1, 300)
	snapshot(t, s, 100)
	snapshot(t, s, 200)
	if err := s.Log.DeleteRange(1, 150); err != nil {
		t.Fatal(err)
	}
	mustClose(t, f)
	return cfg
}

// openUsed opens a folder and its stores.
func openUsed(t *testing.T, cfg Config) error {
	t.Helper()
	f, err := OpenConfig(cfg)
	if err != nil {
		t.Fatalf("the folder itself: %v", err)
	}
	defer f.Close()
	_, err = f.Stores()
	return err
}

func change(t *testing.T, path string, fn func([]byte) []byte) {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, fn(raw), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestDamagedLog(t *testing.T) {
	if err := openUsed(t, used(t)); err != nil {
		t.Fatalf("undamaged: %v", err)
	}
	for name, fn := range map[string]func([]byte) []byte{
		"text":          func([]byte) []byte { return []byte("this was a raft log") },
		"zeros":         func(b []byte) []byte { return make([]byte, len(b)) },
		"metas gone":    func(b []byte) []byte { clear(b[:8192]); return b },
		"one page left": func(b []byte) []byte { return b[:4096] },
		"half":          func(b []byte) []byte { return b[:len(b)/2/4096*4096] },
		"not a page":    func(b []byte) []byte { return b[:len(b)/3+17] },
		"zeros behind":  func(b []byte) []byte { clear(b[16384:]); return b },
		"empty":         func([]byte) []byte { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := used(t)
			path := filepath.Join(cfg.Dir, logFile)
			change(t, path, fn)
			before, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			err = openUsed(t, cfg)
			wantFault(t, err, ErrCorrupt, path, "Move the folder")
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(before, after) {
				t.Errorf("the damaged file was written to (%v)", err)
			}
		})
	}
	t.Run("missing", func(t *testing.T) {
		cfg := used(t)
		if err := os.Remove(filepath.Join(cfg.Dir, logFile)); err != nil {
			t.Fatal(err)
		}
		wantFault(t, openUsed(t, cfg), ErrCorrupt, "raft.db is missing")
	})
	t.Run("identity missing", func(t *testing.T) {
		cfg := used(t)
		if err := os.Remove(filepath.Join(cfg.Dir, identityFile)); err != nil {
			t.Fatal(err)
		}
		_, err := OpenConfig(cfg)
		wantFault(t, err, ErrCorrupt, "identity.json is missing")
	})
}

// A memory fault, as a page behind the end of the file is on most systems, is an error.
func TestFaultIsTrapped(t *testing.T) {
	f := mustOpen(t, small(t.TempDir()))
	page, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Munmap(page); err != nil {
			t.Error(err)
		}
	}()
	err = f.trapped(func() error {
		if page[17] == 0 {
			return nil
		}
		return nil
	})
	wantFault(t, err, ErrCorrupt, logFile)
}

// Any page of garbage anywhere: it is either found, or what raft reads is what was
// stored.
func TestDamagedPages(t *testing.T) {
	cfg := used(t)
	path := filepath.Join(cfg.Dir, logFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(7, 7))
	found := 0
	for page := range len(whole) / 4096 {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(cfg.Dir)); err != nil {
			t.Fatal(err)
		}
		raw := bytes.Clone(whole)
		for i := range 4096 {
			raw[page*4096+i] = byte(rng.Uint32())
		}
		if err := os.WriteFile(filepath.Join(dir, logFile), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := OpenConfig(small(dir))
		if err != nil {
			t.Fatal(err)
		}
		s, err := f.Stores()
		if err != nil {
			wantFault(t, err, ErrCorrupt, logFile)
			found++
		} else {
			for i := uint64(151); i <= 300; i++ {
				var l raft.Log
				if err := s.Log.GetLog(i, &l); err != nil || string(l.Data) != string(entries(i, i)[0].Data) {
					t.Fatalf("page %d: entry %d: %v", page, i, err)
				}
			}
			if term, err := s.Stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 7 {
				t.Fatalf("page %d: term %d, %v", page, term, err)
			}
		}
		f.Close()
	}
	t.Logf("%d of %d pages mattered", found, len(whole)/4096)
	if found < 8 {
		t.Errorf("only %d pages mattered", found)
	}
}

// One bit of an entry's data: bbolt does not see it.
func TestDamagedEntry(t *testing.T) {
	cfg := used(t)
	change(t, filepath.Join(cfg.Dir, logFile), func(b []byte) []byte {
		text := []byte("entry 222 x")
		if !bytes.Contains(b, text) {
			t.Fatal("the entry is not in the file")
		}
		return bytes.ReplaceAll(b, text, []byte("entry 223 x"))
	})
	wantFault(t, openUsed(t, cfg), ErrCorrupt, logFile, "entry 222", "checksum")
}

// An entry that changes while the node runs is an error too.
func TestEntryThatChangesLater(t *testing.T) {
	f := mustOpen(t, small(t.TempDir()))
	mustStores(t, f)
	f.mu.Lock()
	g := f.mu.stores.guard
	f.mu.Unlock()
	if err := g.StoreLogs(entries(1, 3)); err != nil {
		t.Fatal(err)
	}
	if err := g.bolt.StoreLogs([]*raft.Log{{Index: 2, Data: []byte("another")}, {Index: 3, Data: []byte("another"), Extensions: []byte("1234")}}); err != nil {
		t.Fatal(err)
	}
	for i := uint64(2); i <= 3; i++ {
		wantFault(t, g.GetLog(i, new(raft.Log)), ErrCorrupt, fmt.Sprintf("entry %d", i), "checksum")
	}
	if err := g.GetLog(1, new(raft.Log)); err != nil {
		t.Error(err)
	}
}

// What others put into an entry's extensions comes back.
func TestExtensionsSurvive(t *testing.T) {
	f := mustOpen(t, small(t.TempDir()))
	mustStores(t, f)
	f.mu.Lock()
	g := f.mu.stores.guard
	f.mu.Unlock()
	in := raft.Log{Index: 1, Term: 2, Type: raft.LogConfiguration, Data: []byte("d"), Extensions: []byte("ext")}
	if err := g.StoreLog(&in); err != nil {
		t.Fatal(err)
	}
	if string(in.Extensions) != "ext" {
		t.Errorf("the caller's entry was changed: %q", in.Extensions)
	}
	var out raft.Log
	if err := g.GetLog(1, &out); err != nil || string(out.Extensions) != "ext" || out.Type != in.Type || out.Term != 2 {
		t.Errorf("%+v, %v", out, err)
	}
}

// Logs that cannot be raft's: holes, keys and terms of a wrong length.
func TestImpossibleLog(t *testing.T) {
	key := func(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }
	for name, c := range map[string]struct {
		put  func(logs, conf *bbolt.Bucket) error
		want string
	}{
		"hole":       {func(l, _ *bbolt.Bucket) error { return l.Delete(key(222)) }, "222"},
		"short key":  {func(l, _ *bbolt.Bucket) error { return l.Put([]byte("abc"), []byte("x")) }, "3 bytes"},
		"no msgpack": {func(l, _ *bbolt.Bucket) error { return l.Put(key(222), []byte("\xc1")) }, "entry 222"},
		"other":      {func(l, _ *bbolt.Bucket) error { return l.Put(key(222), l.Get(key(223))) }, "calls itself 223"},
		"changed term": {func(_, c *bbolt.Bucket) error {
			v := bytes.Clone(c.Get([]byte("CurrentTerm")))
			v[6] ^= 1
			return c.Put([]byte("CurrentTerm"), v)
		}, "checksum of CurrentTerm"},
		"another key's value": {func(_, c *bbolt.Bucket) error {
			return c.Put([]byte("LastVoteTerm"), bytes.Clone(c.Get([]byte("CurrentTerm"))))
		}, "checksum of LastVoteTerm"},
		"no term":     {func(_, c *bbolt.Bucket) error { return c.Delete([]byte("CurrentTerm")) }, "has term 2"},
		"a past term": {func(_, c *bbolt.Bucket) error { return c.Put([]byte("CurrentTerm"), make([]byte, 8)) }, "said to be 0"},
		"short term":  {func(_, c *bbolt.Bucket) error { return c.Put([]byte("CurrentTerm"), []byte("x")) }, "CurrentTerm"},
		"buckets":     {nil, "buckets"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := used(t)
			db, err := bbolt.Open(filepath.Join(cfg.Dir, logFile), 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bbolt.Tx) error {
				if c.put == nil {
					return tx.DeleteBucket([]byte("logs"))
				}
				return c.put(tx.Bucket([]byte("logs")), tx.Bucket([]byte("conf")))
			})
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			wantFault(t, openUsed(t, cfg), ErrCorrupt, logFile, c.want)
		})
	}
}

// The program died while it made raft.db: nothing was confirmed, so it is made again.
func TestLogHalfMade(t *testing.T) {
	for name, make := range map[string]func(path string) error{
		"empty": func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"no buckets": func(path string) error {
			db, err := bbolt.Open(path, 0o600, nil)
			if err != nil {
				return err
			}
			return db.Close()
		},
		"no entries": func(path string) error {
			s, err := raftboltdb.NewBoltStore(path)
			if err != nil {
				return err
			}
			return s.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small(t.TempDir())
			mustClose(t, mustOpen(t, cfg))
			if err := make(filepath.Join(cfg.Dir, logFile)); err != nil {
				t.Fatal(err)
			}
			f := mustOpen(t, cfg)
			fill(t, mustStores(t, f), 1, 3)
		})
	}
}

func TestDamagedSnapshots(t *testing.T) {
	snaps := func(cfg Config) (old, newest string) {
		all, err := filepath.Glob(filepath.Join(cfg.Dir, snapshotsDir, "2-*"))
		if err != nil || len(all) != 2 {
			t.Fatalf("snapshots %v, %v", all, err)
		}
		return all[0], all[1]
	}
	spoil := func(file string) func(dir string) {
		return func(dir string) { change(t, filepath.Join(dir, file), func([]byte) []byte { return []byte("{") }) }
	}
	remove := func(dir string) {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		old, newest func(dir string)
		compacted   uint64 // up to here
		ok          bool
	}{
		"old one":                       {spoil("state.bin"), nil, 150, true},
		"old one removed":               {remove, nil, 150, true},
		"newest, log reaches back":      {nil, spoil("state.bin"), 100, true},
		"newest's meta, log reaches":    {nil, spoil("meta.json"), 100, true},
		"newest, log does not":          {nil, spoil("state.bin"), 101, false},
		"newest's meta, log does not":   {nil, spoil("meta.json"), 101, false},
		"newest removed, log does not":  {nil, remove, 101, false},
		"both":                          {spoil("state.bin"), spoil("state.bin"), 100, false},
		"both removed":                  {remove, remove, 100, false},
		"newest, log is before it only": {nil, spoil("state.bin"), 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small(t.TempDir())
			f := mustOpen(t, cfg)
			s := mustStores(t, f)
			fill(t, s, 1, 300)
			snapshot(t, s, 100)
			snapshot(t, s, 200)
			if c.compacted > 0 {
				if err := s.Log.DeleteRange(1, c.compacted); err != nil {
					t.Fatal(err)
				}
			}
			mustClose(t, f)
			old, newest := snaps(cfg)
			if c.old != nil {
				c.old(old)
			}
			if c.newest != nil {
				c.newest(newest)
			}
			err := openUsed(t, cfg)
			if c.ok && err != nil {
				t.Fatal(err)
			}
			if !c.ok {
				wantFault(t, err, ErrCorrupt, cfg.Dir, "Move the folder")
			}
		})
	}
}

// What an earlier version stored without checksums is read as it is.
func TestValuesWithoutChecksum(t *testing.T) {
	cfg := used(t)
	db, err := bbolt.Open(filepath.Join(cfg.Dir, logFile), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		c := tx.Bucket([]byte("conf"))
		return errors.Join(c.Put([]byte("CurrentTerm"), binary.BigEndian.AppendUint64(nil, 9)), c.Put([]byte("LastVoteCand"), []byte("127.0.0.1:7947")))
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	s := mustStores(t, mustOpen(t, cfg))
	if term, err := s.Stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 9 {
		t.Errorf("%d, %v", term, err)
	}
	if who, err := s.Stable.Get([]byte("LastVoteCand")); err != nil || string(who) != "127.0.0.1:7947" {
		t.Errorf("%q, %v", who, err)
	}
}

// A value that changes while the node runs is an error, and not another value.
func TestValueThatChangesLater(t *testing.T) {
	s := mustStores(t, mustOpen(t, small(t.TempDir())))
	g := s.Stable.(*guard)
	if err := g.SetUint64([]byte("LastVoteTerm"), 5); err != nil {
		t.Fatal(err)
	}
	raw, err := g.bolt.Get([]byte("LastVoteTerm"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range raw {
		changed := bytes.Clone(raw)
		changed[i] ^= 0x20
		if err := g.bolt.Set([]byte("LastVoteTerm"), changed); err != nil {
			t.Fatal(err)
		}
		_, err := g.GetUint64([]byte("LastVoteTerm"))
		wantFault(t, err, ErrCorrupt, "LastVoteTerm", "Move the folder")
	}
}
