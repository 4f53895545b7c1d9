package owner

import (
	"errors"
	"fmt"
	"testing"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
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
	"fenced by the log":           fencedByTheLog,
	"a peer is forgotten":         peerForgotten,
	"life after life":             lifeAfterLife,
	"dump in chunks":              dumpInChunks,
	"no room for dumps":           noRoomForDumps,
	"carried on":                  carriedOn,
	"cursor behind a lapse":       cursorBehindALapse,
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
		"fenced by the log, and read":      {mutant{fencedOpen: true}, "fenced by the log"},
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
		"cursor for what was left out":     {mutant{cursorForKept: true}, "cursor behind a lapse"},
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
