package snapshot

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// Names of files in the data folder.
const (
	FileName = "copies.snap"
	tmpName  = "copies.tmp"
	badName  = "copies.bad"
)

// Result says what was written.
type Result struct {
	Path          string
	Bytes         int64
	Slots, Copies int
	Blocks        uint64 // held, once for every copy that has them
	Skipped       int    // slots that are too large
	Took          time.Duration
}

// Save writes one file. Each calls emit for every slot; the record is written when emit
// returns, which keeps nothing of it. The file is there as a whole or not at all. Errors
// are those of the disk, of ctx and of each.
func Save(ctx context.Context, dir string, h Header, each func(emit func(Slot) error) error) (Result, error) {
	start := time.Now()
	res := Result{Path: filepath.Join(dir, FileName)}
	tmp := filepath.Join(dir, tmpName)
	if err := save(ctx, tmp, h, &res, each); err != nil {
		_ = os.Remove(tmp)
		return res, fmt.Errorf("snapshot %s: %w", res.Path, err)
	}
	if err := errors.Join(os.Rename(tmp, res.Path), syncDir(dir)); err != nil {
		return res, fmt.Errorf("snapshot %s: %w", res.Path, err)
	}
	res.Took = time.Since(start)
	return res, nil
}

func save(ctx context.Context, path string, h Header, res *Result, each func(emit func(Slot) error) error) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriterSize(file, 1<<20)
	if err := write(ctx, w, h, res, each); err != nil {
		return err
	}
	return errors.Join(w.Flush(), file.Sync())
}

// write writes a whole file to w.
func write(ctx context.Context, w io.Writer, h Header, res *Result, each func(emit func(Slot) error) error) error {
	head, err := appendHead(nil, h)
	if err != nil {
		return err
	}
	put := func(b []byte) error {
		n, err := w.Write(b)
		res.Bytes += int64(n)
		return err
	}
	if err := put(head); err != nil {
		return err
	}
	first := res.Bytes
	var buf []byte
	if err := each(func(s Slot) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(s.Dump)%word != 0 || len(s.Dump) > MaxSlotBytes {
			return fmt.Errorf("dump of %v has %d bytes", s.SlotLife, len(s.Dump))
		}
		// In one piece for the checksum: a slot has to fit into memory anyway.
		buf = append(appendRecordHead(buf[:0], s), s.Dump...)
		buf = le.AppendUint64(buf, sum(buf, res.Bytes))
		res.Slots++
		res.Copies += s.Copies
		return put(buf)
	}); err != nil {
		return err
	}
	foot := appendFoot(nil, uint64(res.Slots), uint64(res.Copies), res.Bytes-first)
	return put(le.AppendUint64(foot, sum(foot, res.Bytes)))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// blocks counts what stretches hold.
func blocks(all []indexer.Stretch) (n uint64) {
	for i := range all {
		n += uint64(len(all[i].Locals))
	}
	return n
}
