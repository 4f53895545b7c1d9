package owner

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

func TestKeep(t *testing.T) {
	for name, run := range map[string]func(w *world) error{
		"carried on by a takeover": keptCarried, "replaced by a fill": keptFilled, "purged": keptPurged,
		"of an older life": keptOld, "saved": saveOpened, "saved while written": saveBusy, "saved when applied": saveWaits,
	} {
		t.Run(name, func(t *testing.T) {
			if err := inWorld(t, mutant{}, run); err != nil {
				t.Error(err)
			}
		})
	}
}

// keepTwo puts two copies into the index, as a snapshot does, and keeps them: 0 has content,
// 6 has none.
func keepTwo(w *world) (*stream, error) {
	s := newStream(3, 10, 4)
	f := s.frame(0, 3)
	if err := w.local.Write(f); err != nil {
		return nil, err
	}
	if err := w.local.Flush(context.Background()); err != nil {
		return nil, err
	}
	labels := []copywire.Label{{Partition: 0, Tenure: 4, Sequence: s.seq}, {Partition: 6, Tenure: 4}}
	if !w.owner.Keep(s.SlotLife, labels, map[indexer.PartitionID]bool{6: true}, copywire.Cursor{SlotLife: s.SlotLife, Tenure: 4, Sequence: 9, Digest: 7}) {
		return nil, errors.New("not kept")
	}
	if have, want := w.have(s, 0), s.want(0); have != want {
		return nil, fmt.Errorf("the index has %s, want %s", have, want)
	}
	return s, errors.Join(w.isNot("kept", s, 0), w.isNot("kept", s, 6))
}

func keptCarried(w *world) error {
	s, err := keepTwo(w)
	if err != nil {
		return err
	}
	a := w.start("a")
	// Nothing of what is sent under the old tenure opens them.
	a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	a.send(copywire.AppendOpen(nil, s.SlotLife, 4, list(0)))
	if err := errors.Join(a.settled(), w.isNot("opened as new", s, 0)); err != nil {
		return err
	}
	// Whoever opens a copy with content as a new one has lost it; it is kept no more.
	s, err = keptAgain(w, s)
	if err != nil {
		return err
	}
	l, err := w.owner.Adopt(context.Background(), s.SlotLife, 20)
	if err != nil {
		return err
	}
	if len(l.Copies) != 2 || l.Copies[0] != (copywire.Label{Partition: 0, Tenure: 4, Sequence: 1}) || l.Cursor.Sequence != 9 || l.Cursor.Digest != 7 {
		return fmt.Errorf("labels %+v", l)
	}
	a.send(copywire.AppendCarry(nil, s.SlotLife, 20, l.Copies))
	if err := a.settled(); err != nil {
		return err
	}
	s.tenure, s.seq = 20, 30
	if err := errors.Join(w.is("carried", s, 0), w.is("carried", s, 6)); err != nil {
		return err
	}
	a.send(copywire.AppendFrame(nil, s.frame(0, 2)))
	a.send(copywire.AppendFrame(nil, s.frame(6, 2)))
	return errors.Join(a.settled(), w.is("goes on", s, 0), w.is("goes on", s, 6))
}

// keptAgain keeps the copy of 0 again, under another slot.
func keptAgain(w *world, old *stream) (*stream, error) {
	s := newStream(old.Slot+1, 10, 4)
	if err := w.local.Write(s.frame(0, 3)); err != nil {
		return nil, err
	}
	if err := w.local.Flush(context.Background()); err != nil {
		return nil, err
	}
	labels := []copywire.Label{{Partition: 0, Tenure: 4, Sequence: s.seq}, {Partition: 6, Tenure: 4}}
	if !w.owner.Keep(s.SlotLife, labels, map[indexer.PartitionID]bool{6: true}, copywire.Cursor{SlotLife: s.SlotLife, Tenure: 4, Sequence: 9, Digest: 7}) {
		return nil, errors.New("not kept")
	}
	return s, nil
}

func keptFilled(w *world) error {
	s, err := keepTwo(w)
	if err != nil {
		return err
	}
	a := w.start("a")
	next := newStream(3, 10, 6)
	next.seq = 100
	next.copies[0] = &truth{live: map[indexer.Run]uint64{}, next: 900, free: 2}
	next.frame(0, 2)
	for _, p := range next.fill(0) {
		a.send(p)
	}
	// The one without content is still what a fresh life begins with.
	a.send(copywire.AppendOpen(nil, s.SlotLife, 6, list(6)))
	if err := errors.Join(a.settled(), w.is("filled", next, 0), w.is("opened", next, 6)); err != nil {
		return err
	}
	if l := w.owner.Labels(s.SlotLife); l.Cursor.Life != 0 {
		return fmt.Errorf("the cursor of another tenure is left: %+v", l.Cursor)
	}
	return nil
}

func keptPurged(w *world) error {
	s, err := keepTwo(w)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	w.owner.Retire(catalog.Retired{Group: uint32(s.Group), Slot: uint32(s.Slot), Life: s.Life}, func(err error) { done <- err })
	if err := <-done; err != nil {
		return err
	}
	if have := w.have(s, 0); have != "" {
		return fmt.Errorf("the index still has %s", have)
	}
	if l := w.owner.Labels(s.SlotLife); len(l.Copies) != 0 {
		return fmt.Errorf("labels %+v", l)
	}
	// The number begins again, empty.
	a, next := w.start("a"), newStream(3, 30, 30)
	a.send(copywire.AppendOpen(nil, next.SlotLife, 30, list(0)))
	a.send(copywire.AppendFrame(nil, next.frame(0, 1)))
	return errors.Join(a.settled(), w.is("the next life", next, 0))
}

func keptOld(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	old := newStream(s.Slot, s.Life-1, 1)
	if w.owner.Keep(old.SlotLife, []copywire.Label{{Partition: 0, Tenure: 1, Sequence: 1}}, nil, copywire.Cursor{}) {
		return errors.New("an older life was kept")
	}
	return errors.Join(a.settled(), w.is("untouched", s, 0))
}

func all(indexer.PartitionID) bool { return true }

// check compares what was saved of a slot with what it had at its labels.
func check(sv Saved, at map[uint64]string) error {
	copies, err := copywire.DecodeCopies(sv.Dump)
	if err != nil {
		return err
	}
	if len(copies) != sv.Copies {
		return fmt.Errorf("%d copies, said to be %d", len(copies), sv.Copies)
	}
	for _, c := range copies {
		if want, ok := at[uint64(c.Partition)<<32|c.Sequence]; !ok || text(c.Stretches) != want {
			return fmt.Errorf("partition %d at %d has %s, want %s", c.Partition, c.Sequence, text(c.Stretches), want)
		}
	}
	return nil
}

func saveOpened(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	a.send(copywire.AppendCursor(nil, copywire.Cursor{SlotLife: s.SlotLife, Tenure: 4, Sequence: 2, Digest: 7 << 16}))
	if err := a.settled(); err != nil {
		return err
	}
	sv, err := w.owner.Save(context.Background(), nil, s.SlotLife, 1<<20, all)
	if err != nil {
		return err
	}
	if sv.Copies != 2 || sv.Blocks != 10 || sv.Cursor.Sequence != 2 {
		return fmt.Errorf("saved %d copies, %d blocks, cursor %+v", sv.Copies, sv.Blocks, sv.Cursor)
	}
	if err := check(sv, map[uint64]string{1: s.want(0), 5<<32 | 2: s.want(5)}); err != nil {
		return err
	}
	sv, err = w.owner.Save(context.Background(), nil, s.SlotLife, 1<<20, func(p indexer.PartitionID) bool { return p == 5 })
	if err != nil || sv.Copies != 1 || sv.Blocks != 4 {
		return fmt.Errorf("of partition 5 alone: %+v, %w", sv, err)
	}
	if err := check(sv, map[uint64]string{5<<32 | 2: s.want(5)}); err != nil {
		return err
	}
	if _, err := w.owner.Save(context.Background(), nil, s.SlotLife, 100, all); !errors.Is(err, ErrLarge) {
		return fmt.Errorf("with a bound of 100 bytes: %v", err)
	}
	if _, err := w.owner.Save(context.Background(), nil, newStream(3, 11, 4).SlotLife, 1<<20, all); !errors.Is(err, ErrLife) {
		return fmt.Errorf("of another life: %v", err)
	}
	n := 0
	for l := range w.owner.Lives {
		if n++; l != s.SlotLife {
			return fmt.Errorf("life of %v", l)
		}
	}
	if n != 1 {
		return fmt.Errorf("%d lives", n)
	}
	return nil
}

// saveWaits saves a copy whose last frame is on its way to the index.
func saveWaits(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	w.index.shut()
	a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	time.Sleep(50 * time.Millisecond)
	opening := time.AfterFunc(100*time.Millisecond, w.index.open)
	defer opening.Stop()
	sv, err := w.owner.Save(context.Background(), nil, s.SlotLife, 1<<20, all)
	if err != nil {
		return err
	}
	if sv.Copies != 2 {
		return fmt.Errorf("%d copies", sv.Copies)
	}
	return check(sv, map[uint64]string{3: s.want(0), 5<<32 | 2: s.want(5)})
}

// saveBusy saves a slot while frames come: every copy is as it was at its label.
func saveBusy(w *world) error {
	a := w.start("a")
	s := newStream(3, 10, 4)
	a.send(copywire.AppendOpen(nil, s.SlotLife, 4, list(0, 5)))
	at := map[uint64]string{0: "", 5 << 32: ""}
	rng := rand.New(rand.NewPCG(1, 2))
	found := 0
	for range 60 {
		ended := make(chan struct{})
		var sv Saved
		var err error
		go func() {
			defer close(ended)
			sv, err = w.owner.Save(context.Background(), nil, s.SlotLife, 1<<20, all)
		}()
		for range rng.IntN(6) {
			p := list(0, 5)[rng.IntN(2)]
			var f indexer.Frame
			if rng.IntN(3) == 0 && len(s.copy(p).live) > 0 {
				f = s.drop(p, 1)
			} else {
				f = s.frame(p, 1+rng.IntN(3))
			}
			at[uint64(p)<<32|s.seq] = s.want(p)
			a.send(copywire.AppendFrame(nil, f))
			if rng.IntN(2) == 0 {
				time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
			}
		}
		<-ended
		if err != nil && !errors.Is(err, ErrLife) {
			return err
		}
		if err := check(sv, at); err != nil {
			return err
		}
		found += sv.Copies
	}
	if found < 60 {
		return fmt.Errorf("only %d copies were saved in 60 rounds", found)
	}
	return a.settled()
}
