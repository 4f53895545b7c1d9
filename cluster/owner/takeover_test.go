package owner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

func oldTenure(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	if _, err := w.owner.Adopt(context.Background(), s.SlotLife, 7); err != nil {
		return err
	}
	if err := errors.Join(w.isNot("fenced off", s, 0), w.isNot("fenced off", s, 5)); err != nil {
		return err
	}
	want := w.have(s, 0)
	old := *s
	a.send(copywire.AppendFrame(nil, old.frame(0, 1)))
	for _, p := range old.fill(0) {
		a.send(p)
	}
	a.send(copywire.AppendClose(nil, old.SlotLife, 4, list(0)))
	a.send(copywire.AppendOpen(nil, old.SlotLife, 4, list(6)))
	a.send(copywire.AppendCursor(nil, copywire.Cursor{SlotLife: old.SlotLife, Tenure: 4, Sequence: 1 << 40}))
	if err := a.settled(); err != nil {
		return err
	}
	l := w.owner.Labels(s.SlotLife)
	switch {
	case w.have(s, 0) != want:
		return fmt.Errorf("copy has %s, want %s", w.have(s, 0), want)
	case len(l.Copies) != 2 || l.Cursor.Sequence != 0:
		return fmt.Errorf("labels %+v", l)
	case w.owner.Stats().Ignored["tenure"] == 0:
		return errors.New("nothing was counted")
	}
	if _, err := w.owner.Adopt(context.Background(), s.SlotLife, 6); !errors.Is(err, ErrTenure) {
		return fmt.Errorf("adopted under an older tenure: %v", err)
	}
	if _, err := w.owner.Adopt(context.Background(), newStream(3, 9, 1).SlotLife, 9); !errors.Is(err, ErrLife) {
		return fmt.Errorf("adopted an older life: %v", err)
	}
	// The same over a link, with its sentinel.
	_, err = a.call(context.Background(), copywire.MethodAdopt, copywire.AdoptRequest{SlotLife: s.SlotLife, Tenure: 6}.Append(nil))
	if !errors.Is(err, ErrTenure) {
		return fmt.Errorf("call: %v", err)
	}
	b, err := a.call(context.Background(), copywire.MethodAdopt, copywire.AdoptRequest{SlotLife: s.SlotLife, Tenure: 8}.Append(nil))
	if err != nil {
		return err
	}
	if l, err = copywire.DecodeLabels(b); err != nil || len(l.Copies) != 2 || l.Copies[1].Sequence != 2 {
		return fmt.Errorf("labels %+v, %v", l, err)
	}
	return nil
}

func adoptWaits(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	w.index.shut()
	a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	a.send(copywire.AppendCursor(nil, copywire.Cursor{SlotLife: s.SlotLife, Tenure: 4, Sequence: s.seq, Digest: 5}))
	time.Sleep(50 * time.Millisecond)
	opening := time.AfterFunc(100*time.Millisecond, w.index.open)
	defer opening.Stop()
	l, err := w.owner.Adopt(context.Background(), s.SlotLife, 9)
	if err != nil {
		return err
	}
	if have, want := w.have(s, 0), s.want(0); have != want {
		return fmt.Errorf("adopted with %s in the copy; of its label it has %s", have, want)
	}
	if len(l.Copies) != 2 || l.Copies[0].Sequence != 3 || l.Copies[1].Sequence != 2 || l.Cursor.Sequence != 3 || l.Cursor.Digest != 5 {
		return fmt.Errorf("labels %+v", l)
	}
	return nil
}

// takeoverByFill: c takes a slot over while frames of a are on their way to the index.
func takeoverByFill(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	c := w.start("c")
	w.index.slowTenure.Store(4)
	w.index.shut()
	lost := *s
	for range 5 {
		a.send(copywire.AppendFrame(nil, lost.frame(0, 1)))
	}
	time.Sleep(50 * time.Millisecond)
	// The frames above are also in s, whose copies c knows; of their own it has one more.
	next := newStream(3, 10, 6)
	next.seq = 100
	next.frame(0, 4)
	for _, p := range next.fill(0) {
		c.send(p)
	}
	time.Sleep(50 * time.Millisecond)
	w.index.open()
	if err := errors.Join(a.settled(), c.settled(), w.is("taken over", next, 0)); err != nil {
		return err
	}
	a.send(copywire.AppendFrame(nil, lost.frame(0, 1)))
	c.send(copywire.AppendFrame(nil, next.frame(0, 1)))
	return errors.Join(a.settled(), c.settled(), w.is("the old one ignored", next, 0))
}

// localWrite writes a frame as the fanout of this node does.
func (w *world) localWrite(f indexer.Frame) bool {
	if !w.owner.NoteLocal(f.Header()) {
		return false
	}
	if err := w.local.Write(f); err != nil {
		panic(err)
	}
	return true
}

func (w *world) localFill(s *stream, p indexer.PartitionID) bool {
	if !w.owner.BeginLocal(s.SlotLife, s.tenure, p) {
		return false
	}
	for _, b := range s.fill(p) {
		m, err := copywire.Decode(b)
		if err == nil {
			err = w.local.Write(m.Frame)
		}
		if err != nil {
			panic(err)
		}
	}
	if err := w.local.Flush(context.Background()); err != nil {
		panic(err)
	}
	return w.owner.EndLocal(s.SlotLife, s.tenure, p, s.seq)
}

func localCopies(w *world) error {
	s := newStream(6, 10, 2)
	w.owner.OpenLocal(s.SlotLife, 2, list(0, 1))
	ok := w.localWrite(s.frame(0, 2)) && w.localWrite(s.frame(1, 1)) && w.localWrite(s.drop(0, 1))
	w.owner.CursorLocal(copywire.Cursor{SlotLife: s.SlotLife, Tenure: 2, Sequence: 3, Digest: 8})
	if err := w.local.Flush(context.Background()); err != nil || !ok {
		return fmt.Errorf("written: %t, %v", ok, err)
	}
	l := w.owner.Labels(s.SlotLife)
	if err := errors.Join(w.is("local", s, 0), w.is("local", s, 1)); err != nil || len(l.Copies) != 2 || l.Copies[0].Sequence != 3 || !l.Copies[0].Current || l.Cursor.Digest != 8 {
		return fmt.Errorf("labels %+v, %v", l, err)
	}
	// Not open, another life, another tenure.
	if w.localWrite(newStream(6, 10, 2).frame(2, 1)) || w.localWrite(newStream(6, 9, 2).frame(0, 1)) || w.localWrite(newStream(6, 10, 1).frame(0, 1)) {
		return errors.New("a frame was allowed")
	}
	// A fault closes, and a fill opens again; a fill with a fault does not.
	bad := *s
	w.localWrite(bad.bad(0))
	if err := errors.Join(w.local.Flush(context.Background()), w.isNot("fault", s, 0), w.wantReported("o", s, 0)); err != nil {
		return err
	}
	if w.localWrite(newStream(6, 10, 2).frame(0, 1)) {
		return errors.New("a frame was allowed on a closed copy")
	}
	mark := w.owner.Mark()
	if !w.localFill(s, 0) {
		return errors.New("filled, but not open")
	}
	if err := w.is("filled", s, 0); err != nil || w.readable(s, 0, mark) {
		return fmt.Errorf("filled during a query: %v", err)
	}
	if !w.owner.BeginLocal(s.SlotLife, 2, 1) {
		return errors.New("fill refused")
	}
	if err := w.local.Write(bad.bad(1)); err != nil {
		return err
	}
	if err := w.local.Flush(context.Background()); err != nil || w.owner.EndLocal(s.SlotLife, 2, 1, 9) {
		return fmt.Errorf("faulty fill is open (%v)", err)
	}
	w.owner.OpenLocal(s.SlotLife, 2, list(1)) // it has had content
	if err := w.isNot("opened as new", s, 1); err != nil {
		return err
	}
	w.owner.CloseLocal(s.SlotLife, 1, list(0)) // by an older one
	if err := w.is("not closed", s, 0); err != nil {
		return err
	}
	w.owner.CloseLocal(s.SlotLife, 2, list(0))
	return w.isNot("closed", s, 0)
}

// takenFromHere: another node takes over a slot that this one read.
func takenFromHere(w *world) error {
	s := newStream(6, 10, 2)
	w.owner.OpenLocal(s.SlotLife, 2, list(0))
	c := w.start("c")
	w.index.shut()
	if !w.localWrite(s.frame(0, 2)) {
		return errors.New("not written")
	}
	next := newStream(6, 10, 3)
	next.seq = 50
	next.frame(0, 1)
	for _, p := range next.fill(0) {
		c.send(p)
	}
	time.Sleep(100 * time.Millisecond)
	if w.localWrite(s.frame(0, 1)) || w.owner.BeginLocal(s.SlotLife, 2, 0) {
		return errors.New("this node goes on")
	}
	w.index.open()
	return errors.Join(c.settled(), w.is("taken over", next, 0))
}

// fencedByTheLog: the log says that another node reads a slot, and that one is not heard of.
func fencedByTheLog(w *world) error {
	s := newStream(6, 10, 2)
	w.owner.OpenLocal(s.SlotLife, 2, list(0))
	if ok := w.localWrite(s.frame(0, 2)); !ok || w.local.Flush(context.Background()) != nil {
		return errors.New("not written")
	}
	for _, other := range []copywire.SlotLife{{Group: 99, Slot: 6, Life: 10}, {Group: s.Group, Slot: s.Slot, Life: s.Life + 1}} {
		w.owner.Fence(other, 9)
	}
	w.owner.Fence(s.SlotLife, 2)
	if err := w.is("not fenced", s, 0); err != nil {
		return err
	}
	w.owner.Fence(s.SlotLife, 3)
	if w.readable(s, 0, w.owner.Mark()) || w.localWrite(s.frame(0, 1)) {
		return errors.New("this node goes on")
	}
	if l := w.owner.Labels(s.SlotLife); len(l.Copies) != 1 {
		return fmt.Errorf("the next reader finds %+v", l)
	}
	return nil
}

// takenToHere: this node takes over a slot that another one read.
func takenToHere(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	w.index.shut()
	a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	time.Sleep(50 * time.Millisecond)
	opening := time.AfterFunc(50*time.Millisecond, w.index.open)
	defer opening.Stop()
	l, err := w.owner.Adopt(context.Background(), s.SlotLife, 9)
	if err != nil || len(l.Copies) != 2 {
		return fmt.Errorf("labels %+v, %v", l, err)
	}
	old := *s
	s.tenure = 9
	if !w.localFill(s, 0) || !w.localWrite(s.frame(0, 1)) {
		return errors.New("this node may not write")
	}
	a.send(copywire.AppendFrame(nil, old.drop(5, 1)))
	return errors.Join(a.settled(), w.local.Flush(context.Background()), w.is("taken over", s, 0))
}

// changePlaces: two nodes take over slots from each other at the same moment, so each
// waits for what the other has written.
func changePlaces(w *world) error {
	a, c := w.start("a"), w.start("c")
	x, y := newStream(1, 10, 4), newStream(2, 11, 4)
	a.send(copywire.AppendOpen(nil, x.SlotLife, 4, list(0)))
	c.send(copywire.AppendOpen(nil, y.SlotLife, 4, list(0)))
	if err := errors.Join(a.settled(), c.settled()); err != nil {
		return err
	}
	for round := range 5 {
		w.index.shut()
		for range 10 {
			a.send(copywire.AppendFrame(nil, x.frame(0, 1)))
			c.send(copywire.AppendFrame(nil, y.frame(0, 1)))
		}
		x.tenure, y.tenure = x.tenure+1, y.tenure+1
		for _, p := range y.fill(0) {
			a.send(p)
		}
		for _, p := range x.fill(0) {
			c.send(p)
		}
		time.Sleep(20 * time.Millisecond)
		w.index.open()
		if err := errors.Join(a.settled(), c.settled(), w.is("changed", x, 0), w.is("changed", y, 0)); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		a, c = c, a
	}
	return nil
}

// carriedOn: a new reader goes on with the copies that are as it has seen them.
func carriedOn(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	c := w.start("c")
	a.stop()
	w.owner.Forget("a") // its session is over; what it carried stays, unread
	if !w.await(func() bool { return w.owner.Stats().Copies == 0 }) {
		return fmt.Errorf("stats %+v", w.owner.Stats())
	}
	l, err := w.owner.Adopt(context.Background(), s.SlotLife, 6)
	if err != nil || len(l.Copies) != 2 || l.Copies[0].Current || l.Copies[0].Sequence != 1 || l.Copies[1].Sequence != 2 {
		return fmt.Errorf("labels %+v, %v", l, err)
	}
	c.send(copywire.AppendFence(nil, 9, s.SlotLife, list(0)))
	if d, err := fetch(c, 9); err != nil || !d[0].Open || d[0].Tenure != 4 || d[0].Sequence != 1 || text(d[0].Stretches) != s.want(0) {
		return fmt.Errorf("dump %+v, %v", d, err)
	}
	if err := errors.Join(w.isNot("nobody's", s, 0), w.isNot("nobody's", s, 5)); err != nil {
		return err
	}
	mark := w.owner.Mark()
	l.Copies[1].Sequence++ // not what is here
	c.send(copywire.AppendCarry(nil, s.SlotLife, 6, l.Copies))
	s.tenure = 6
	c.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	if err := errors.Join(c.settled(), w.is("carried on", s, 0), w.isNot("other label", s, 5), w.wantReported("c", s, 5)); err != nil {
		return err
	}
	if w.readable(s, 0, mark) {
		return errors.New("carried on during a query, and readable for it")
	}
	// And on to this node.
	if l, err = w.owner.Adopt(context.Background(), s.SlotLife, 7); err != nil {
		return err
	}
	s.tenure = 7
	if got := w.owner.CarryLocal(s.SlotLife, 7, l.Copies); !slices.Equal(got, list(0)) && !slices.Equal(got, list(0, 5)) {
		return fmt.Errorf("carried %v of %+v", got, l.Copies)
	}
	if !w.localWrite(s.frame(0, 1)) {
		return errors.New("this node may not write")
	}
	return errors.Join(w.local.Flush(context.Background()), w.is("carried on here", s, 0))
}

// cursorBehindALapse: a session ends; the next one fills one copy and tells how far the slot
// is, while frames of the other wait for a place. Nobody may go on with what that one has,
// as if the cursor held for it.
func cursorBehindALapse(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	cursor := func() copywire.Cursor {
		return copywire.Cursor{SlotLife: s.SlotLife, Tenure: s.tenure, Sequence: s.seq, Digest: 1 << 20}
	}
	a.send(copywire.AppendCursor(nil, cursor()))
	if err := a.settled(); err != nil {
		return err
	}
	a = w.start("a")
	a.send(copywire.AppendCursor(nil, cursor())) // nothing new: it holds for both
	if err := a.settled(); err != nil {
		return err
	}
	if l := w.owner.Labels(s.SlotLife); len(l.Copies) != 2 || l.Cursor.Sequence != s.seq {
		return fmt.Errorf("after the session: labels %+v", l)
	}
	s.frame(5, 1) // waits
	s.frame(0, 1)
	for _, p := range s.fill(0) {
		a.send(p)
	}
	a.send(copywire.AppendCursor(nil, cursor()))
	if err := a.settled(); err != nil {
		return err
	}
	if l := w.owner.Labels(s.SlotLife); len(l.Copies) != 1 || l.Copies[0].Partition != 0 || l.Cursor.Sequence != s.seq {
		return fmt.Errorf("one is filled: labels %+v", l)
	}
	for _, p := range s.fill(5) {
		a.send(p)
	}
	err = errors.Join(a.settled(), w.is("filled", s, 0), w.is("filled", s, 5))
	if l := w.owner.Labels(s.SlotLife); err != nil || len(l.Copies) != 2 {
		return fmt.Errorf("both are filled: labels %+v, %v", l, err)
	}
	return nil
}
