package contract

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// patience bounds every wait of the suite; nothing that works comes near it.
const patience = 30 * time.Second

// The place that fixed sequences use unless they say otherwise.
const (
	group     indexer.GroupID     = 3
	partition indexer.PartitionID = 5
)

// bench is one index with one writer and one reader.
type bench struct {
	*testing.T
	x       indexer.Index
	w       indexer.Writer
	r       indexer.Reader
	builder indexer.FrameBuilder
	seq     uint64
	closed  bool
	// restored: what the index has came out of a dump.
	restored bool
}

func newBench(t *testing.T, open Open) *bench {
	x := open(t)
	return &bench{T: t, x: x, w: x.NewWriter(), r: x.NewReader()}
}

func (b *bench) close() {
	if b.closed {
		return
	}
	b.closed = true
	b.w.Close()
	b.r.Close()
	if err := b.x.Close(); err != nil {
		b.Errorf("close: %v", err)
	}
}

// at names the place that a frame goes to.
type at struct {
	g indexer.GroupID
	p indexer.PartitionID
	s indexer.Slot
}

func slot(s indexer.Slot) at { return at{group, partition, s} }

// ops builds the operations of one frame.
type ops struct {
	*indexer.FrameBuilder
}

// write sends one frame without waiting for it.
func (b *bench) write(a at, build func(o ops)) {
	b.Helper()
	b.seq++
	b.builder.Reset(indexer.Header{Group: a.g, Partition: a.p, Slot: a.s, Life: 1, Tenure: 1, Sequence: b.seq})
	build(ops{&b.builder})
	if err := b.w.Write(b.builder.Frame()); err != nil {
		b.Fatalf("write: %v", err)
	}
}

// do sends one frame and waits until it is applied.
func (b *bench) do(a at, build func(o ops)) {
	b.Helper()
	b.write(a, build)
	b.flush()
}

func (b *bench) flush() {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.w.Flush(ctx); err != nil {
		b.Fatalf("flush: %v (written %d, applied %d)", err, b.w.Written(), b.w.Applied())
	}
}

func (b *bench) purge(g indexer.GroupID, s indexer.Slot) {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.x.Purge(ctx, g, s); err != nil {
		b.Fatalf("purge: %v", err)
	}
}

// store appends a device store whose engine hashes are made from the local ones.
func (o ops) store(run indexer.Run, parent indexer.Parent, locals ...uint64) {
	o.storeIn(indexer.Device, run, 0, parent, locals...)
}

// extend appends a device store at the end of a run.
func (o ops) extend(run indexer.Run, start uint32, locals ...uint64) {
	o.storeIn(indexer.Device, run, start, indexer.Parent{}, locals...)
}

func (o ops) storeIn(tier indexer.Tier, run indexer.Run, start uint32, parent indexer.Parent, locals ...uint64) {
	l, e := o.Store(tier, run, start, parent, len(locals))
	copy(l, locals)
	for i, h := range locals {
		e[i] = engineOf(h)
	}
}

func engineOf(local uint64) uint64 { return local*0x9e3779b97f4a7c15 + 0xe }

// drop appends a device drop of n positions.
func (o ops) drop(run indexer.Run, from, n int) {
	o.Drop(indexer.Device, indexer.MakeRange(run, from, n))
}

func (o ops) claim(tier indexer.Tier, run indexer.Run, from, n int) {
	o.Claim(tier, indexer.MakeRange(run, from, n))
}

func root() indexer.Parent { return indexer.Parent{} }

func anchor(a uint64) indexer.Parent { return indexer.Parent{Anchor: a} }

func under(run indexer.Run, pos uint32) indexer.Parent {
	return indexer.Parent{Kind: indexer.ParentName, Run: run, Pos: pos}
}

// seq returns n numbers from first on.
func seq(first, n int) []uint64 {
	s := make([]uint64, n)
	for i := range s {
		s[i] = uint64(first + i)
	}
	return s
}

// rows is device depths by slot.
type rows map[indexer.Slot]uint32

// want checks the device scores of a query at the usual place; tier rows must be
// absent.
func (b *bench) want(name string, locals []uint64, want rows) {
	b.Helper()
	b.wantAt(name, indexer.Query{Group: group, Partition: partition, Locals: locals}, want, nil)
}

// tiers is tier walks by slot.
type tiers map[indexer.Slot][indexer.NumTiers]uint32

// wantAt checks both lists of the scores of a query.
func (b *bench) wantAt(name string, q indexer.Query, want rows, lower tiers) {
	b.Helper()
	got, gotTiers := b.match(name, q)
	if err := sameScores(got, gotTiers, want, lower); err != nil {
		b.Errorf("%s: %v", name, err)
	}
}

func (b *bench) match(name string, q indexer.Query) (rows, tiers) {
	b.Helper()
	got, lower, err := match(b.r, q)
	if err != nil {
		b.Errorf("%s: %v", name, err)
	}
	return got, lower
}

// match asks and brings the answer into maps; it refuses what the contract does.
func match(r indexer.Reader, q indexer.Query) (rows, tiers, error) {
	// What was in the slices before must not matter.
	out := indexer.Scores{Rows: []indexer.Row{{Slot: 1 << 30, Depth: 9}}, Tiers: []indexer.TierRow{{Slot: 1 << 30}}}
	r.Match(q, &out)
	return collect(&out, len(q.Locals))
}

func collect(out *indexer.Scores, n int) (rows, tiers, error) {
	var errs []error
	got, lower := rows{}, tiers{}
	for _, w := range out.Rows {
		if _, twice := got[w.Slot]; twice || w.Depth == 0 || int(w.Depth) > n {
			errs = append(errs, fmt.Errorf("bad row %+v of a query of %d blocks (twice: %t)", w, n, twice))
		}
		got[w.Slot] = w.Depth
	}
	for _, w := range out.Tiers {
		_, twice := lower[w.Slot]
		if twice || !slices.IsSorted(w.Depth[:]) || int(w.Depth[indexer.External]) > n {
			errs = append(errs, fmt.Errorf("bad tier row %+v of a query of %d blocks (twice: %t)", w, n, twice))
		}
		lower[w.Slot] = w.Depth
	}
	return got, lower, errors.Join(errs...)
}

func sameScores(got rows, gotTiers tiers, want rows, wantTiers tiers) error {
	var errs []error
	for s, d := range want {
		if got[s] != d {
			errs = append(errs, fmt.Errorf("slot %d: depth %d, want %d", s, got[s], d))
		}
	}
	for s, d := range got {
		if want[s] == 0 {
			errs = append(errs, fmt.Errorf("slot %d: depth %d, want no row", s, d))
		}
	}
	for s, d := range wantTiers {
		if g, ok := gotTiers[s]; !ok || g != d {
			errs = append(errs, fmt.Errorf("slot %d: tier walk %v (present: %t), want %v", s, g, ok, d))
		}
	}
	for s, d := range gotTiers {
		if _, ok := wantTiers[s]; !ok {
			errs = append(errs, fmt.Errorf("slot %d: tier walk %v, want no tier row", s, d))
		}
	}
	if len(errs) > 8 {
		errs = append(errs[:8], fmt.Errorf("and %d more", len(errs)-8))
	}
	return errors.Join(errs...)
}

// await waits until ok, which returns the state that it saw.
func (b *bench) await(what string, ok func() (bool, any)) {
	b.Helper()
	deadline := time.Now().Add(patience)
	for {
		done, seen := ok()
		if done {
			return
		}
		if time.Now().After(deadline) {
			b.Fatalf("%s: not within %v; last seen: %+v", what, patience, seen)
		}
		time.Sleep(time.Millisecond)
	}
}

func (b *bench) faults() uint64 { return b.x.Stats().Faults }
