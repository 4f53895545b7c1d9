package disk

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// space is what is known of the disk's free bytes.
type space struct {
	free    atomic.Int64
	low     atomic.Bool
	ballast struct { // the file, not the number: one hand at a time
		sync.Mutex
		gone bool
	}
}

// freeSpace returns the bytes that an unprivileged process may still write.
func freeSpace(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return int64(min(uint64(st.Bavail)*uint64(st.Bsize), 1<<62)), nil
}

// Run watches the free space until ctx ends.
func (f *Folder) Run(ctx context.Context) error {
	t := time.NewTicker(f.cfg.Check)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			f.checkSpace()
			f.fillBallast()
		}
	}
}

// LowSpace reports whether the disk is so full that this node should not lead.
func (f *Folder) LowSpace() bool { return f.space.low.Load() }

// FreeSpace returns the bytes that were free when they were last looked at.
func (f *Folder) FreeSpace() int64 { return f.space.free.Load() }

func (f *Folder) checkSpace() {
	free, err := f.cfg.free(f.cfg.Dir)
	if err != nil {
		f.log.Warn("free space cannot be read", "err", err)
		return
	}
	f.space.free.Store(free)
	switch low := f.space.low.Load(); {
	case !low && free < f.cfg.LowBelow:
		f.space.low.Store(true)
		f.log.Warn("little space is left on the disk; this node gives leadership up until there is more", "free", free, "want", f.cfg.LowAbove)
	case low && free >= f.cfg.LowAbove:
		f.space.low.Store(false)
		f.log.Info("there is space on the disk again", "free", free)
	}
}

// reserved reports whether what is left is for terms and votes only.
func (f *Folder) reserved() bool {
	if f.cfg.Reserve == 0 {
		return false
	}
	free, err := f.cfg.free(f.cfg.Dir)
	return err == nil && free < f.cfg.Reserve
}

// fillBallast writes the ballast where it is missing and there is room for it twice.
func (f *Folder) fillBallast() {
	f.space.ballast.Lock()
	defer f.space.ballast.Unlock()
	if st, err := os.Stat(f.path(ballastFile)); err == nil && st.Size() == f.cfg.Ballast || f.cfg.Ballast == 0 {
		return
	}
	if f.space.free.Load() < f.cfg.Reserve+2*f.cfg.Ballast {
		return
	}
	if err := writeBallast(f.path(ballastFile), f.cfg.Ballast); err != nil {
		f.log.Warn("ballast cannot be written", "err", err)
		_ = os.Remove(f.path(ballastFile))
		return
	}
	if f.space.ballast.gone {
		f.space.ballast.gone = false
		f.log.Info("ballast is in place again")
	}
}

// writeBallast writes real blocks: a hole would give nothing back.
func writeBallast(path string, size int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	page := make([]byte, min(size, mib))
	for i := range page {
		page[i] = byte(i*7 + 1)
	}
	for left := size; left > 0 && err == nil; left -= int64(len(page)) {
		_, err = file.Write(page[:min(left, int64(len(page)))])
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// giveUpBallast makes room. It reports whether there was any to be made.
func (f *Folder) giveUpBallast() bool {
	f.space.ballast.Lock()
	defer f.space.ballast.Unlock()
	if err := os.Remove(f.path(ballastFile)); err != nil {
		return false
	}
	f.space.ballast.gone = true
	f.log.Error("the disk is full; the ballast was given up so that raft can write its term", "bytes", f.cfg.Ballast)
	return true
}
