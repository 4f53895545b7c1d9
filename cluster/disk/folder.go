package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	lockFile     = "lock"
	identityFile = "identity.json"
	logFile      = "raft.db"
	snapshotsDir = "snapshots"
	ballastFile  = "ballast"
	peersFile    = "peers.json"
	probeFile    = "probe.tmp"
)

// Folder is a data folder that this process holds. Its methods may be called from any
// goroutine.
type Folder struct {
	cfg  Config
	log  *slog.Logger
	lock *os.File

	mu struct {
		sync.Mutex
		id     Identity
		stores *stores // nil before Stores and after Close
		closed bool
		peers  string // as written last
	}
	space space
	name  atomic.Value // string, of the node: as in mu.id, for who may hold the lock or not
}

// Open opens the folder with the default Config.
func Open(dir string, logger *slog.Logger) (*Folder, error) {
	return OpenConfig(Config{Dir: dir, Logger: logger})
}

// OpenConfig makes the folder if need be, takes its lock and reads or writes its
// identity. Errors are ErrInUse, ErrReadOnly, ErrNoSpace, ErrCorrupt, ErrFormat and
// ErrPath. Close must be called.
func OpenConfig(cfg Config) (*Folder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg.applyDefaults()
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("data folder %s: %w", cfg.Dir, err)
	}
	cfg.Dir = dir
	f := &Folder{cfg: cfg, log: cfg.Logger.With("component", "disk", "dir", dir)}
	if err := f.open(); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (f *Folder) open() error {
	if err := os.MkdirAll(f.cfg.Dir, 0o700); err != nil {
		return f.explain(err, "be made")
	}
	if err := f.takeLock(); err != nil {
		return err
	}
	// Find out now, and not at the first term, that nothing can be written.
	if err := f.probe(); err != nil {
		return err
	}
	if err := f.readIdentity(); err != nil {
		return err
	}
	f.checkSpace()
	f.fillBallast()
	return nil
}

// takeLock holds the folder for as long as this process lives.
func (f *Folder) takeLock() error {
	lock, err := os.OpenFile(f.path(lockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return f.explain(err, "be locked")
	}
	f.lock = lock
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return newFault(ErrInUse, err, "The data folder %s is in use by another process%s. Stop that one, or give this node a folder of its own.",
			f.cfg.Dir, holder(lock))
	}
	if err != nil {
		return f.explain(err, "be locked")
	}
	// The pid is for people only; a full disk must not be the reason for another error.
	if err := lock.Truncate(0); err == nil {
		_, _ = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
	return nil
}

func holder(lock *os.File) string {
	raw, _ := io.ReadAll(io.LimitReader(lock, 32))
	if pid, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
		return fmt.Sprintf(" (pid %d)", pid)
	}
	return ""
}

// probe writes and syncs some bytes.
func (f *Folder) probe() error {
	p, err := os.OpenFile(f.path(probeFile), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return f.explain(err, "be written")
	}
	_, err = p.Write(make([]byte, 4096))
	err = errors.Join(err, p.Sync(), p.Close())
	if rm := os.Remove(f.path(probeFile)); err == nil {
		err = rm
	}
	if err != nil {
		return f.explain(err, "be written")
	}
	return nil
}

// explain turns an error of the operating system into one for an operator.
func (f *Folder) explain(err error, what string) error {
	switch {
	case noSpace(err):
		return newFault(ErrNoSpace, err, "No space is left on the disk of the data folder %s. Make room there and start the node again.", f.cfg.Dir)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		return newFault(ErrReadOnly, err, "The data folder %s cannot %s (%v). Give the user of this process the right to write there, or name another folder.",
			f.cfg.Dir, what, reason(err))
	case errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EEXIST):
		return newFault(ErrPath, err, "%s is no folder, or something in its path is none. Name another data folder.", f.cfg.Dir)
	}
	return fmt.Errorf("data folder %s cannot %s: %w", f.cfg.Dir, what, err)
}

// damaged is the error of a file that cannot be trusted.
func (f *Folder) damaged(file string, cause error, how string, args ...any) error {
	return newFault(ErrCorrupt, cause, "%s %s. Move the folder %s away, have the cluster forget this node (kvcluster remove %s), and join it again with an empty folder.",
		f.path(file), fmt.Sprintf(how, args...), f.cfg.Dir, f.nameOr("NAME"))
}

// nameOr returns the name of the node, or another text when it has none yet.
func (f *Folder) nameOr(other string) string {
	if name, _ := f.name.Load().(string); name != "" {
		return name
	}
	return other
}

func noSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// reason is the innermost text of an error, without the path that the sentence has.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func (f *Folder) path(name string) string { return filepath.Join(f.cfg.Dir, name) }

// Dir returns the absolute path of the folder.
func (f *Folder) Dir() string { return f.cfg.Dir }

// Close closes the stores, which raft must not use any more, and gives the folder free.
func (f *Folder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return nil
	}
	f.mu.closed = true
	var err error
	if f.mu.stores != nil {
		err = f.mu.stores.close()
		f.mu.stores = nil
	}
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("close data folder %s: %w", f.cfg.Dir, err)
	}
	return nil
}
