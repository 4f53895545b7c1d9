package owner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/link"
)

// Errors, wrapped with operation and subject.
var (
	// ErrConfig: an owner cannot be made from this configuration.
	ErrConfig = errors.New("invalid owner configuration")
	// ErrBusy: as many dumps are kept as may be; ask again later.
	ErrBusy = errors.New("too many dumps")
	// ErrNoDump: no such dump, or not any more.
	ErrNoDump = errors.New("no such dump")
	// ErrTenure: the slot is read under a newer tenure.
	ErrTenure = errors.New("older tenure")
	// ErrLife: the slot has another life here, or this one is retired.
	ErrLife = errors.New("not the life of the slot")
	// ErrClosed: the owner does not run.
	ErrClosed = errors.New("owner is closed")
)

// Errors are the sentinels of calls that are served here, by code, for
// link.Config.Errors.
func Errors() map[string]error {
	return map[string]error{
		"owner-busy": ErrBusy, "owner-nodump": ErrNoDump, "owner-tenure": ErrTenure, "owner-life": ErrLife, "owner-closed": ErrClosed,
	}
}

// Links is what an owner needs of link.Hub.
type Links interface {
	Ack(s link.Session, n uint64)
	Current(s link.Session) bool
}

// Config of an Owner. Name, Index, Links and Broken must be set; zero means the
// default elsewhere.
type Config struct {
	Name  string // of this node
	Index indexer.Index
	Links Links
	// Broken tells the ingest node of a slot that its copy had to be closed here and is
	// to be filled again: by a call of copywire.MethodRefill, or, when peer is Name, in
	// this process. It is called again until it returns nil or the session of peer is
	// over.
	Broken func(ctx context.Context, peer string, h indexer.Header) error
	// FlushLocal returns when every frame of the slot for which NoteLocal said true is
	// applied; nil = there are no local copies.
	FlushLocal func(ctx context.Context, g indexer.GroupID, s indexer.Slot) error
	// MaxDumps is how many dumps are kept for those who asked for them; 0 = 64.
	// DumpBytes is how many bytes they have together; 0 = 256 MiB. What exceeds either is
	// answered ErrBusy.
	MaxDumps  int
	DumpBytes int64
	// DumpTTL is how long a dump is kept after it was last asked for; 0 = 30 s.
	DumpTTL time.Duration
	// Checkpoint is how many bytes of payload of one session are taken until what they
	// said is waited for and acknowledged; 0 = 1 MiB, an eighth of a link's window, so
	// that the sender does not run dry meanwhile.
	Checkpoint int
	Logger     *slog.Logger // nil = slog.Default()

	broken mutant // for tests
}

// mutant switches off a rule, to see that the tests find it missing.
type mutant struct {
	closedFrame  bool // apply frames on closed copies
	oldTenure    bool // take frames of older tenures
	earlyAck     bool // acknowledge before frames are applied
	lateDump     bool // dump before what came ahead of the fence is applied
	keepCopies   bool // a new session of a peer leaves the copies of the old one open
	earlyResume  bool // readable again as soon as the link is, not when all is applied
	noMark       bool // copies filled during a query count as readable for it
	earlyOpen    bool // open a filled copy before its content is applied
	openFaulty   bool // open a filled copy although a frame of the fill was refused
	reopen       bool // let Open open what has content
	adoptNoWait  bool // adopt returns before frames of the older tenure are applied
	fencedOpen   bool // copies of a tenure that is fenced off can be read
	purgeNoWait  bool // purge a slot while frames of it may be on their way to the index
	forgetBroken bool // tell of a broken copy once, even if that fails
	// a cursor holds for copies, too, that its sender has not filled since another session
	cursorForKept bool
}

func (c Config) withDefaults() Config {
	if c.MaxDumps == 0 {
		c.MaxDumps = 64
	}
	if c.DumpBytes == 0 {
		c.DumpBytes = 256 << 20
	}
	if c.DumpTTL == 0 {
		c.DumpTTL = 30 * time.Second
	}
	if c.Checkpoint == 0 {
		c.Checkpoint = 1 << 20
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	bad := func(cond bool, what string) {
		if cond {
			errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, what))
		}
	}
	bad(c.Name == "", "Name is empty")
	bad(c.Index == nil, "Index is nil")
	bad(c.Links == nil, "Links is nil")
	bad(c.Broken == nil, "Broken is nil")
	bad(c.MaxDumps < 0 || c.DumpBytes < 0 || c.DumpTTL < 0 || c.Checkpoint < 0, "negative limit or time")
	return errors.Join(errs...)
}
