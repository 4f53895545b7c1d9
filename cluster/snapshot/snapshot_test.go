package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
)

var (
	quiet  = slog.New(slog.DiscardHandler)
	header = Header{ClusterID: "cluster", ServerID: "server-1", Partitions: 8, Index: 77, Time: 99}
)

func openTree(tb testing.TB) indexer.Index {
	tb.Helper()
	x, err := tree.Open(tree.Config{Lanes: 1, Reserve: 256 << 20, OnFault: func(h indexer.Header, err error) { tb.Errorf("frame refused: %+v: %v", h, err) }})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := x.Close(); err != nil {
			tb.Error(err)
		}
	})
	return x
}

// stretches are n blocks in runs on a common path.
func stretches(rng *rand.Rand, n int) (out []indexer.Stretch) {
	path := make([]uint64, 4)
	for i := range path {
		path[i] = rng.Uint64()
	}
	for run := indexer.Run(1); n > 0; run++ {
		k := min(n, 1+rng.IntN(6))
		st := indexer.Stretch{Run: run, Tiers: 1, Locals: make([]uint64, k), Engines: make([]uint64, k)}
		if run > 1 {
			st.Path = path[:rng.IntN(4)]
		}
		st.Parent.Root = len(st.Path) == 0
		if !st.Parent.Root {
			st.Parent.Engine = 5
		}
		for i := range k {
			st.Locals[i], st.Engines[i] = rng.Uint64(), rng.Uint64()
		}
		out, n = append(out, st), n-k
	}
	return out
}

// testSlots are slots with copies full, empty and missing.
func testSlots(seed uint64, slots, blocks int) (out []Slot) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for i := range slots {
		s := Slot{SlotLife: copywire.SlotLife{Group: indexer.GroupID(1 + i%2), Slot: indexer.Slot(10 + i), Life: uint64(100 + i)}}
		if i%3 != 2 {
			s.Cursor = copywire.Cursor{SlotLife: s.SlotLife, Tenure: uint64(50 + i), Sequence: rng.Uint64N(1000), Digest: rng.Uint64()}
		}
		for p := range header.Partitions {
			c := copywire.Copy{Partition: indexer.PartitionID(p), Open: true, Tenure: uint64(50 + i), Sequence: rng.Uint64N(1000)}
			switch p % 3 {
			case 0:
				c.Stretches = stretches(rng, blocks)
			case 1:
				continue
			}
			s.Dump = copywire.AppendCopy(s.Dump, c)
			s.Copies++
		}
		out = append(out, s)
	}
	return out
}

func each(slots []Slot) func(func(Slot) error) error {
	return func(emit func(Slot) error) error {
		for _, s := range slots {
			if err := emit(s); err != nil {
				return err
			}
		}
		return nil
	}
}

func file(tb testing.TB, h Header, slots []Slot) []byte {
	tb.Helper()
	var b bytes.Buffer
	var res Result
	if err := write(context.Background(), &b, h, &res, each(slots)); err != nil {
		tb.Fatal(err)
	}
	if res.Bytes != int64(b.Len()) || res.Slots != len(slots) {
		tb.Fatalf("%+v for %d bytes, %d slots", res, b.Len(), len(slots))
	}
	return b.Bytes()
}

// readAll returns what Read gives.
func readAll(raw []byte) (h Header, slots []Slot, err error) {
	err = Read(bytes.NewReader(raw), func(x Header) error { h = x; return nil }, func(s Slot) error {
		s.Dump = bytes.Clone(s.Dump)
		slots = append(slots, s)
		return nil
	})
	return h, slots, err
}

func equal(a, b []Slot) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].SlotLife != b[i].SlotLife || a[i].Cursor != b[i].Cursor || a[i].Copies != b[i].Copies || !bytes.Equal(a[i].Dump, b[i].Dump) {
			return false
		}
	}
	return true
}

func TestReadWhatWasWritten(t *testing.T) {
	for _, n := range []int{0, 1, 5} {
		slots := testSlots(uint64(n), n, 20)
		h, got, err := readAll(file(t, header, slots))
		if err != nil || h != header || !equal(got, slots) {
			t.Errorf("%d slots: %+v, %d slots, %v", n, h, len(got), err)
		}
	}
}

// A file in which one bit has changed, or that ends early, or that goes on, is refused.
func TestEveryByteCounts(t *testing.T) {
	raw := file(t, header, testSlots(1, 2, 3))
	refused := func(what string, b []byte) {
		t.Helper()
		if _, _, err := readAll(b); !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrVersion) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for i := range raw {
		for _, bit := range []byte{1, 0x80, 0xff} {
			bad := bytes.Clone(raw)
			bad[i] ^= bit
			refused(fmt.Sprintf("byte %d of %d xor %#x", i, len(raw), bit), bad)
		}
		refused(fmt.Sprintf("cut at %d", i), raw[:i])
	}
	refused("one more byte", append(bytes.Clone(raw), 0))
	refused("twice", append(bytes.Clone(raw), raw...))
	one, two := testSlots(1, 1, 3), testSlots(1, 2, 3)
	a, b := file(t, header, one), file(t, header, two)
	head := len(file(t, header, nil)) - footBytes - word
	first := b[head : len(a)-footBytes-word]
	foot := b[len(b)-footBytes-word:]
	second := b[len(a)-footBytes-word : len(b)-len(foot)]
	refused("records in another order", slicesOf(b[:head], second, first, foot))
	refused("a record twice", slicesOf(b[:head], first, first, foot))
	refused("a record less", slicesOf(b[:head], first, foot))
	if _, _, err := readAll(slicesOf(b[:head], first, second, foot)); err != nil {
		t.Fatal(err)
	}
}

func slicesOf(parts ...[]byte) (out []byte) {
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func FuzzRead(f *testing.F) {
	f.Add(file(f, header, testSlots(1, 2, 3)))
	f.Add(file(f, header, nil))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, raw []byte) {
		h, slots, err := readAll(raw)
		if err != nil {
			return
		}
		if again := file(t, h, slots); !bytes.Equal(again, raw) {
			t.Errorf("read without an error, and written again it differs: %x, %x", raw, again)
		}
	})
}

// dumpOf is what an index has of a copy, block by block.
func dumpOf(tb testing.TB, x indexer.Index, l copywire.SlotLife, p indexer.PartitionID) string {
	tb.Helper()
	var out []string
	if err := x.Dump(context.Background(), l.Group, p, l.Slot, func(s indexer.Stretch) error {
		out = appendBlocks(out, &s)
		return nil
	}); err != nil {
		tb.Fatal(err)
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

func appendBlocks(dst []string, s *indexer.Stretch) []string {
	for i := range s.Locals {
		dst = append(dst, fmt.Sprintf("%d+%d %v %x %x %x\n", s.Run, int(s.Start)+i, s.Tiers, s.Anchor, slices.Concat(s.Path, s.Locals[:i+1]), s.Engines[i]))
	}
	return dst
}

func wanted(tb testing.TB, s Slot, p indexer.PartitionID) string {
	tb.Helper()
	copies, err := copywire.DecodeCopies(s.Dump)
	if err != nil {
		tb.Fatal(err)
	}
	var out []string
	for _, c := range copies {
		for i := range c.Stretches {
			if c.Partition == p {
				out = appendBlocks(out, &c.Stretches[i])
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, "")
}

func saveTo(t *testing.T, dir string, slots []Slot) Result {
	t.Helper()
	res, err := Save(context.Background(), dir, header, each(slots))
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// What is loaded is in the index; Keep drops what the log does not know any more.
func TestLoadAndKeep(t *testing.T) {
	dir, slots, x := t.TempDir(), testSlots(3, 4, 20), openTree(t)
	if res := saveTo(t, dir, slots); res.Slots != 4 || res.Path != filepath.Join(dir, FileName) {
		t.Errorf("%+v", res)
	}
	if err := os.WriteFile(filepath.Join(dir, tmpName), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Load(context.Background(), dir, header, x, quiet)
	if err != nil || len(l.Slots) != 4 || l.Header != header {
		t.Fatalf("%+v, %v", l, err)
	}
	if l.Result.Blocks != 4*3*20 {
		t.Errorf("%d blocks", l.Result.Blocks)
	}
	for _, s := range slots {
		for p := range indexer.PartitionID(header.Partitions) {
			if got, want := dumpOf(t, x, s.SlotLife, p), wanted(t, s, p); got != want {
				t.Fatalf("%v, partition %d: the index has\n%s, want\n%s", s.SlotLife, p, got, want)
			}
		}
	}
	// Slot 0 lives, 1 is over, of 2 partition 3 is not this node's, 3 is refused by the table.
	var kept []Kept
	n, err := l.Keep(context.Background(), func(at copywire.SlotLife) (bool, func(indexer.PartitionID) bool) {
		return at != slots[1].SlotLife, func(p indexer.PartitionID) bool { return at != slots[2].SlotLife || p != 3 }
	}, func(k Kept) bool {
		if k.SlotLife == slots[3].SlotLife {
			return false
		}
		kept = append(kept, k)
		return true
	})
	if err != nil || n != slots[0].Copies+slots[2].Copies-1 || len(kept) != 2 || kept[0].Cursor != slots[0].Cursor || kept[1].SlotLife != slots[2].SlotLife {
		t.Fatalf("%d copies of %+v, %v", n, kept, err)
	}
	for i, s := range slots {
		for p := range indexer.PartitionID(header.Partitions) {
			want := wanted(t, s, p)
			if i == 1 || i == 3 || i == 2 && p == 3 {
				want = ""
			}
			if got := dumpOf(t, x, s.SlotLife, p); got != want {
				t.Errorf("slot %d, partition %d: after Keep the index has\n%s, want\n%s", i, p, got, want)
			}
		}
	}
	for _, name := range []string{tmpName, badName} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A file that cannot be used leaves nothing in the index, is moved aside and said so.
func TestLoadRefuses(t *testing.T) {
	good := file(t, header, testSlots(5, 2, 9))
	flipped, later := bytes.Clone(good), bytes.Clone(good)
	flipped[len(flipped)-200] ^= 1
	later[len(magic)]++
	other, alien := header, header
	other.ServerID, alien.ClusterID = "server-2", "elsewhere"
	twice := testSlots(5, 2, 9)
	twice[1] = twice[0]
	notDump := testSlots(5, 2, 9)
	notDump[1].Dump = bytes.Clone(notDump[1].Dump)
	copy(notDump[1].Dump[5*word:], "\xff\xff\xff\xff\xff\xff\xff\xff")
	outside := testSlots(5, 2, 9)
	outside[1].Dump = copywire.AppendCopy(outside[1].Dump, copywire.Copy{Partition: 8, Open: true})
	miscounted := testSlots(5, 2, 9)
	miscounted[1].Copies++
	for what, raw := range map[string][]byte{
		"changed": flipped, "of a later version": later, "cut off": good[:len(good)-9], "empty": {}, "of another node": file(t, other, nil),
		"of another cluster": file(t, alien, testSlots(5, 1, 2)), "a slot twice": file(t, header, twice), "no dump": file(t, header, notDump),
		"a partition too many": file(t, header, outside), "wrong count of copies": file(t, header, miscounted), "something else": []byte(strings.Repeat("hello ", 99)),
	} {
		t.Run(what, func(t *testing.T) {
			dir, x := t.TempDir(), openTree(t)
			path := filepath.Join(dir, FileName)
			if err := os.WriteFile(path, raw, 0o600); err != nil {
				t.Fatal(err)
			}
			var said bytes.Buffer
			l, err := Load(context.Background(), dir, header, x, slog.New(slog.NewTextHandler(&said, nil)))
			if err != nil || len(l.Slots) != 0 {
				t.Fatalf("%+v, %v", l, err)
			}
			if n, err := l.Keep(context.Background(), nil, nil); n != 0 || err != nil {
				t.Errorf("kept %d, %v", n, err)
			}
			for _, s := range testSlots(5, 2, 9) {
				for p := range indexer.PartitionID(header.Partitions) {
					if got := dumpOf(t, x, s.SlotLife, p); got != "" {
						t.Fatalf("the index has %s", got)
					}
				}
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file is still there: %v", err)
			}
			if moved, err := os.ReadFile(filepath.Join(dir, badName)); err != nil || !bytes.Equal(moved, raw) {
				t.Errorf("not moved aside: %v", err)
			}
			if !strings.Contains(said.String(), "cannot be used") || !strings.Contains(said.String(), path) {
				t.Errorf("said: %s", said.String())
			}
		})
	}
}

// A snapshot that fails leaves the one before as it is.
func TestSaveFails(t *testing.T) {
	dir, slots := t.TempDir(), testSlots(3, 2, 5)
	saveTo(t, dir, slots)
	before, err := os.ReadFile(filepath.Join(dir, FileName))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	ctx, cancel := context.WithCancel(context.Background())
	for want, fn := range map[error]func(func(Slot) error) error{
		broken: func(emit func(Slot) error) error { return errors.Join(emit(slots[0]), broken) },
		context.Canceled: func(emit func(Slot) error) error {
			err := emit(slots[0])
			cancel()
			return errors.Join(err, emit(slots[1]))
		},
	} {
		if _, err := Save(ctx, dir, header, fn); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if after, err := os.ReadFile(filepath.Join(dir, FileName)); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the file before has changed: %v", err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	if _, err := Save(context.Background(), filepath.Join(dir, "none"), header, each(nil)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a folder: %v", err)
	}
	var full Result
	if err := write(context.Background(), fullDisk{}, header, &full, each(slots)); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("on a full disk: %v", err)
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, io.ErrShortWrite }
