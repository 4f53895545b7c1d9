package memory

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"

	"github.com/kvcluster/kvcluster/cluster/disk"
)

// ErrKilled is what a process gets that was killed.
var ErrKilled = errors.New("process killed")

// keptSnapshots as in package disk.
const keptSnapshots = 2

// Disk is what outlives a process. Its methods may be called from any goroutine.
type Disk struct {
	mu struct {
		sync.Mutex
		content
		synced *content // what a Kill goes back to, while lying; nil: content
		folder *Folder  // of the process that runs; nil: none
		rng    *rand.Rand
		delay  time.Duration
		full   bool
		low    bool
		lying  bool
		stats  Stats
	}
}

// content is what is written.
type content struct {
	id        disk.Identity
	peers     []string
	logs      map[uint64]raft.Log
	low, high uint64
	kv        map[string][]byte
	num       map[string]uint64
	snaps     []snap // newest first
}

type snap struct {
	meta raft.SnapshotMeta
	data []byte
}

func (c *content) clone() *content {
	d := *c
	d.logs, d.kv, d.num = maps.Clone(c.logs), maps.Clone(c.kv), maps.Clone(c.num)
	d.snaps, d.peers = slices.Clone(c.snaps), slices.Clone(c.peers)
	return &d
}

// Stats count what happened to a Disk.
type Stats struct {
	Opened, Killed int
	Writes         int
	Lost, Kept     int // writes under way at a Kill
}

// New returns an empty disk. The seed decides about writes that a Kill interrupts.
func New(serverID string, seed uint64) *Disk {
	d := &Disk{}
	d.mu.content = content{id: disk.Identity{ServerID: serverID}, logs: map[uint64]raft.Log{}, kv: map[string][]byte{}, num: map[string]uint64{}}
	d.mu.rng = rand.New(rand.NewPCG(seed, 1))
	return d
}

// Open gives the disk to a process. It fails with disk.ErrInUse while another has it.
func (d *Disk) Open() (*Folder, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.folder != nil {
		return nil, fmt.Errorf("memory disk %s: %w", d.mu.id.ServerID, disk.ErrInUse)
	}
	f := &Folder{disk: d, dead: make(chan struct{}), turn: make(chan struct{}, 1)}
	d.mu.folder = f
	d.mu.stats.Opened++
	return f, nil
}

// Kill ends the process that has the disk, as a crash of its machine does.
func (d *Disk) Kill() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.folder == nil {
		return
	}
	close(d.mu.folder.dead)
	d.mu.folder = nil
	d.mu.stats.Killed++
	if d.mu.synced != nil {
		d.mu.content, d.mu.synced = *d.mu.synced, nil
	}
}

// SetSyncDelay makes every write take that long.
func (d *Disk) SetSyncDelay(delay time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.delay = delay
}

// SetFull makes entries and snapshots fail with disk.ErrNoSpace. Terms and votes still
// find room, as they do in a Folder with a ballast. A full disk is low too.
func (d *Disk) SetFull(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.full = full
}

// SetLow makes LowSpace true.
func (d *Disk) SetLow(low bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.low = low
}

// SetLying makes a Kill take back everything that is written from now on and not
// followed by Sync.
func (d *Disk) SetLying(lying bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.lying = lying
	if !lying {
		d.mu.synced = nil
	}
}

// Sync makes everything written so far survive on a lying disk.
func (d *Disk) Sync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.synced = nil
}

// Stats returns what has happened so far.
func (d *Disk) Stats() Stats {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.mu.stats
}

// errFull is what a full disk says.
type errFull struct{}

func (errFull) Error() string   { return "memory disk full" }
func (errFull) Unwrap() []error { return []error{disk.ErrNoSpace, syscall.ENOSPC} }
