package ingest

import (
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

// A rank whose life began before the tenure was fed by another node, or by an earlier
// process of this one. What its slot holds is not known here, and nothing of it can be
// continued without proof (rules T1-T4), so the slot starts over: a new life (rule G1),
// filled from the oldest batch that the engine still has.

// takeover tells people how a source came here.
type takeover struct {
	at      time.Time // zero = it began here
	done    bool
	batches uint64
}

// takeoverNote is for how long a takeover is told of.
const takeoverNote = 10 * time.Minute

// replayed notes how many batches the first replay brought.
func (o *takeover) replayed(batches uint64) {
	if !o.at.IsZero() && !o.done {
		o.done, o.batches = true, batches
	}
}

func (o *takeover) text(now time.Time) string {
	switch {
	case o.at.IsZero() || now.Sub(o.at) > takeoverNote:
		return ""
	case !o.done:
		return "taken over from another node: starting over"
	}
	return fmt.Sprintf("taken over from another node: started over, %d batches replayed", o.batches)
}

// takingOver says whether the stream waits for lives of slots that were taken over. It
// begins only then: its first replay goes straight into the translators, however much
// it brings.
func (st *stream) takingOver() bool {
	for _, sl := range st.src.slots {
		if st.feeds(sl) && sl.taking {
			return true
		}
	}
	return false
}

// takeOver takes a rank whose life another ingest wrote: nothing is written under it
// from here, and a new life is asked for.
func (sl *slot) takeOver(r catalog.Rank) {
	s := sl.src
	if s.over.at.IsZero() {
		s.over.at = s.loop.tl.Now()
	}
	sl.reg = r
	sl.taking, sl.over = true, true
	sl.await()
	s.note("taken over: the slot starts over", "rank", r.Rank, "slot", r.Slot, "life", r.Life, "tenure", s.tenure)
}
