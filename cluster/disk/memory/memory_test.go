package memory

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"

	"github.com/kvcluster/kvcluster/cluster/disk"
	"github.com/kvcluster/kvcluster/cluster/raftlog"
)

// folder is what a node needs of its data folder; both kinds have it.
type folder interface {
	Identity() disk.Identity
	SetName(string) error
	SetClusterID(string) error
	Stores() (raftlog.Stores, error)
	HasData() bool
	LowSpace() bool
	Peers() []string
	SavePeers([]string) error
	Close() error
}

var (
	_ folder = (*Folder)(nil)
	_ folder = (*disk.Folder)(nil)
)

// Thirty histories are enough for every run: each syncs real files. -rapid.checks asks
// for more.
func init() { _ = flag.Set("rapid.checks", "30") }

// The twin does what a folder with files does, for random writes and restarts.
func TestSameAsFiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir := rapidDir(t)
		mem := New("", 1)
		var a, b folder
		var sa, sb raftlog.Stores
		open := func() {
			f, err := disk.OpenConfig(disk.Config{Dir: dir, Ballast: -1, LowBelow: -1, Reserve: -1, CachedEntries: 3})
			if err != nil {
				t.Fatal(err)
			}
			m, err := mem.Open()
			if err != nil {
				t.Fatal(err)
			}
			a, b = f, m
			if sa, err = a.Stores(); err != nil {
				t.Fatal(err)
			}
			if sb, err = b.Stores(); err != nil {
				t.Fatal(err)
			}
		}
		open()
		defer func() { a.Close() }()
		same := func(what string, x, y any, errX, errY error) {
			t.Helper()
			if (errX == nil) != (errY == nil) || errX == nil && !reflect.DeepEqual(x, y) {
				t.Fatalf("%s: files %v (%v), memory %v (%v)", what, x, errX, y, errY)
			}
			for _, kind := range []error{raft.ErrLogNotFound, disk.ErrOtherNode} {
				if errors.Is(errX, kind) != errors.Is(errY, kind) {
					t.Fatalf("%s: files %v, memory %v", what, errX, errY)
				}
			}
		}
		compare := func() {
			t.Helper()
			first, err := sa.Log.FirstIndex()
			first2, err2 := sb.Log.FirstIndex()
			same("first", first, first2, err, err2)
			last, err := sa.Log.LastIndex()
			last2, err2 := sb.Log.LastIndex()
			same("last", last, last2, err, err2)
			for i := uint64(0); i < last+2; i++ {
				var x, y raft.Log
				err, err2 := sa.Log.GetLog(i, &x), sb.Log.GetLog(i, &y)
				x.AppendedAt, y.AppendedAt = time.Time{}, time.Time{}
				same(fmt.Sprint("entry ", i), x, y, err, err2)
			}
			for _, k := range []string{"CurrentTerm", "LastVoteTerm", "x"} {
				x, err := sa.Stable.GetUint64([]byte(k))
				y, err2 := sb.Stable.GetUint64([]byte(k))
				same(k, x, y, err, err2)
				v, err := sa.Stable.Get([]byte("b" + k))
				w, err2 := sb.Stable.Get([]byte("b" + k))
				same(k, v, w, err, err2)
				if err != nil && err.Error() != err2.Error() {
					t.Fatalf("raft knows the text %q, not %q", err, err2)
				}
			}
			same("identity", a.Identity().Name+a.Identity().ClusterID, b.Identity().Name+b.Identity().ClusterID, nil, nil)
			same("data", a.HasData(), b.HasData(), nil, nil)
			same("peers", fmt.Sprint(a.Peers()), fmt.Sprint(b.Peers()), nil, nil)
			l, err := sa.Snapshots.List()
			l2, err2 := sb.Snapshots.List()
			same("snapshots", len(l), len(l2), err, err2)
			for i := range l {
				same("snapshot", stateOf(t, sa, l[i].ID), stateOf(t, sb, l2[i].ID), nil, nil)
				same("its index", l[i].Index, l2[i].Index, nil, nil)
			}
		}
		name := rapid.SampledFrom([]string{"CurrentTerm", "LastVoteTerm", "x"})
		word := rapid.SampledFrom([]string{"a", "b"})
		next, base := uint64(1), uint64(0) // next entry, index of the newest snapshot
		// Raft notes a term before it stores an entry of it; a folder without is damaged.
		const term = 3
		same("term", nil, nil, sa.Stable.SetUint64([]byte("CurrentTerm"), term), sb.Stable.SetUint64([]byte("CurrentTerm"), term))
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch rapid.IntRange(0, 8).Draw(t, "step") {
			case 0, 1:
				var logs []*raft.Log
				for range rapid.IntRange(1, 5).Draw(t, "entries") {
					logs = append(logs, &raft.Log{Index: next, Term: term, Type: raft.LogBarrier, Data: []byte(word.Draw(t, "data"))})
					next++
				}
				same("store", nil, nil, sa.Log.StoreLogs(logs), sb.Log.StoreLogs(logs))
			case 2: // entries that another leader has otherwise
				if next > base+1 {
					next = rapid.Uint64Range(base+1, next-1).Draw(t, "from")
					same("delete", nil, nil, sa.Log.DeleteRange(next, 1<<40), sb.Log.DeleteRange(next, 1<<40))
				}
			case 3: // snapshot and compaction
				if next > base+1 {
					base = rapid.Uint64Range(base+1, next-1).Draw(t, "snapshot")
					for _, s := range []raftlog.Stores{sa, sb} {
						writeSnapshot(t, s, base, rapid.Bool().Draw(t, "cancel first"))
						if err := s.Log.DeleteRange(0, base); err != nil {
							t.Fatal(err)
						}
					}
				}
			case 4:
				k, v := name.Draw(t, "key"), rapid.Uint64Min(term).Draw(t, "value")
				same("number", nil, nil, sa.Stable.SetUint64([]byte(k), v), sb.Stable.SetUint64([]byte(k), v))
			case 5:
				k, v := []byte("b"+name.Draw(t, "key")), []byte(word.Draw(t, "value"))
				same("value", nil, nil, sa.Stable.Set(k, v), sb.Stable.Set(k, v))
			case 6:
				w := word.Draw(t, "name")
				same("name", nil, nil, a.SetName(w), b.SetName(w))
				same("cluster", nil, nil, a.SetClusterID(w), b.SetClusterID(w))
			case 7:
				p := []string{word.Draw(t, "peer")}
				same("peers", nil, nil, a.SavePeers(p), b.SavePeers(p))
			case 8:
				if err := errors.Join(a.Close(), b.Close()); err != nil {
					t.Fatal(err)
				}
				open()
			}
		}
		compare()
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		open()
		compare()
	})
}

func rapidDir(t *rapid.T) string {
	dir, err := os.MkdirTemp("", "kvcluster-disk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func writeSnapshot(t interface{ Fatal(...any) }, s raftlog.Stores, index uint64, cancelFirst bool) {
	_, tr := raft.NewInmemTransport("a")
	for _, cancel := range []bool{true, false} {
		if cancel && !cancelFirst {
			continue
		}
		sink, err := s.Snapshots.Create(1, index, 3, raft.Configuration{}, 1, tr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(sink, "state at %d", index); err != nil {
			t.Fatal(err)
		}
		if cancel {
			err = sink.Cancel()
		} else {
			err = sink.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func stateOf(t *rapid.T, s raftlog.Stores, id string) string {
	t.Helper()
	_, r, err := s.Snapshots.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func entry(i uint64) *raft.Log { return &raft.Log{Index: i, Term: 1, Data: []byte{byte(i)}} }

func mustOpen(t *testing.T, d *Disk) (*Folder, raftlog.Stores) {
	t.Helper()
	f, err := d.Open()
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.Stores()
	if err != nil {
		t.Fatal(err)
	}
	return f, s
}

// A confirmed write survives a kill; one under way is there or not, as a whole; a later
// one is not there.
func TestKillInTheMiddle(t *testing.T) {
	kept, lost := 0, 0
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			d := New("s", seed)
			_, s := mustOpen(t, d)
			if err := s.Log.StoreLog(entry(1)); err != nil {
				t.Fatal(err)
			}
			d.SetSyncDelay(10 * time.Millisecond)
			begin := time.Now()
			if err := s.Log.StoreLog(entry(2)); err != nil || time.Since(begin) != 10*time.Millisecond {
				t.Fatalf("after %v: %v", time.Since(begin), err)
			}
			done := make(chan error, 2)
			go func() { done <- s.Log.StoreLogs([]*raft.Log{entry(3), entry(4)}) }()
			synctest.Wait()
			go func() { done <- s.Log.StoreLog(entry(5)) }() // waits for its turn
			synctest.Wait()
			time.Sleep(5 * time.Millisecond)
			d.Kill()
			d.Kill()
			for range 2 {
				if err := <-done; !errors.Is(err, ErrKilled) {
					t.Errorf("under way: %v", err)
				}
			}
			if err := s.Log.StoreLog(entry(6)); !errors.Is(err, ErrKilled) {
				t.Errorf("a dead process writes: %v", err)
			}
			if _, err := s.Log.LastIndex(); !errors.Is(err, ErrKilled) {
				t.Errorf("a dead process reads: %v", err)
			}
			if err := s.Log.GetLog(2, &raft.Log{}); err != nil {
				t.Errorf("an entry that a dead process is about to apply: %v", err)
			}
			if err := s.Stable.SetUint64([]byte("CurrentTerm"), 9); err != nil {
				t.Errorf("the term of a dead process: %v", err)
			}
			if err := s.Stable.SetUint64([]byte("LastVoteTerm"), 9); !errors.Is(err, ErrKilled) {
				t.Errorf("the vote of a dead process: %v", err)
			}
			_, s = mustOpen(t, d)
			switch last, err := s.Log.LastIndex(); {
			case err == nil && last == 4:
				kept++
			case err == nil && last == 2:
				lost++
			default:
				t.Errorf("last entry %d, %v", last, err)
			}
			if _, err := s.Stable.GetUint64([]byte("CurrentTerm")); err == nil {
				t.Error("the dead process has left a term")
			}
			if st := d.Stats(); st.Killed != 1 || st.Opened != 2 {
				t.Errorf("stats %+v", st)
			}
		})
	}
	if kept == 0 || lost == 0 {
		t.Errorf("kept %d, lost %d: no coin", kept, lost)
	}
}

func TestOneProcess(t *testing.T) {
	d := New("s", 1)
	f, s := mustOpen(t, d)
	if _, err := d.Open(); !errors.Is(err, disk.ErrInUse) {
		t.Errorf("second process: %v", err)
	}
	if err := errors.Join(s.Log.StoreLog(entry(1)), f.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Log.StoreLog(entry(2)); err == nil {
		t.Error("written after Close")
	}
	f, _ = mustOpen(t, d)
	if id := f.Identity(); id.ServerID != "s" || !id.HasLog || !f.HasData() {
		t.Errorf("%+v, %v", id, f.HasData())
	}
	d.Kill()
	if err := f.Close(); err != nil { // a zombie must not close its successor
		t.Error(err)
	}
	g, _ := mustOpen(t, d)
	if err := errors.Join(f.Close(), g.SetName("n")); err != nil {
		t.Error(err)
	}
}

func TestFullAndLow(t *testing.T) {
	d := New("s", 1)
	f, s := mustOpen(t, d)
	if f.LowSpace() {
		t.Error("low")
	}
	d.SetLow(true)
	if !f.LowSpace() || s.Log.StoreLog(entry(1)) != nil {
		t.Error("not low, or too full")
	}
	d.SetLow(false)
	d.SetFull(true)
	if err := s.Log.StoreLog(entry(2)); !errors.Is(err, disk.ErrNoSpace) || !f.LowSpace() {
		t.Errorf("full: %v", err)
	}
	if err := s.Stable.SetUint64([]byte("CurrentTerm"), 2); err != nil {
		t.Errorf("term: %v", err)
	}
	sink, err := s.Snapshots.Create(1, 1, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); !errors.Is(err, disk.ErrNoSpace) {
		t.Errorf("snapshot: %v", err)
	}
	d.SetFull(false)
	if err := s.Log.StoreLog(entry(2)); err != nil {
		t.Error(err)
	}
}

func TestLyingDisk(t *testing.T) {
	d := New("s", 1)
	_, s := mustOpen(t, d)
	store := func(i uint64) {
		t.Helper()
		if err := s.Log.StoreLog(entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	store(1)
	d.SetLying(true)
	store(2)
	d.Sync()
	store(3)
	store(4)
	d.Kill()
	_, s = mustOpen(t, d)
	if last, err := s.Log.LastIndex(); err != nil || last != 2 {
		t.Errorf("last entry %d, %v", last, err)
	}
	d.SetLying(false)
	store(3)
	d.Kill()
	_, s = mustOpen(t, d)
	if last, err := s.Log.LastIndex(); err != nil || last != 3 {
		t.Errorf("last entry %d, %v", last, err)
	}
}

// What a caller does with its buffers later does not change the disk.
func TestCopies(t *testing.T) {
	d := New("s", 1)
	_, s := mustOpen(t, d)
	l, v := entry(1), []byte("value")
	if err := errors.Join(s.Log.StoreLog(l), s.Stable.Set([]byte("k"), v)); err != nil {
		t.Fatal(err)
	}
	l.Data[0], v[0] = 'x', 'x'
	var got raft.Log
	if err := s.Log.GetLog(1, &got); err != nil || !bytes.Equal(got.Data, []byte{1}) {
		t.Errorf("%v, %v", got.Data, err)
	}
	if b, err := s.Stable.Get([]byte("k")); err != nil || string(b) != "value" {
		t.Errorf("%s, %v", b, err)
	}
}
