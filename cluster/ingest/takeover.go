package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// A rank whose life began before the tenure was fed by another node, or by an earlier
// process of this one. What its slot holds is asked of the owners; if the engine's replay
// proves that it is still the same run, its life goes on (rules T1-T4, inherit.go).
// Otherwise the slot starts over: a new life (rule G1), filled from the oldest batch that
// the engine still has.

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

func (o *takeover) text(now time.Time, sl *slot) string {
	if o.at.IsZero() || now.Sub(o.at) > takeoverNote {
		return ""
	}
	const from = "taken over from another node: "
	start := "started over"
	if sl.heir.why != "" {
		start += " (" + sl.heir.why + ")"
	}
	switch h := &sl.heir; {
	case h.asked:
		return from + "asking the owners for its blocks"
	case !o.done && h.parts > 0:
		return fmt.Sprintf("%s%d blocks kept, asking the engine what came since", from, h.kept)
	case !o.done:
		return from + "starting over"
	case h.parts > 0:
		return fmt.Sprintf("%s%d blocks kept, %d batches replayed", from, h.kept, o.batches)
	}
	return fmt.Sprintf("%s%s, %d batches replayed", from, start, o.batches)
}

// takingOver says whether the stream waits for what becomes of slots that were taken
// over. It begins only then: its first replay goes straight into the translators,
// however much it brings, and begins where it has to.
func (st *stream) takingOver() bool {
	for _, sl := range st.src.slots {
		if st.feeds(sl) && sl.taking {
			return true
		}
	}
	return false
}

// takeOver takes a rank whose life another ingest wrote.
func (sl *slot) takeOver(r catalog.Rank) {
	s, l := sl.src, sl.src.loop
	if s.over.at.IsZero() {
		s.over.at = l.tl.Now()
	}
	sl.reg = r
	sl.taking, sl.over, sl.waiting = true, true, true
	sl.fill = filling{token: sl.fill.token + 1}
	sl.acked = acknowledged{}
	if l.m.deps.Takeover == nil {
		sl.startOver("")
		return
	}
	sl.own = true
	if !sl.canBeFilled() {
		sl.startOver("no replay endpoint")
		return
	}
	h := &sl.heir
	h.token++
	h.asked, h.until = true, l.tl.Now().Add(l.cfg.AdoptTimeout)
	token := h.token
	l.m.deps.Takeover.Adopt(s.group(), indexer.Slot(r.Slot), r.Life, s.tenure, func(in Inheritance, err error) {
		l.tl.Post(func() { sl.adopted(token, in, err) })
	})
}

// startOver asks for a new life in place of one that was taken over. Nothing has been
// written under it.
func (sl *slot) startOver(why string) {
	s := sl.src
	if sl.own && s.loop.m.disown(catalog.Retired{Group: s.spec.Group.ID, Slot: sl.reg.Slot, Life: sl.reg.Life}) {
		sl.own = false
	}
	sl.heir = inherited{token: sl.heir.token + 1, why: why}
	sl.await()
	s.note("taken over: the slot starts over", "rank", sl.rank, "slot", sl.reg.Slot, "life", sl.reg.Life, "tenure", s.tenure, "why", why)
}

// inherited is what a slot knows of a life that it goes on with.
type inherited struct {
	asked    bool // the owners
	until    time.Time
	token    uint64 // late answers are ignored
	unproved bool   // the engine has not yet shown that it is the same run
	proof    cursor
	parts    int    // partitions; 0 = nothing was inherited
	kept     int    // blocks
	why      string // it was not

	told   uint64 // sequence of the latest Cursor, plus 1
	again  int    // times that it was not said again
	voided bool   // they know that nobody can go on with it
	tellAt time.Time
}

// retell is how often a cursor that stays as it is is said all the same: owners that came
// later do not have it.
const retell = 10

// errUnsound: the content is known to be more than a dump tells.
var errUnsound = errors.New("its hashes contradict each other or its content is doubtful")

// adopted goes on with what the owners have.
func (sl *slot) adopted(token uint64, in Inheritance, err error) {
	h := &sl.heir
	if !h.asked || h.token != token {
		return
	}
	h.asked = false
	if err == nil {
		err = sl.inherit(in)
	}
	if err != nil {
		sl.startOver(err.Error())
		return
	}
	sl.taking, sl.waiting = false, false
	sl.src.note("taken over: the life goes on", "rank", sl.rank, "slot", sl.reg.Slot, "life", sl.reg.Life, "tenure", sl.src.tenure,
		"blocks", h.kept, "batch", h.proof.seq)
	sl.src.goOn()
}

// inherit makes the translator. The lowest cursor is where the batches are given again
// from: the engine has to show it (rule T3 ii), and no copy is older.
func (sl *slot) inherit(in Inheritance) error {
	l := sl.src.loop
	if len(in.Cursors) == 0 {
		return errors.New("no owner knows how far it had come")
	}
	for _, c := range in.Cursors {
		if noteOf(c.Digest) == unsound {
			return errUnsound
		}
	}
	low := slices.MinFunc(in.Cursors, func(a, b Cursor) int { return cmp.Compare(a.Sequence, b.Sequence) })
	if len(in.Parts) != int(l.cfg.Layout.Partitions) {
		return fmt.Errorf("%d of %d partitions", len(in.Parts), l.cfg.Layout.Partitions)
	}
	for _, p := range in.Parts {
		if uint32(p.Partition) >= l.cfg.Layout.Partitions || p.Cursor < low.Sequence {
			return fmt.Errorf("partition %d at batch %d", p.Partition, p.Cursor)
		}
	}
	tr := sl.newTranslator()
	heir, ok := tr.(translate.Heir)
	sl.tr = tr
	if !ok {
		sl.release()
		return translate.ErrInherit
	}
	kept, loose, err := heir.Inherit(in.Parts)
	if err != nil {
		sl.release()
		return err
	}
	sl.heir = inherited{
		token: sl.heir.token, unproved: true, parts: len(in.Parts), kept: kept,
		proof: cursor{set: true, seq: low.Sequence, digest: low.Digest, inherited: true},
	}
	sl.n.Inherited += uint64(kept)
	sl.n.InheritedLoose += uint64(loose)
	sl.groups = groupOf(noteOf(low.Digest))
	return nil
}

// settleHeirs lets a stream that begins anew for some of its slots do so for all: it
// has one beginning. The same where nothing can be proved.
func (st *stream) settleHeirs() {
	if st.cur.set || st.takingOver() {
		return
	}
	why := ""
	for _, sl := range st.src.slots {
		if st.feeds(sl) && sl.over && !sl.heir.unproved {
			why = "another rank of its stream starts over"
		}
	}
	if why == "" && !st.canReplay() {
		why = "no replay"
	}
	for _, sl := range st.src.sorted() {
		if why != "" && st.feeds(sl) && sl.heir.unproved {
			sl.renew(why)
		}
	}
}

// inherit sets the cursor of a stream whose slots go on with lives of others: the lowest
// that any of them has.
func (st *stream) inherit() bool {
	if st.cur.set {
		return false
	}
	for _, sl := range st.src.slots {
		if p := sl.heir.proof; st.feeds(sl) && sl.heir.unproved && (!st.cur.set || p.seq < st.cur.seq) {
			st.cur = p
		}
	}
	return st.cur.set
}

// verify compares a batch that the engine has just shown with the proofs of lives that
// go on. Before its proof a slot is given nothing that its owners do not have already.
func (st *stream) verify(seq, digest uint64) {
	for _, sl := range st.src.slots {
		if h := &sl.heir; h.unproved && st.feeds(sl) && h.proof.seq == seq {
			if h.proof.is(digest) {
				h.unproved, sl.used = false, true
				sl.hasSeq, sl.seq, sl.acked.behind = true, seq, true
			} else {
				sl.renew(fmt.Sprintf("batch %d has other content than before: the engine restarted", seq))
			}
		}
	}
}

// renewUnproved ends the lives whose proof did not come before the live batches.
func (st *stream) renewUnproved() {
	for _, sl := range st.src.sorted() {
		if st.feeds(sl) && sl.heir.unproved {
			sl.renew(fmt.Sprintf("the engine does not know batch %d", sl.heir.proof.seq))
		}
	}
}

// tickHeir gives up on owners that do not answer, and tells them how far the slot is.
func (sl *slot) tickHeir(now time.Time) {
	h := &sl.heir
	if h.asked && !now.Before(h.until) {
		h.asked = false
		sl.startOver("the owners did not answer")
	}
	if now.Before(h.tellAt) {
		return
	}
	h.tellAt = now.Add(sl.src.loop.cfg.CursorEvery)
	sl.tellCursor()
}

// The low 16 bits of a Cursor's digest say what is known of the slot besides its blocks
// as of that batch: the cache group that is indexed, or that the life cannot be continued
// by anybody else. The other 48 are those of the payload's digest.
const (
	noGroup = 0
	unsound = 0xffff // otherwise the number of the group plus 1
)

func noteOf(digest uint64) uint16          { return uint16(digest) }
func sameBatch(cursor, digest uint64) bool { return (cursor^digest)>>16 == 0 }

func groupOf(note uint16) (g groupFilter) {
	if note != noGroup {
		g.has, g.chosen = true, int64(note)-1
		g.kinds = map[int64]bool{g.chosen: true}
	}
	return g
}

func (sl *slot) cursorNote(sound bool) uint16 {
	switch {
	case !sound || sl.heir.voided || sl.degraded != "" || sl.short() || sl.groups.has && sl.groups.chosen >= unsound-1:
		return unsound
	case sl.groups.has:
		return uint16(sl.groups.chosen) + 1
	}
	return noGroup
}

// short says whether a stream that feeds the slot began late: what it lacks may be had
// later, and who goes on with the life would not know that.
func (sl *slot) short() bool {
	for _, st := range sl.src.streams {
		if st.short && st.feeds(sl) {
			return true
		}
	}
	return false
}

// tellCursor tells the owners how far the slot has come, if they do not know yet. Blocks
// whose parent is not known are in no dump, so the cursor stays before the batch that brought
// the oldest of them, as far back as batches are remembered: a replay from there brings them
// again, and changes nothing in partitions that are further (rule T4). This stands for
// rule N9.
func (sl *slot) tellCursor() {
	s := sl.src
	tell := s.loop.m.deps.Cursor
	h, ok := sl.tr.(translate.Heir)
	if tell == nil || !ok || sl.waiting || sl.heir.unproved || h.Inheriting() {
		return
	}
	for _, st := range s.streams {
		if !st.feeds(sl) || !st.cur.set || st.cur.inherited || st.conflict != nil {
			continue
		}
		seq, digest := st.cur.seq, st.cur.digest
		if first, waits := h.Orphaned(); waits && first > 0 && first <= seq {
			if d, ok := st.seen.get(first - 1); ok {
				seq, digest = first-1, d
			}
		}
		if told := seq + 1; told != sl.heir.told {
			sl.heir.told, sl.heir.again = told, 0
		} else if sl.heir.again++; sl.heir.again%retell != 0 {
			return
		}
		tell(sl.cursor(seq, digest, sl.cursorNote(h.Sound())))
	}
}

// tellUnsound tells them, before the frames of the batch at hand, that nobody can go on
// with this life: so no owner ever has frames of it that do not say so.
func (sl *slot) tellUnsound(seq uint64) {
	if h, ok := sl.tr.(translate.Heir); ok && !sl.heir.voided && !h.Sound() {
		sl.void(max(seq, 1) - 1)
	}
}

// void tells the owners that nobody can go on with this life. It comes before any frame
// that makes it so.
func (sl *slot) void(seq uint64) {
	sl.heir.voided = true
	if tell := sl.src.loop.m.deps.Cursor; tell != nil {
		tell(sl.cursor(seq, 0, unsound))
	}
}

func (sl *slot) cursor(seq, digest uint64, note uint16) Cursor {
	return Cursor{
		Group: sl.src.group(), Slot: indexer.Slot(sl.reg.Slot), Life: sl.reg.Life, Tenure: sl.src.tenure,
		Sequence: seq, Digest: digest&^0xffff | uint64(note),
	}
}
