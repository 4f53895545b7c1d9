package owner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

func ackAfterApply(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	before := a.acked()
	w.index.shut()
	for range 20 {
		a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	}
	time.Sleep(500 * time.Millisecond)
	if n := a.acked(); n != before {
		return fmt.Errorf("%d acknowledged, %d applied", n, before)
	}
	w.index.open()
	return errors.Join(a.settled(), w.is("at last", s, 0))
}

func sessionChange(w *world) error {
	_, s, err := opened(w)
	if err != nil {
		return err
	}
	a := w.start("a") // a new boot
	// The old session is over with the first word of the new one.
	if !w.await(func() bool { return w.owner.Stats().Readable == 0 }) {
		return errors.New("what the old session carried is readable")
	}
	if err := errors.Join(w.isNot("new session", s, 0), w.isNot("new session", s, 5)); err != nil {
		return err
	}
	have := w.have(s, 0)
	lost := *s
	a.send(copywire.AppendFrame(nil, lost.drop(0, 1)))
	if err := a.settled(); err != nil {
		return err
	}
	if w.have(s, 0) != have {
		return errors.New("a frame of the new session was applied to a copy of the old one")
	}
	if l := w.owner.Labels(s.SlotLife); slices.ContainsFunc(l.Copies, func(c copywire.Label) bool { return c.Current }) {
		return fmt.Errorf("current copies %+v", l.Copies)
	}
	for _, p := range s.fill(0) {
		a.send(p)
	}
	a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	if err := a.settled(); err != nil {
		return err
	}
	if st := w.owner.Stats(); st.Sessions != 1 || st.Copies != 1 {
		return fmt.Errorf("stats %+v", st)
	}
	w.index.mu.Lock()
	writers := w.index.mu.writers
	w.index.mu.Unlock()
	if writers != 2 {
		return fmt.Errorf("%d writers of the index, want one of the session and one of this node", writers)
	}
	return errors.Join(w.is("filled", s, 0), w.isNot("not filled", s, 5))
}

// silence: while a is cut off it goes on, and what it acknowledges without the owner
// must not be contradicted by it afterwards.
func silence(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	w.net.CutMesh("a", "o")
	w.net.CutMesh("o", "a")
	if !w.await(func() bool { return a.lapsed() }) {
		return errors.New("a goes on counting on the owner")
	}
	if err := w.isNot("cut off", s, 0); err != nil {
		return err
	}
	if l := w.owner.Labels(s.SlotLife); len(l.Copies) != 2 || l.Copies[0].Current {
		return fmt.Errorf("labels of lapsed copies: %+v", l.Copies)
	}
	old := w.have(s, 0)
	a.send(copywire.AppendFrame(nil, s.drop(0, 2))) // acknowledged: nobody waits for the owner
	w.index.shut()
	w.net.HealMesh("a", "o")
	w.net.HealMesh("o", "a")
	if !w.await(func() bool { return w.hub.Current(a.session()) }) {
		return errors.New("the link does not come back")
	}
	mark := w.owner.Mark()
	if w.have(s, 0) != old {
		return errors.New("applied with the gate shut")
	}
	for range 20 {
		time.Sleep(20 * time.Millisecond)
		if err := w.isNot("received, not applied", s, 0); err != nil {
			return err
		}
	}
	w.index.open()
	if err := a.settled(); err != nil {
		return err
	}
	if w.readable(s, 0, mark) {
		return errors.New("a query that began before what was missed was applied may use what it read")
	}
	return w.is("back", s, 0)
}

// session is the incoming session at the owner.
func (s *sender) session() link.Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.mu.session
	in.Peer = s.name
	return in
}

func purgeWaits(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	w.index.shut()
	a.send(copywire.AppendFrame(nil, s.frame(0, 3)))
	time.Sleep(50 * time.Millisecond)
	done := make(chan error, 1)
	w.owner.Retire(catalog.Retired{Group: uint32(s.Group), Slot: uint32(s.Slot), Life: s.Life}, func(err error) { done <- err })
	time.Sleep(50 * time.Millisecond)
	if err := errors.Join(w.isNot("retired", s, 0), w.isNot("retired", s, 5)); err != nil {
		return err
	}
	a.send(copywire.AppendFrame(nil, s.frame(0, 3)))
	a.send(copywire.AppendOpen(nil, s.SlotLife, 4, list(9)))
	w.index.open()
	if err := errors.Join(<-done, a.settled()); err != nil {
		return err
	}
	if have := w.have(s, 0) + w.have(s, 5); have != "" {
		return fmt.Errorf("purged, but has %s", have)
	}
	if _, err := w.owner.Adopt(context.Background(), s.SlotLife, 99); !errors.Is(err, ErrLife) {
		return fmt.Errorf("adopt of a retired life: %v", err)
	}
	return w.isNot("retired", s, 9)
}

func lifeAfterLife(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	w.owner.Retire(catalog.Retired{Group: uint32(s.Group), Slot: uint32(s.Slot), Life: s.Life}, func(err error) { done <- err })
	if err := <-done; err != nil {
		return err
	}
	next := newStream(3, 20, 1) // tenures count within a life here, and begin anew
	a.send(copywire.AppendOpen(nil, next.SlotLife, 1, list(0)))
	a.send(copywire.AppendFrame(nil, next.frame(0, 2)))
	a.send(copywire.AppendFrame(nil, s.frame(0, 2)))
	if err := errors.Join(a.settled(), w.is("next life", next, 0), w.isNot("old life", s, 0)); err != nil {
		return err
	}
	// A retirement that comes late takes nothing away.
	w.owner.Retire(catalog.Retired{Group: uint32(s.Group), Slot: uint32(s.Slot), Life: s.Life}, func(err error) { done <- err })
	return errors.Join(<-done, w.is("still", next, 0))
}

func peerForgotten(w *world) error {
	_, s, err := opened(w)
	if err != nil {
		return err
	}
	w.owner.Forget("a")
	w.owner.Forget("nobody")
	if !w.await(func() bool { st := w.owner.Stats(); return st.Copies == 0 && st.Sessions == 0 }) {
		return fmt.Errorf("stats %+v", w.owner.Stats())
	}
	return errors.Join(w.isNot("forgotten", s, 0), w.isNot("forgotten", s, 5))
}
