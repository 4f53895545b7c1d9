package ingest

import (
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// A source that was taken over may lack what only its earlier reader knew: that one may
// have gone on without an owner that this one continues from, and then only the engine
// knows more; or the slot starts over, empty, although its engine is not. The catalog calls
// its ranks filling, and answers without them are not complete, until their reader says
// that they have what the engine can be asked for:
//
//	taken over          its streams are live        all of it applied        in the log
//	---|-----------------------|---------------------------|---------------------|
//	   | batches from the engine's buffer                  | Log.Filled          | complete
//
// An engine that does not answer is not waited for longer than Config.FillPatience: what
// it held is unknown then, and its stream's warning says so.

// filling is how far that is.
type filling struct {
	since   time.Time   // this reader has had the slot; zero = not yet
	written bool        // what is said by now is all that there was to ask for
	reached func() bool // it is applied where it must be
	asked   bool        // Log.Filled is under way
	at      time.Time
	backoff time.Duration
	token   uint64 // late answers are ignored
}

// tickFilling says that the slot is whole, when it is.
func (sl *slot) tickFilling(now time.Time) {
	f, l := &sl.fill, sl.src.loop
	if !sl.reg.Filling || sl.waiting || sl.heir.unproved {
		f.written = false
		return
	}
	if f.since.IsZero() {
		f.since = now
	}
	if !sl.asFullAsCanBe(now) {
		f.written = false
		return
	}
	if !f.written {
		f.written, f.reached = true, sl.reach()
	}
	if f.asked || now.Before(f.at) || !f.reached() {
		return
	}
	f.asked, f.token = true, f.token+1
	token := f.token
	l.m.deps.Log.Filled(sl.src.spec.Instance, sl.rank, sl.reg.Life, func(err error) {
		l.tl.Post(func() {
			if f := &sl.fill; f.token == token {
				// The flag itself goes away with a view.
				f.asked = false
				f.backoff = min(max(2*f.backoff, l.cfg.RetryMin), l.cfg.RetryMax)
				f.at = l.tl.Now().Add(f.backoff)
			}
		})
	})
}

// reach returns what says that all there is of the slot now is applied at all who answer
// for this reader's copies of it. A node to which the takeover is news may answer for a
// while from what the earlier reader wrote, and a dead one is waited for, and both delay
// acknowledgements; but who has Filled in its map knows of the takeover.
func (sl *slot) reach() func() bool {
	w := sl.src.loop.w
	if r, ok := w.(interface {
		Reach(indexer.GroupID, indexer.Slot) func() bool
	}); ok {
		return r.Reach(sl.src.group(), indexer.Slot(sl.reg.Slot))
	}
	mark := w.Written()
	return func() bool { return w.Applied() >= mark }
}

// asFullAsCanBe says whether nothing more of the past is to be expected.
func (sl *slot) asFullAsCanBe(now time.Time) bool {
	if !sl.canBeFilled() {
		return true
	}
	if now.Sub(sl.fill.since) >= sl.src.loop.cfg.FillPatience {
		for _, st := range sl.src.streams {
			if st.feeds(sl) && st.state == replaying && st.rep != nil && st.rep.progress {
				return false
			}
		}
		return true
	}
	for _, st := range sl.src.streams {
		if st.feeds(sl) && (st.state != live || st.short || st.hurried) {
			return false
		}
	}
	return len(sl.src.streams) > 0
}

// canBeFilled says whether the engine can be asked for what it holds.
func (sl *slot) canBeFilled() bool {
	rank := int64(-1)
	if sl.src.bindsHere() {
		rank = int64(sl.rank)
	}
	return sl.src.replayEndpoint(rank) != ""
}
