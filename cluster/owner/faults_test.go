package owner

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
)

func fillDuringQuery(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	for range 40 {
		s.frame(0, 1) // the owner does not get these
	}
	parts := s.fill(0)
	if len(parts) < 3 {
		return fmt.Errorf("a fill of %d frames", len(parts))
	}
	for _, p := range parts[:len(parts)-1] {
		a.send(p)
	}
	if err := a.settled(); err != nil {
		return err
	}
	if err := errors.Join(w.isNot("being filled", s, 0), w.is("the other one", s, 5)); err != nil {
		return err
	}
	mark := w.owner.Mark() // a query begins, and reads the tree
	a.send(parts[len(parts)-1])
	if err := a.settled(); err != nil {
		return err
	}
	if w.readable(s, 0, mark) {
		return errors.New("a query that read the tree in the middle of a fill may use what it read")
	}
	return errors.Join(w.is("filled", s, 0), w.is("the other one", s, 5))
}

func openAfterApply(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	s.frame(0, 2)
	w.index.shut()
	for _, p := range s.fill(0) {
		a.send(p)
	}
	a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	for range 20 {
		time.Sleep(20 * time.Millisecond)
		if err := w.isNot("not applied", s, 0); err != nil {
			return err
		}
	}
	w.index.open()
	return errors.Join(a.settled(), w.is("applied", s, 0))
}

func faultDuringFill(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	for range 40 {
		s.frame(0, 1)
	}
	parts := s.fill(0)
	a.send(parts[0])
	bad := *s
	a.send(copywire.AppendFill(nil, false, false, bad.bad(0)))
	for _, p := range parts[1:] {
		a.send(p)
	}
	if err := a.settled(); err != nil {
		return err
	}
	if err := errors.Join(w.isNot("faulty", s, 0), w.wantReported("a", s, 0)); err != nil {
		return err
	}
	for _, p := range s.fill(0) {
		a.send(p)
	}
	return errors.Join(a.settled(), w.is("filled again", s, 0), w.is("the other one", s, 5))
}

func faultOfOpen(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	a.send(copywire.AppendFrame(nil, s.bad(5)))
	a.send(copywire.AppendFrame(nil, s.frame(5, 1)))
	if err := a.settled(); err != nil {
		return err
	}
	if err := errors.Join(w.isNot("faulty", s, 5), w.is("the other one", s, 0), w.wantReported("a", s, 5)); err != nil {
		return err
	}
	if h := w.reported()[0].h; h.Sequence != 3 || h.Tenure != 4 {
		return fmt.Errorf("reported as %+v", h)
	}
	// Nobody hears of it twice.
	time.Sleep(time.Minute)
	return errors.Join(w.wantReported("a", s, 5), w.isNot("a minute later", s, 5))
}

func badFormat(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	f := s.frame(5, 1)
	f[6] = 99 // a kind that there is not
	a.send(copywire.AppendFrame(nil, f))
	return errors.Join(a.settled(), w.isNot("faulty", s, 5), w.is("the other one", s, 0), w.wantReported("a", s, 5))
}

func reopen(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	a.send(copywire.AppendOpen(nil, s.SlotLife, 4, list(0, 6)))
	if err := a.settled(); err != nil {
		return err
	}
	// Empty copies may be opened again, by a new session as well.
	b := w.start("a")
	b.send(copywire.AppendOpen(nil, s.SlotLife, 4, list(6)))
	return errors.Join(w.isNot("has content", s, 0), w.wantReported("a", s, 0), b.settled(), w.is("empty", s, 6))
}

func brokenToldAgain(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.mu.refuse = 4
	w.mu.Unlock()
	a.send(copywire.AppendFrame(nil, s.bad(0)))
	a.send(copywire.AppendFrame(nil, s.bad(5)))
	if err := errors.Join(a.settled(), w.wantReported("a", s, 0, 5)); err != nil {
		return err
	}
	// What was filled meanwhile needs not be told.
	w.mu.Lock()
	w.mu.refuse, w.mu.broken = 1, nil
	w.mu.Unlock()
	for _, p := range s.fill(0) {
		a.send(p)
	}
	a.send(copywire.AppendFrame(nil, s.bad(0)))
	if err := a.settled(); err != nil {
		return err
	}
	for _, p := range s.fill(0) {
		a.send(p)
	}
	if err := errors.Join(a.settled(), w.is("filled", s, 0)); err != nil {
		return err
	}
	time.Sleep(time.Minute)
	if got := w.reported(); len(got) != 0 {
		return fmt.Errorf("reported though it was filled: %+v", got)
	}
	// Nor does a peer that has begun a new session.
	w.mu.Lock()
	w.mu.refuse = 1
	w.mu.Unlock()
	a.send(copywire.AppendFrame(nil, s.bad(0)))
	if err := a.settled(); err != nil {
		return err
	}
	w.owner.Forget("a")
	time.Sleep(time.Minute)
	if got := w.reported(); len(got) != 0 {
		return fmt.Errorf("reported to a session that is over: %+v", got)
	}
	return nil
}

func malformedMessage(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	c := w.start("c")
	other := newStream(4, 11, 4)
	c.send(copywire.AppendOpen(nil, other.SlotLife, 4, list(0)))
	c.send(copywire.AppendFrame(nil, other.frame(0, 1)))
	a.send([]byte("what is this"))
	a.send(nil)
	if err := errors.Join(a.settled(), c.settled(), w.isNot("malformed", s, 0), w.isNot("malformed", s, 5), w.is("another session", other, 0), w.wantReported("a", s, 0, 5)); err != nil {
		return err
	}
	a.send(copywire.AppendOpen(nil, copywire.SlotLife{Group: 1 << 30, Slot: 1, Life: 1}, 1, list(0)))
	a.send(copywire.AppendOpen(nil, copywire.SlotLife{Group: 1, Slot: 1 << 30, Life: 1}, 1, list(0)))
	a.send(copywire.AppendOpen(nil, copywire.SlotLife{Group: 1, Slot: 9, Life: 1}, 1, list(1<<20)))
	a.send(copywire.AppendFence(nil, 1, copywire.SlotLife{Group: 1 << 30, Slot: 1 << 30, Life: 1}, list(1<<30)))
	a.send(copywire.AppendCursor(nil, copywire.Cursor{SlotLife: copywire.SlotLife{Group: 1 << 30, Slot: 1 << 30, Life: 1}}))
	a.send(copywire.AppendFrame(nil, newStream(1<<30, 1, 1).frame(1<<30, 1)))
	a.send(copywire.AppendFill(nil, true, true, clearFrame(newStream(1<<30, 1, 1).header(1<<30))))
	for _, p := range s.fill(0) {
		a.send(p)
	}
	if n := w.owner.Stats().Ignored["malformed"]; n != 2 {
		return fmt.Errorf("%d malformed", n)
	}
	return errors.Join(a.settled(), w.is("the session goes on", s, 0))
}
