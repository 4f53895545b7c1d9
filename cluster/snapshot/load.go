package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

func groupOf(w uint64) indexer.GroupID { return indexer.GroupID(uint32(w)) }
func slotOf(w uint64) indexer.Slot     { return indexer.Slot(w >> 32) }

// fillWords is how long a frame may be that rebuilds a copy: 512 KiB.
const fillWords = 1 << 16

// Loaded is the content of a file, which the index has, and of which nobody else knows
// yet. The zero value is that of a node without a file.
type Loaded struct {
	Header Header
	Slots  []Kept
	Result Result
	index  indexer.Index
	writer indexer.Writer
	broken error // of the index
	b      indexer.FrameBuilder
}

// Kept are the copies of one slot.
type Kept struct {
	copywire.SlotLife
	Cursor copywire.Cursor
	Labels []copywire.Label
	Empty  map[indexer.PartitionID]bool // copies without content
}

// Load reads the file of the folder, if there is one, into the index: h says whose it has
// to be, and with how many partitions (0 = not known yet). A file that cannot be used is moved aside and said so; the index has nothing of it
// then. The error is that of ctx or of the index. No query may be answered from the slots
// before they were opened by somebody else.
func Load(ctx context.Context, dir string, h Header, index indexer.Index, log *slog.Logger) (*Loaded, error) {
	path := filepath.Join(dir, FileName)
	_ = os.Remove(filepath.Join(dir, tmpName)) // of a process that was ended in the middle
	l := &Loaded{index: index}
	start := time.Now()
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err == nil {
		defer file.Close()
		err = l.read(ctx, file, h)
	}
	if err == nil {
		l.Result.Path, l.Result.Took = path, time.Since(start)
		if st, serr := file.Stat(); serr == nil {
			l.Result.Bytes = st.Size()
		}
		return l, nil
	}
	if cerr := l.discard(ctx); cerr != nil {
		return nil, fmt.Errorf("load %s: %w", path, errors.Join(err, cerr))
	}
	if other := errors.Join(ctx.Err(), l.broken); other != nil {
		return nil, fmt.Errorf("load %s: %w", path, other)
	}
	aside := filepath.Join(dir, badName)
	if rerr := os.Rename(path, aside); rerr != nil {
		aside = "nowhere: " + rerr.Error()
	}
	log.Error("the snapshot of this node's copies cannot be used; they are filled from the other nodes", "file", path, "moved_to", aside, "error", err)
	return &Loaded{index: index}, nil
}

// read reads the file twice: the first time it is only checked, so that nothing of a bad
// one comes into the index.
func (l *Loaded) read(ctx context.Context, file *os.File, want Header) error {
	head := func(h Header) error {
		if h.ClusterID != want.ClusterID || h.ServerID != want.ServerID || want.Partitions != 0 && h.Partitions != want.Partitions {
			return fmt.Errorf("%w: it is of server %q in cluster %q with %d partitions, this is server %q in cluster %q",
				ErrForeign, h.ServerID, h.ClusterID, h.Partitions, want.ServerID, want.ClusterID)
		}
		l.Header = h
		return nil
	}
	if err := Read(file, head, func(Slot) error { return ctx.Err() }); err != nil {
		return err
	}
	if _, err := file.Seek(0, 0); err != nil {
		return err
	}
	l.writer = l.index.NewWriter()
	seen := map[copywire.SlotLife]bool{}
	if err := Read(file, head, func(s Slot) error {
		at := copywire.SlotLife{Group: s.Group, Slot: s.Slot}
		if seen[at] || s.Life == 0 {
			return fmt.Errorf("%w: slot %d of group %d comes twice, or has no life", ErrDamaged, s.Slot, s.Group)
		}
		seen[at] = true
		if err := ctx.Err(); err != nil {
			return err
		}
		return l.slot(s)
	}); err != nil {
		return err
	}
	l.broken = l.writer.Flush(ctx)
	return l.broken
}

// slot rebuilds the copies of a slot.
func (l *Loaded) slot(s Slot) error {
	copies, err := copywire.DecodeCopies(s.Dump)
	if err != nil {
		return fmt.Errorf("%w: %v: %w", ErrDamaged, s.SlotLife, err)
	}
	k := Kept{SlotLife: s.SlotLife, Cursor: s.Cursor, Empty: map[indexer.PartitionID]bool{}}
	l.Slots = append(l.Slots, k) // before its first frame: a bad file is undone slot by slot
	seen := map[indexer.PartitionID]bool{}
	for _, c := range copies {
		if uint32(c.Partition) >= l.Header.Partitions || seen[c.Partition] || !c.Open {
			return fmt.Errorf("%w: partition %d of %v", ErrDamaged, c.Partition, s.SlotLife)
		}
		seen[c.Partition] = true
		k.Labels = append(k.Labels, copywire.Label{Partition: c.Partition, Tenure: c.Tenure, Sequence: c.Sequence})
		if len(c.Stretches) == 0 {
			k.Empty[c.Partition] = true
			continue
		}
		h := indexer.Header{Group: s.Group, Partition: c.Partition, Slot: s.Slot, Life: s.Life, Tenure: c.Tenure, Sequence: c.Sequence}
		if err := copywire.Rebuild(&l.b, h, c.Stretches, fillWords, func(_, _ bool, f indexer.Frame) error {
			l.broken = l.writer.Write(f)
			return l.broken
		}); err != nil {
			return fmt.Errorf("%w: partition %d of %v: %w", ErrDamaged, c.Partition, s.SlotLife, err)
		}
		l.Result.Blocks += blocks(c.Stretches)
	}
	if len(copies) != s.Copies {
		return fmt.Errorf("%w: %d of %d copies of %v", ErrDamaged, len(copies), s.Copies, s.SlotLife)
	}
	l.Slots[len(l.Slots)-1] = k
	l.Result.Slots++
	l.Result.Copies += len(copies)
	return nil
}

// discard takes everything out of the index again.
func (l *Loaded) discard(ctx context.Context) error {
	if l.writer == nil {
		return nil
	}
	err := l.writer.Flush(ctx)
	l.writer.Close()
	l.writer = nil
	for _, k := range l.Slots {
		err = errors.Join(err, l.index.Purge(ctx, k.Group, k.Slot))
	}
	l.Slots = nil
	return err
}

// Fate says what is to become of a slot: whether its life is still the slot's, and which
// of its partitions this node has to hold.
type Fate func(copywire.SlotLife) (alive bool, held func(indexer.PartitionID) bool)

// Keep gives what is still of use to enter (owner.Owner.Keep), which says whether it took
// it, and drops the rest from the index. It may be called once, with what the log says
// when this process is a member: what ends later is purged like anything else. It returns
// how many copies were kept.
func (l *Loaded) Keep(ctx context.Context, fate Fate, enter func(Kept) bool) (int, error) {
	if l.writer == nil {
		return 0, nil
	}
	var over []Kept
	n := 0
	for _, k := range l.Slots {
		alive, held := fate(k.SlotLife)
		if !alive {
			over = append(over, k)
			continue
		}
		labels := k.Labels[:0]
		for _, x := range k.Labels {
			if held(x.Partition) {
				labels = append(labels, x)
				continue
			}
			if k.Empty[x.Partition] {
				continue
			}
			l.b.Reset(indexer.Header{Group: k.Group, Partition: x.Partition, Slot: k.Slot, Life: k.Life, Tenure: x.Tenure, Sequence: x.Sequence})
			l.b.Clear(indexer.AllTiers)
			if err := l.writer.Write(l.b.Frame()); err != nil {
				return n, fmt.Errorf("drop partition %d of %v: %w", x.Partition, k.SlotLife, err)
			}
		}
		k.Labels = labels
		if !enter(k) {
			over = append(over, k)
			continue
		}
		n += len(labels)
	}
	err := l.writer.Flush(ctx)
	l.writer.Close()
	l.writer, l.Slots = nil, nil
	for _, k := range over {
		err = errors.Join(err, l.index.Purge(ctx, k.Group, k.Slot))
	}
	return n, err
}

// Close gives up what Keep was not called for; the index is to be closed then.
func (l *Loaded) Close() {
	if l.writer != nil {
		l.writer.Close()
		l.writer = nil
	}
}
