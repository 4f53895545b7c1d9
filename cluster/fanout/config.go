package fanout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

// Owner is the table of copies of this node (cluster/owner), as far as its own ingest
// writes them. The methods are called with the lock of a slot held: they must not wait
// and must not call back.
type Owner interface {
	// OpenLocal opens copies that are empty.
	OpenLocal(l copywire.SlotLife, tenure uint64, partitions []indexer.PartitionID)
	// BeginLocal closes a copy, which is about to be filled. False: it may not be.
	BeginLocal(l copywire.SlotLife, tenure uint64, p indexer.PartitionID) bool
	// EndLocal opens a copy whose content is applied up to sequence. False: it stays
	// closed, since something of the content was refused or somebody else writes it.
	EndLocal(l copywire.SlotLife, tenure uint64, p indexer.PartitionID, sequence uint64) bool
	// CloseLocal closes copies.
	CloseLocal(l copywire.SlotLife, tenure uint64, partitions []indexer.PartitionID)
	// CarryLocal makes copies this node's to write that have these labels, and returns
	// them. Older tenures are fenced off already.
	CarryLocal(l copywire.SlotLife, tenure uint64, labels []copywire.Label) []indexer.PartitionID
	// NoteLocal is called before a frame is written to an open copy. False: it is closed.
	NoteLocal(h indexer.Header) bool
	// CursorLocal keeps how far the stream of a slot has come.
	CursorLocal(c copywire.Cursor)
}

// Links is what the fan-out needs of link.Hub.
type Links interface {
	Send(s link.Session, payload []byte) (uint64, error)
	Call(ctx context.Context, peer, method string, req []byte) ([]byte, error)
}

// ErrConfig: a fan-out cannot be made from this configuration.
var ErrConfig = errors.New("invalid fan-out configuration")

// Config of a Fanout. Name, Index, Owner, Links, Report and Renew must be set; zero
// means the default elsewhere.
type Config struct {
	Name  string // of this node
	Boot  uint64 // of this process; 0 = what the log says of this node
	Index indexer.Index
	Owner Owner
	Links Links

	// Report proposes that this node has filled the targets of a job. An error is tried
	// again until the job no longer waits for this node.
	Report func(ctx context.Context, r state.Report) error
	// Renew asks ingest to begin a new life of a slot: a part of its content is nowhere
	// any more. It must not wait. It is called again while the life goes on.
	Renew func(g indexer.GroupID, s indexer.Slot, life uint64)
	// Fresh says whether no other process can have written to a life, so that copies
	// nobody has written to are empty. Nothing is sent for others: ingest begins new ones.
	// nil = the life is not older than the tenure under which it is read.
	Fresh func(a state.Assignment, r catalog.Rank) bool

	// HoldBytes bounds the frames that wait for one fill, in bytes; 0 = 32 MiB. Beyond it
	// the fill begins again. HoldTotal bounds them for all fills together; 0 = 256 MiB.
	HoldBytes, HoldTotal int64
	// Workers is how many fills run at the same time; 0 = 4.
	Workers int
	// Throttle bounds the content that fills send, in bytes a second; 0 = no bound. The
	// frames that came meanwhile are not bounded by it.
	Throttle int64
	// FillWindow is how much of one fill may be on its way unacknowledged, in bytes; 0 =
	// 2 MiB: little beside the window of a link (8 MiB), which other frames need.
	FillWindow int64
	// FillFrame bounds one frame of a fill, in bytes; 0 = 256 KiB.
	FillFrame int
	// DumpBytes bounds the dump that one fill fetches; 0 = 512 MiB.
	DumpBytes int
	// CallTimeout bounds one call of a fill; 0 = 10 s.
	CallTimeout time.Duration
	// Linger is for how long an owner that the log has replaced still gets frames and is
	// waited for; 0 = 6 s. It may be asked, and may answer, until its lease is over (T_serve,
	// 5 s). When it is closed earlier, its answers name the slots as unreadable.
	Linger time.Duration
	// RetryMin and RetryMax bound the pause before a fill that failed is tried again; 0 =
	// 50 ms and 2 s.
	RetryMin, RetryMax time.Duration
	// RenewEvery is how often Renew is asked for again; 0 = 5 s.
	RenewEvery time.Duration
	// CloseTimeout bounds the wait of a writer's Close for the peers; 0 = 1 s.
	CloseTimeout time.Duration
	Logger       *slog.Logger // nil = discard

	broken mutant // for tests
}

// mutant switches off a rule, to see that the tests find it missing.
type mutant struct {
	noHold     bool // frames that come during a fill are not kept for it
	uncounted  bool // Applied does not wait for targets of jobs
	noClear    bool // a fill is added to what the copy has
	sendClosed bool // frames go to copies that are not open
	early      bool // report when filled, not when that is acknowledged
	keepOpen   bool // what was open in one session of a peer is open in the next
	openFirst  bool // a fill opens the copy before the held frames have been sent
	earlyDump  bool // this node's copies are dumped before their frames are applied
	beside     bool // this node's copies are filled beside frames of the loop's writer
	localLate  bool // Applied does not wait for the local index
	anyLabel   bool // a fill takes what a peer has, as current or not
}

func (c Config) withDefaults() Config {
	bytes := func(n *int64, v int64) {
		if *n == 0 {
			*n = v
		}
	}
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	bytes(&c.HoldBytes, 32<<20)
	bytes(&c.HoldTotal, 256<<20)
	bytes(&c.FillWindow, 2<<20)
	number(&c.Workers, 4)
	number(&c.FillFrame, 256<<10)
	number(&c.DumpBytes, 512<<20)
	set(&c.CallTimeout, 10*time.Second)
	set(&c.Linger, 6*time.Second)
	set(&c.RetryMin, 50*time.Millisecond)
	set(&c.RetryMax, 2*time.Second)
	set(&c.RenewEvery, 5*time.Second)
	set(&c.CloseTimeout, time.Second)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Fresh == nil {
		c.Fresh = func(a state.Assignment, r catalog.Rank) bool { return r.Life >= a.Tenure }
	}
	return c
}

// Validate reports every field that cannot be used.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...)))
	}
	if c.Name == "" {
		bad("no name")
	}
	if c.Index == nil || c.Owner == nil || c.Links == nil || c.Report == nil || c.Renew == nil {
		bad("Index, Owner, Links, Report and Renew are required")
	}
	if c.HoldBytes < 0 || c.HoldTotal < 0 || c.Workers < 0 || c.Throttle < 0 || c.FillWindow < 0 || c.FillFrame < 0 || c.DumpBytes < 0 {
		bad("negative limit")
	}
	if c.CallTimeout < 0 || c.Linger < 0 || c.RetryMin < 0 || c.RetryMax < 0 || c.RenewEvery < 0 || c.CloseTimeout < 0 {
		bad("negative time")
	}
	if d := c.withDefaults(); d.RetryMin > d.RetryMax {
		bad("RetryMin %v above RetryMax %v", d.RetryMin, d.RetryMax)
	}
	if c.FillFrame != 0 && c.FillFrame < 1024 {
		bad("FillFrame %d, at least 1024", c.FillFrame)
	}
	return errors.Join(errs...)
}
