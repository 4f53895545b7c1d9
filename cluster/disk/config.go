package disk

import (
	"errors"
	"fmt"
	"log/slog"
	"time"
)

// Format is the version of the folder's layout. A folder of another one is refused.
const Format = 1

// Kinds of errors. Every error of this package that an operator can do something about
// is one of them, and its text says in a sentence or two what is wrong and what to do.
var (
	// ErrInUse: another process holds the folder.
	ErrInUse = errors.New("data folder in use")
	// ErrReadOnly: the folder cannot be written.
	ErrReadOnly = errors.New("data folder is read-only")
	// ErrNoSpace: the disk is full.
	ErrNoSpace = errors.New("no space left for the data folder")
	// ErrCorrupt: a file of the folder is damaged or missing.
	ErrCorrupt = errors.New("data folder damaged")
	// ErrFormat: another version of the program wrote the folder.
	ErrFormat = errors.New("data folder of another version")
	// ErrOtherNode: the folder belongs to another node or another cluster.
	ErrOtherNode = errors.New("data folder of another node")
	// ErrPath: there is no folder at the path, and none can be made.
	ErrPath = errors.New("no data folder")
	// ErrClosed: the folder has been closed.
	ErrClosed = errors.New("data folder closed")
)

// fault is an error whose text is written for an operator and stands alone.
type fault struct {
	kind  error
	text  string
	cause error // may be nil
}

func (f *fault) Error() string { return f.text }

func (f *fault) Unwrap() []error {
	if f.cause == nil {
		return []error{f.kind}
	}
	return []error{f.kind, f.cause}
}

func newFault(kind, cause error, format string, args ...any) error {
	return &fault{kind: kind, text: fmt.Sprintf(format, args...), cause: cause}
}

// Config of a Folder. Zero means the default; a negative size turns its part off.
type Config struct {
	Dir    string
	Logger *slog.Logger

	// LowBelow and LowAbove are the free bytes at which LowSpace becomes true and false
	// again. Defaults 256 MiB and a quarter more than LowBelow: the log is compacted at
	// some thousand small entries, so this is minutes to hours of warning.
	LowBelow, LowAbove int64
	// Reserve are the free bytes that appends to the log leave alone. Default 32 MiB:
	// two of the 16 MiB steps in which bbolt grows its file.
	Reserve int64
	// Ballast is the size of the file that is given up for a term or a vote. Default
	// 16 MiB; bbolt writes some pages of 4 KiB for one.
	Ballast int64
	// Check is how often the free space is looked at. Default 2 s.
	Check time.Duration
	// CachedEntries of the log are kept in memory for followers. Default 512.
	CachedEntries int

	// free returns the bytes that may still be written to the folder's disk.
	free func(dir string) (int64, error)
}

const mib = 1 << 20

func (c *Config) applyDefaults() {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	size := func(n *int64, def int64) {
		switch {
		case *n == 0:
			*n = def
		case *n < 0:
			*n = 0
		}
	}
	size(&c.LowBelow, 256*mib)
	size(&c.LowAbove, c.LowBelow+c.LowBelow/4)
	size(&c.Reserve, 32*mib)
	size(&c.Ballast, 16*mib)
	if c.Check == 0 {
		c.Check = 2 * time.Second
	}
	if c.CachedEntries == 0 {
		c.CachedEntries = 512
	}
	if c.free == nil {
		c.free = freeSpace
	}
}

// Validate reports what makes no sense. Zero values are defaults and fine.
func (c Config) Validate() error {
	var errs []error
	if c.Dir == "" {
		errs = append(errs, errors.New("disk: no data folder given"))
	}
	if c.LowAbove > 0 && c.LowAbove < c.LowBelow {
		errs = append(errs, fmt.Errorf("disk: low space ends at %d bytes, below %d where it begins", c.LowAbove, c.LowBelow))
	}
	if c.Check < 0 || c.CachedEntries < 0 {
		errs = append(errs, fmt.Errorf("disk: negative: check %v, cached entries %d", c.Check, c.CachedEntries))
	}
	return errors.Join(errs...)
}
