package disk

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// full is a store on a disk that can be full: writes fail, and what was there stays.
type full struct {
	store
	mu struct {
		sync.Mutex
		err    error
		writes int
	}
}

func (f *full) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.err = err
}

func (f *full) write() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.writes++
	return f.mu.err
}

func (f *full) StoreLogs(l []*raft.Log) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.store.StoreLogs(l)
}

func (f *full) DeleteRange(a, b uint64) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.store.DeleteRange(a, b)
}

func (f *full) Set(k, v []byte) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.store.Set(k, v)
}

func (f *full) SetUint64(k []byte, v uint64) error {
	if err := f.write(); err != nil {
		return err
	}
	return f.store.SetUint64(k, v)
}

// onFull returns a guard before a store that can be full, in a folder with a ballast
// whose removal makes room.
func onFull(t *testing.T) (*Folder, *guard, *full) {
	t.Helper()
	f := mustOpen(t, small(t.TempDir()))
	s := &full{store: raft.NewInmemStore()}
	return f, &guard{folder: f, bolt: s}, s
}

func ballastSize(t *testing.T, f *Folder) int64 {
	t.Helper()
	st, err := os.Stat(f.path(ballastFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	return st.Size()
}

func TestFullDiskSparesTheTerm(t *testing.T) {
	for name, write := range map[string]func(*guard) error{
		"term":    func(g *guard) error { return g.SetUint64([]byte("CurrentTerm"), 9) },
		"vote":    func(g *guard) error { return g.Set([]byte("LastVoteCand"), []byte("x")) },
		"compact": func(g *guard) error { return g.DeleteRange(1, 2) },
	} {
		t.Run(name, func(t *testing.T) {
			f, g, s := onFull(t)
			if got := ballastSize(t, f); got != 64<<10 {
				t.Fatalf("ballast of %d bytes", got)
			}
			s.fail(syscall.ENOSPC)
			wantFault(t, g.StoreLogs(entries(1, 2)), ErrNoSpace, f.Dir(), "Make room")
			if ballastSize(t, f) == 0 {
				t.Fatal("the ballast was given up for an entry")
			}
			// The ballast is gone and it is still full: an error, after one more try.
			before := s.mu.writes
			wantFault(t, write(g), ErrNoSpace, f.Dir())
			if ballastSize(t, f) != 0 || s.mu.writes != before+2 {
				t.Errorf("ballast %d, %d writes", ballastSize(t, f), s.mu.writes-before)
			}
			if wantFault(t, write(g), ErrNoSpace); s.mu.writes != before+3 {
				t.Error("tried again without a ballast")
			}
		})
		t.Run(name+", with room for it", func(t *testing.T) {
			f, g, s := onFull(t)
			s.mu.err = syscall.EDQUOT
			g.bolt = &whenGone{full: s, ballast: f.path(ballastFile)}
			if err := write(g); err != nil {
				t.Errorf("the ballast did not help: %v", err)
			}
		})
	}
	t.Run("another error", func(t *testing.T) {
		f, g, s := onFull(t)
		s.fail(syscall.EIO)
		for _, err := range []error{g.SetUint64([]byte("a"), 1), g.StoreLog(entries(1, 1)[0])} {
			if !errors.Is(err, syscall.EIO) || errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), f.path(logFile)) {
				t.Errorf("error %v", err)
			}
		}
		if ballastSize(t, f) == 0 {
			t.Error("the ballast was given up for another error")
		}
	})
}

// whenGone is full while the ballast is there.
type whenGone struct {
	*full
	ballast string
}

func (w *whenGone) check() {
	if _, err := os.Stat(w.ballast); err != nil {
		w.fail(nil)
	}
}

func (w *whenGone) Set(k, v []byte) error              { w.check(); return w.full.Set(k, v) }
func (w *whenGone) SetUint64(k []byte, v uint64) error { w.check(); return w.full.SetUint64(k, v) }
func (w *whenGone) DeleteRange(a, b uint64) error      { w.check(); return w.full.DeleteRange(a, b) }

func TestLowSpaceAndReserve(t *testing.T) {
	var free atomic.Int64
	free.Store(1000 * mib)
	cfg := Config{Dir: t.TempDir(), Ballast: mib, free: func(string) (int64, error) { return free.Load(), nil }}
	f := mustOpen(t, cfg)
	s := mustStores(t, f)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		defer cancel()
		go func() { done <- f.Run(ctx) }()
		at := func(bytes int64, low bool) {
			t.Helper()
			free.Store(bytes)
			time.Sleep(3 * time.Second)
			if f.LowSpace() != low || f.FreeSpace() != bytes {
				t.Errorf("with %d bytes: low space %v, free %d", bytes, f.LowSpace(), f.FreeSpace())
			}
		}
		at(1000*mib, false)
		at(256*mib, false)
		at(256*mib-1, true)
		at(300*mib, true) // not enough yet
		at(320*mib, false)
		at(300*mib, false)
		at(10*mib, true)
		wantFault(t, s.Log.StoreLogs(entries(1, 1)), ErrNoSpace, "kept for raft's term")
		if err := s.Stable.SetUint64([]byte("CurrentTerm"), 3); err != nil {
			t.Errorf("term: %v", err)
		}
		f.giveUpBallast()
		at(33*mib, true)
		if ballastSize(t, f) != 0 {
			t.Error("the ballast took the last of the space")
		}
		at(34*mib, true)
		if ballastSize(t, f) != mib {
			t.Error("the ballast did not come back")
		}
		if err := s.Log.StoreLogs(entries(1, 1)); err != nil {
			t.Errorf("entry with 34 MiB: %v", err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// The watcher itself must not think that a folder it cannot look at is full or empty.
func TestFreeSpaceUnknown(t *testing.T) {
	cfg := small(t.TempDir())
	cfg.Reserve = mib
	cfg.free = func(string) (int64, error) { return 0, syscall.EIO }
	f := mustOpen(t, cfg)
	if f.LowSpace() || f.reserved() {
		t.Error("an error is low space")
	}
	if free, err := freeSpace(cfg.Dir); err != nil || free <= 0 {
		t.Errorf("free space here: %d, %v", free, err)
	}
}

// tinyDisk mounts a disk of so many bytes, where this process may. Without that right
// the tests above, on stores that fail, have to do.
func tinyDisk(t *testing.T, size string) (dir string, ok bool) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Logf("no tiny disk: %v", err)
		return "", false
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir, true
}

func TestRealFullDisk(t *testing.T) {
	mount, ok := tinyDisk(t, "1m")
	if !ok {
		return
	}
	cfg := small(filepath.Join(mount, "data"))
	cfg.Ballast = 128 << 10
	f := mustOpen(t, cfg)
	s := mustStores(t, f)
	others := filepath.Join(mount, "others")
	fillUp := func() {
		t.Helper()
		file, err := os.OpenFile(others, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = file.Write(make([]byte, 4096))
		}
		if file.Close(); !noSpace(err) {
			t.Fatal(err)
		}
	}
	if err := s.Log.StoreLogs(entries(1, 100)); err != nil {
		t.Fatal(err)
	}
	fillUp()
	last := uint64(100) // bbolt has some free pages for more
	for ; last < 10000; last++ {
		if err := s.Log.StoreLogs(entries(last+1, last+1)); err != nil {
			wantFault(t, err, ErrNoSpace, cfg.Dir, "Make room")
			break
		}
	}
	// Terms and votes find room until long behind that.
	for i := range uint64(20) {
		if err := s.Stable.SetUint64([]byte("CurrentTerm"), 10+i); err != nil {
			t.Fatalf("term %d on a full disk: %v", 10+i, err)
		}
		if err := s.Stable.Set([]byte{'k', byte(i)}, make([]byte, 3000)); err != nil {
			t.Fatalf("value %d on a full disk: %v", i, err)
		}
	}
	if ballastSize(t, f) != 0 {
		t.Error("all that fitted without the ballast: the test tests nothing")
	}
	mustClose(t, f)
	fillUp()
	_, err := OpenConfig(cfg)
	wantFault(t, err, ErrNoSpace, cfg.Dir)
	if err := os.Remove(others); err != nil {
		t.Fatal(err)
	}
	f = mustOpen(t, cfg)
	if ballastSize(t, f) == 0 {
		t.Error("no new ballast")
	}
	s = mustStores(t, f)
	if got, err := s.Log.LastIndex(); err != nil || got != last {
		t.Errorf("last entry %d (%v), want %d", got, err, last)
	}
	if term, err := s.Stable.GetUint64([]byte("CurrentTerm")); err != nil || term != 29 {
		t.Errorf("term %d, %v", term, err)
	}
}

// asNobody runs fn without the right of root to write everywhere.
func asNobody(t *testing.T, fn func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		fn()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and not unlocked: the thread ends with the goroutine
		if err := unix.Setfsuid(65534); err != nil {
			t.Error(err)
			return
		}
		fn()
	}()
	<-done
}

func TestReadOnlyFolder(t *testing.T) {
	top := t.TempDir()
	locked := filepath.Join(top, "locked")
	if err := os.Mkdir(locked, 0o555); err != nil {
		t.Fatal(err)
	}
	used := used(t).Dir
	for _, dir := range []string{top, filepath.Dir(top), filepath.Dir(used)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(used, 0o555); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(used, 0o755) })
	for name, dir := range map[string]string{"cannot be made": filepath.Join(locked, "data"), "empty": locked, "used": used} {
		t.Run(name, func(t *testing.T) {
			asNobody(t, func() {
				_, err := OpenConfig(small(dir))
				wantReadOnly(t, err, dir)
			})
		})
	}
	mount, ok := tinyDisk(t, "1m")
	if !ok {
		return
	}
	cfg := small(filepath.Join(mount, "data"))
	mustClose(t, mustOpen(t, cfg))
	if err := unix.Mount("", mount, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err := OpenConfig(cfg)
	wantReadOnly(t, err, cfg.Dir)
	_, err = OpenConfig(small(filepath.Join(mount, "another")))
	wantReadOnly(t, err, "another")
}

// wantReadOnly does not end the test: it may run on a goroutine of its own.
func wantReadOnly(t *testing.T, err error, dir string) {
	t.Helper()
	if !errors.Is(err, ErrReadOnly) || !strings.Contains(err.Error(), dir) || !strings.HasSuffix(err.Error(), "or name another folder.") {
		t.Errorf("error is %v", err)
	}
}
