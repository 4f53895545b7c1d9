package search

import (
	"context"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// Searcher is a handle for one querying goroutine at a time. It is an indexer.Reader of
// the whole cluster:
//
//	Begin
//	any questions; after each, Pin says by which map index its slots are to be read
//	Completeness
type Searcher struct {
	s       *Search
	reader  indexer.Reader
	scratch *scratch
	local   answer // of this node
	remote  answer // of the last call

	// The request.
	ctx      context.Context
	deadline time.Time
	lacks    lacks

	// The question under way.
	question question
	started  bool    // an owner has answered
	pin      uint64  // map index of the first answer
	open     slotSet // after the first answer: slots that nobody could read yet
	next     slotSet // memory
	seen     bitSet  // memory
	asked    []*peer
	failures []failure
}

// NewSearcher returns a handle; Close gives it back.
func (s *Search) NewSearcher() *Searcher {
	return &Searcher{s: s, reader: s.deps.Index.NewReader(), scratch: newScratch()}
}

// Close gives the handle back.
func (x *Searcher) Close() { x.reader.Close() }

// Begin starts a request. All questions until Completeness share its deadline.
func (x *Searcher) Begin(ctx context.Context) {
	x.ctx, x.deadline = ctx, time.Time{}
	x.lacks.reset()
}

// Pin returns the map index under which the last question was answered. The node's view
// is at or above it. A slot of the answer belongs to the life that has it in a view taken
// since, if that life began at or before the pin; else to nobody.
func (x *Searcher) Pin() uint64 { return x.pin }

// Match implements indexer.Reader for the whole cluster.
func (x *Searcher) Match(q indexer.Query, out *indexer.Scores) {
	x.question.kind, x.question.query = kindMatch, q
	x.local.scores = *out
	x.ask()
	*out, x.local.scores = x.local.scores, indexer.Scores{}
}

// Explain implements indexer.Reader for the whole cluster.
func (x *Searcher) Explain(q indexer.Query, slot indexer.Slot, dst []indexer.BlockState) []indexer.BlockState {
	x.question.kind, x.question.query, x.question.slot = kindExplain, q, slot
	x.ask()
	for i := range q.Locals {
		var state indexer.BlockState
		if i < len(x.local.states) {
			state = x.local.states[i]
		}
		dst = append(dst, state)
	}
	return dst
}

// AppendPath implements indexer.SequenceReader for the whole cluster.
func (x *Searcher) AppendPath(dst []uint64, q indexer.SequenceQuery) []uint64 {
	x.question.kind, x.question.before = kindPath, q.Before
	x.question.query = indexer.Query{Group: q.Group, Partition: q.Partition, Anchor: q.Anchor, Locals: q.Sequence}
	x.ask()
	return append(dst, x.local.path...)
}

// Prefixes appends the prefix of every row's slot; a row's depth is how far its tier walk
// gets, as far as that is known.
func (x *Searcher) Prefixes(q indexer.Query, rows []indexer.Row, dst []indexer.Prefix) []indexer.Prefix {
	x.question.kind, x.question.query, x.question.rows = kindPrefix, q, rows
	x.ask()
	for i := range rows {
		var p indexer.Prefix
		if i < len(x.local.prefixes) {
			p = x.local.prefixes[i]
		}
		dst = append(dst, p)
	}
	x.question.rows = nil
	return dst
}

// ask answers x.question into x.local: by the trees of this node when it is a ready
// owner, and by others for what is left.
func (x *Searcher) ask() {
	x.collect()
	x.next.reset()
	if x.lacks.filling(x, x.s.deps.View(), &x.next); len(x.next.list) > 0 {
		x.leaveOut(&x.local, &x.next)
	}
}

func (x *Searcher) collect() {
	s := x.s
	x.started, x.pin, x.failures = false, 0, x.failures[:0]
	x.open.reset()
	x.question.index = 0
	s.read(x.reader, x.scratch, &x.question, &x.local)
	if x.local.status == statusOK {
		s.count.local.Add(1)
		x.first(s.cfg.Name, &x.local)
		if len(x.open.list) == 0 {
			return
		}
	} else {
		x.local.empty()
	}
	x.askOthers()
}

// empty leaves nothing of an answer.
func (a *answer) empty() {
	a.scores.Rows, a.scores.Tiers = a.scores.Rows[:0], a.scores.Tiers[:0]
	a.states, a.path, a.prefixes, a.unreadable = a.states[:0], a.path[:0], a.prefixes[:0], a.unreadable[:0]
}

// first takes the first answer to the question, which is in x.local: it gives the pin,
// and what it says about slots that its owner cannot read is taken out.
func (x *Searcher) first(owner string, a *answer) {
	x.started, x.pin = true, a.index
	x.proof(owner, a)
	if len(a.unreadable) == 0 {
		return
	}
	for _, slot := range a.unreadable {
		if x.concerns(slot) {
			x.open.add(slot)
		}
	}
	if len(x.open.list) == 0 {
		return
	}
	x.s.count.unreadable.Add(uint64(len(x.open.list)))
	x.leaveOut(a, &x.open)
}

// leaveOut takes out of an answer what it says about slots, some of which the question
// concerns.
func (x *Searcher) leaveOut(a *answer, slots *slotSet) {
	switch x.question.kind {
	case kindMatch:
		a.scores.Rows = keepRows(a.scores.Rows, func(s indexer.Slot) bool { return !slots.has(s) })
		a.scores.Tiers = keepTiers(a.scores.Tiers, func(s indexer.Slot) bool { return !slots.has(s) })
	case kindExplain:
		a.states = a.states[:0]
	case kindPrefix:
		for i, row := range x.question.rows {
			if slots.has(row.Slot) && i < len(a.prefixes) {
				a.prefixes[i] = indexer.Prefix{}
			}
		}
	}
}

// concerns reports whether the question is about a slot.
func (x *Searcher) concerns(slot indexer.Slot) bool {
	switch x.question.kind {
	case kindExplain:
		return slot == x.question.slot
	case kindPrefix:
		for _, row := range x.question.rows {
			if row.Slot == slot {
				return true
			}
		}
		return false
	}
	return true
}

// further takes another owner's answer for the slots that are open. Its pin is at or
// above that of the first answer, so the lives of that one are known to it.
func (x *Searcher) further(owner string, a *answer) {
	x.proof(owner, a)
	x.next.reset()
	for _, slot := range a.unreadable {
		if x.open.has(slot) {
			x.next.add(slot)
		}
	}
	resolved := func(s indexer.Slot) bool { return x.open.has(s) && !x.next.has(s) }
	to := &x.local
	switch x.question.kind {
	case kindMatch:
		to.scores.Rows = append(to.scores.Rows, keepRows(a.scores.Rows, resolved)...)
		to.scores.Tiers = append(to.scores.Tiers, keepTiers(a.scores.Tiers, resolved)...)
	case kindExplain:
		if resolved(x.question.slot) {
			to.states = append(to.states[:0], a.states...)
		}
	case kindPath:
		// Both begin the same sequence, so the longer one goes on where the other ends.
		if len(a.path) > len(to.path) {
			to.path = append(to.path[:0], a.path...)
		}
	case kindPrefix:
		for i, row := range x.question.rows {
			if resolved(row.Slot) {
				to.prefixes[i] = a.prefixes[i]
			}
		}
	}
	x.open, x.next = x.next, x.open
}

// proof takes note of an owner that could not prove its map.
func (x *Searcher) proof(owner string, a *answer) {
	if !a.current {
		x.lacks.stale(owner, a.age)
	}
}

func keepRows(rows []indexer.Row, keep func(indexer.Slot) bool) []indexer.Row {
	out := rows[:0]
	for _, r := range rows {
		if keep(r.Slot) {
			out = append(out, r)
		}
	}
	return out
}

func keepTiers(rows []indexer.TierRow, keep func(indexer.Slot) bool) []indexer.TierRow {
	out := rows[:0]
	for _, r := range rows {
		if keep(r.Slot) {
			out = append(out, r)
		}
	}
	return out
}
