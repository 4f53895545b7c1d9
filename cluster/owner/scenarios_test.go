package owner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

// scenarios are what an owner has to stand. Each returns the first thing that is wrong.
var scenarios = map[string]func(w *world) error{
	"open and write":              openAndWrite,
	"ack after apply":             ackAfterApply,
	"closed copies take nothing":  closedCopies,
	"old tenure":                  oldTenure,
	"dump at the fence":           dumpAtFence,
	"session change":              sessionChange,
	"silence":                     silence,
	"fill during a query":         fillDuringQuery,
	"open after apply":            openAfterApply,
	"fault during a fill":         faultDuringFill,
	"fault of an open copy":       faultOfOpen,
	"reopen":                      reopen,
	"adopt waits":                 adoptWaits,
	"takeover by fill waits":      takeoverByFill,
	"purge waits":                 purgeWaits,
	"broken is told again":        brokenToldAgain,
	"malformed message":           malformedMessage,
	"dumps of what is not open":   dumpNotOpen,
	"local copies":                localCopies,
	"taken over from this node":   takenFromHere,
	"taken over to this node":     takenToHere,
	"a peer is forgotten":         peerForgotten,
	"life after life":             lifeAfterLife,
	"dump in chunks":              dumpInChunks,
	"no room for dumps":           noRoomForDumps,
	"carried on":                  carriedOn,
	"two writers change places":   changePlaces,
	"faulty frame of bad format":  badFormat,
	"wait for a fence that comes": fenceComesLater,
}

func TestScenarios(t *testing.T) {
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			if err := inWorld(t, mutant{}, run); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMutants: each rule is missed by a scenario when it is switched off.
func TestMutants(t *testing.T) {
	for name, c := range map[string]struct {
		m        mutant
		scenario string
	}{
		"closed frame applied":             {mutant{closedFrame: true}, "closed copies take nothing"},
		"old tenure taken":                 {mutant{oldTenure: true}, "old tenure"},
		"fenced copies can be read":        {mutant{fencedOpen: true}, "old tenure"},
		"ack before apply":                 {mutant{earlyAck: true}, "ack after apply"},
		"dump not at the fence":            {mutant{lateDump: true}, "dump at the fence"},
		"session change closes nothing":    {mutant{keepCopies: true}, "session change"},
		"resume before apply":              {mutant{earlyResume: true}, "silence"},
		"silence ended during a query":     {mutant{noMark: true}, "silence"},
		"fill ended during a query":        {mutant{noMark: true}, "fill during a query"},
		"open before apply":                {mutant{earlyOpen: true}, "open after apply"},
		"open in spite of a fault":         {mutant{openFaulty: true}, "fault during a fill"},
		"open of a copy with content":      {mutant{reopen: true}, "reopen"},
		"adopt does not wait":              {mutant{adoptNoWait: true}, "adopt waits"},
		"fill does not wait for others":    {mutant{adoptNoWait: true}, "takeover by fill waits"},
		"purge does not wait":              {mutant{purgeNoWait: true}, "purge waits"},
		"broken copies are told only once": {mutant{forgetBroken: true}, "broken is told again"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := inWorld(t, c.m, scenarios[c.scenario]); err == nil {
				t.Errorf("%q does not notice", c.scenario)
			} else {
				t.Log(err)
			}
		})
	}
}

// opened starts a sender with one slot, two partitions of which are open and have
// content.
func opened(w *world) (*sender, *stream, error) {
	a := w.start("a")
	s := newStream(3, 10, 4)
	a.send(copywire.AppendOpen(nil, s.SlotLife, s.tenure, list(0, 5)))
	a.send(copywire.AppendFrame(nil, s.frame(0, 3)))
	a.send(copywire.AppendFrame(nil, s.frame(5, 2)))
	return a, s, a.settled()
}

func openAndWrite(w *world) error {
	a, s, err := opened(w)
	for _, p := range list(0, 5) {
		err = errors.Join(err, w.is("written", s, p))
	}
	if err != nil {
		return err
	}
	a.send(copywire.AppendFrame(nil, s.drop(0, 2)))
	for range 100 {
		a.send(copywire.AppendFrame(nil, s.frame(5, 1)))
	}
	a.send(copywire.AppendCursor(nil, copywire.Cursor{SlotLife: s.SlotLife, Tenure: 4, Sequence: s.seq, Digest: 99}))
	if err := a.settled(); err != nil {
		return err
	}
	if err := errors.Join(w.is("later", s, 0), w.is("later", s, 5), w.isNot("another partition", s, 6), w.isNot("another slot", newStream(4, 10, 4), 0)); err != nil {
		return err
	}
	if w.readable(newStream(3, 11, 4), 0, w.owner.Mark()) {
		return errors.New("another life is readable")
	}
	a.send(copywire.AppendClose(nil, s.SlotLife, 4, list(5, 77)))
	if err := a.settled(); err != nil {
		return err
	}
	l := w.owner.Labels(s.SlotLife)
	want := copywire.Label{Partition: 0, Current: true, Tenure: 4, Sequence: 3}
	if len(l.Copies) != 1 || l.Copies[0] != want || l.Cursor.Sequence != s.seq || l.Cursor.Digest != 99 {
		return fmt.Errorf("labels %+v, want %+v and the cursor at %d", l, want, s.seq)
	}
	st := w.owner.Stats()
	if st.Open != 1 || st.Copies != 1 || st.Readable != 1 || st.Frames != 103 || st.Sessions != 1 || st.Bytes == 0 {
		return fmt.Errorf("stats %+v", st)
	}
	return errors.Join(w.is("other closed", s, 0), w.isNot("closed", s, 5))
}

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

func closedCopies(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	other := newStream(8, 11, 4)
	a.send(copywire.AppendFrame(nil, other.frame(0, 1)))                                   // a slot that never was
	a.send(copywire.AppendFrame(nil, newStream(3, 10, 4).frame(9, 1)))                     // a partition that is not open
	a.send(copywire.AppendFrame(nil, newStream(3, 9, 4).frame(0, 1)))                      // another life
	a.send(copywire.AppendClose(nil, s.SlotLife, 4, list(5)))                              //
	a.send(copywire.AppendFrame(nil, newStream(3, 10, 4).frame(5, 1)))                     // a closed one
	a.send(copywire.AppendFill(nil, false, true, newStream(3, 10, 4).frame(5, 1)))         // the end of a fill without its beginning
	a.send(copywire.AppendClose(nil, newStream(3, 9, 4).SlotLife, 4, list(0)))             // another life
	a.send(copywire.AppendCursor(nil, copywire.Cursor{SlotLife: other.SlotLife}))          // nothing of it is here
	a.send(copywire.AppendOpen(nil, newStream(3, 9, 4).SlotLife, 4, list(0)))              // an older life
	a.send(copywire.AppendFill(nil, true, true, clearFrame(newStream(3, 9, 4).header(0)))) // the same
	if err := a.settled(); err != nil {
		return err
	}
	if have := w.have(other, 0) + w.have(s, 9); have != "" {
		return fmt.Errorf("applied: %s", have)
	}
	if have, want := w.have(s, 5), s.want(5); have != want {
		return fmt.Errorf("closed copy has %s, had %s", have, want)
	}
	if got := w.owner.Stats().Ignored; got["closed"] != 3 && got["closed"] != 2 || got["life"] < 6 {
		return fmt.Errorf("ignored: %v", got)
	}
	return errors.Join(w.is("still open", s, 0), w.isNot("closed", s, 5))
}

func clearFrame(h indexer.Header) indexer.Frame {
	var b indexer.FrameBuilder
	b.Reset(h)
	b.Clear(indexer.AllTiers)
	return b.Frame()
}

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

func fetch(s *sender, token uint64) ([]copywire.Copy, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return copywire.Fetch(ctx, s.call, token, 1<<30)
}

func dumpAtFence(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	w.index.shut()
	a.send(copywire.AppendFrame(nil, s.frame(0, 2)))
	a.send(copywire.AppendFrame(nil, s.drop(5, 1)))
	want := []string{s.want(0), s.want(5), ""}
	seq := []uint64{3, 4, 0}
	a.send(copywire.AppendFence(nil, 77, s.SlotLife, list(0, 5, 6)))
	a.send(copywire.AppendFrame(nil, s.frame(0, 1)))
	a.send(copywire.AppendFrame(nil, s.drop(5, 1)))
	time.Sleep(100 * time.Millisecond)
	w.index.open()
	d, err := fetch(a, 77)
	if err != nil {
		return err
	}
	for i, c := range d {
		if text(c.Stretches) != want[i] || c.Open != (i < 2) || c.Sequence != seq[i] || i < 2 && c.Tenure != 4 {
			return fmt.Errorf("dump of partition %d: %+v, want %s at %d", c.Partition, c, want[i], seq[i])
		}
	}
	if len(d) != 3 || w.owner.Stats().DumpsKept != 0 {
		return fmt.Errorf("%d copies, %d dumps kept", len(d), w.owner.Stats().DumpsKept)
	}
	return errors.Join(a.settled(), w.is("behind the fence", s, 0), w.is("behind the fence", s, 5))
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

func dumpNotOpen(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	s.frame(0, 1)
	a.send(s.fill(0)[0][:])
	a.send(copywire.AppendFill(nil, true, false, clearFrame(s.header(5))))
	a.send(copywire.AppendFence(nil, 1, s.SlotLife, list(0, 5, 9)))
	a.send(copywire.AppendFence(nil, 2, newStream(3, 11, 4).SlotLife, list(0)))
	d, err := fetch(a, 1)
	if err != nil || len(d) != 3 || !d[0].Open || d[1].Open || d[2].Open || len(d[1].Stretches) != 0 {
		return fmt.Errorf("dump %+v, %v", d, err)
	}
	if d, err = fetch(a, 2); err != nil || len(d) != 1 || d[0].Open {
		return fmt.Errorf("dump of another life %+v, %v", d, err)
	}
	d, err = copywire.Peek(context.Background(), a.call, copywire.PeekRequest{SlotLife: s.SlotLife}, 1<<20)
	if err != nil || len(d) != 1 || d[0].Partition != 0 || text(d[0].Stretches) != s.want(0) {
		return fmt.Errorf("peek %+v, %v", d, err)
	}
	d, err = copywire.Peek(context.Background(), a.call, copywire.PeekRequest{SlotLife: newStream(77, 1, 1).SlotLife}, 1<<20)
	if err != nil || len(d) != 0 {
		return fmt.Errorf("peek of nothing %+v, %v", d, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if _, err := copywire.Fetch(ctx, a.call, 1, 1<<20); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("fetched twice: %v", err)
	}
	if !w.await(func() bool { return w.owner.Stats().DumpsKept == 0 }) {
		return fmt.Errorf("%d dumps kept", w.owner.Stats().DumpsKept)
	}
	return nil
}

// fenceComesLater: the call is there before the fence.
func fenceComesLater(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	got := make(chan error, 1)
	go func() {
		d, err := fetch(a, 5)
		if err == nil && text(d[0].Stretches) != s.want(0) {
			err = fmt.Errorf("dump %+v", d)
		}
		got <- err
	}()
	time.Sleep(200 * time.Millisecond)
	a.send(copywire.AppendFence(nil, 5, s.SlotLife, list(0)))
	return <-got
}

func dumpInChunks(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	for range 3 {
		a.send(copywire.AppendFrame(nil, s.frame(0, 20_000)))
	}
	a.send(copywire.AppendFence(nil, 1, s.SlotLife, list(0, 5)))
	a.send(copywire.AppendFence(nil, 2, s.SlotLife, list(0)))
	d, err := fetch(a, 1)
	if err != nil || len(d) != 2 || text(d[0].Stretches) != s.want(0) || text(d[1].Stretches) != s.want(5) {
		return fmt.Errorf("%d copies, %v", len(d), err)
	}
	if _, err := copywire.Fetch(context.Background(), a.call, 2, 1<<20); !errors.Is(err, copywire.ErrTooLarge) {
		return fmt.Errorf("fetched more than the limit: %v", err)
	}
	d, err = copywire.Peek(context.Background(), a.call, copywire.PeekRequest{SlotLife: s.SlotLife, Partitions: list(0)}, 1<<30)
	if err != nil || len(d) != 1 || text(d[0].Stretches) != s.want(0) {
		return fmt.Errorf("peek: %d copies, %v", len(d), err)
	}
	// What nobody goes on fetching is forgotten.
	if !w.owner.dumpsForgotten() {
		time.Sleep(time.Minute)
	}
	if n := w.owner.Stats().DumpsKept; n != 0 {
		return fmt.Errorf("%d dumps kept", n)
	}
	return nil
}

func (o *Owner) dumpsForgotten() bool { return o.dumps.len() == 0 }

func noRoomForDumps(w *world) error {
	a, s, err := opened(w)
	if err != nil {
		return err
	}
	for token := range uint64(70) {
		a.send(copywire.AppendFence(nil, token, s.SlotLife, list(0)))
	}
	if err := a.settled(); err != nil {
		return err
	}
	if d, err := fetch(a, 63); err != nil || len(d) != 1 {
		return fmt.Errorf("the last that there is room for: %v", err)
	}
	if _, err := fetch(a, 64); !errors.Is(err, ErrBusy) {
		return fmt.Errorf("one too many: %v", err)
	}
	// A new session of the peer has no use for what the old one asked for.
	a = w.start("a")
	if !w.await(w.owner.dumpsForgotten) {
		return fmt.Errorf("%d dumps kept", w.owner.Stats().DumpsKept)
	}
	return nil
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
