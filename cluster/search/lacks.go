package search

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// maxMissing bounds the parts that are named; more are counted.
const maxMissing = 16

// Completeness says what the answers to a request may lack (promise 3). The zero value
// says that they are complete and current.
type Completeness struct {
	// Partial: a part of the cluster did not answer; Missing names it.
	Partial bool
	Missing []string
	// Stale: this node, or one that it asked, cannot prove that its map is current. MapAge
	// is how old that may be.
	Stale  bool
	MapAge time.Duration
}

// lacks collects what the answers to a request lack.
type lacks struct {
	missing []string
	more    int // beyond missing
	noOwner bool
	noSlot  bool
	by      string // node without a lease
	age     time.Duration
}

func (l *lacks) reset() { *l = lacks{missing: l.missing[:0]} }

func (l *lacks) add(text string) {
	switch {
	case slices.Contains(l.missing, text):
	case len(l.missing) < maxMissing:
		l.missing = append(l.missing, text)
	default:
		l.more++
	}
}

// partition notes a segment that nobody answered for.
func (l *lacks) partition(p indexer.PartitionID, failures []failure) {
	l.noOwner = true
	if len(failures) == 0 {
		l.add(fmt.Sprintf("partition %d: no ready owner", p))
		return
	}
	var why []string
	for _, f := range failures {
		if text := f.owner + ": " + f.why; !slices.Contains(why, text) {
			why = append(why, text)
		}
	}
	l.add(fmt.Sprintf("partition %d: %s", p, strings.Join(why, "; ")))
}

// slots notes the slots of a segment that no owner asked could read.
func (l *lacks) slots(x *Searcher, v *state.View) {
	g, ok := v.Catalog.GroupByID(uint32(x.question.query.Group))
	if !ok {
		return // no rank of it is left
	}
	for _, slot := range x.open.list {
		h, live := g.Holder(uint32(slot))
		if !live || h.Life > x.pin {
			continue // another life has it now
		}
		l.noSlot = true
		l.add(fmt.Sprintf("instance %s rank %d in partition %d: no owner has a complete copy that it may read", h.Instance, h.Rank, x.question.query.Partition))
	}
}

// filling notes the slots whose sources had been taken over and not yet been filled when
// the first answer to the question was read, or were taken over since. Nothing is credited
// to them: they may lack stores that were acknowledged, and removals too.
func (l *lacks) filling(x *Searcher, v *state.View, out *slotSet) {
	g, ok := v.Catalog.GroupByID(uint32(x.question.query.Group))
	if !ok {
		return
	}
	for slot, h := range g.Unwhole(x.pin) {
		if !x.concerns(indexer.Slot(slot)) {
			continue
		}
		out.add(indexer.Slot(slot))
		if l.noSlot = true; len(l.missing) >= maxMissing {
			l.more++ // not worded: there may be thousands
		} else {
			l.add(fmt.Sprintf("instance %s rank %d: it was taken over, and its engine is being asked what it holds", h.Instance, h.Rank))
		}
	}
}

func (l *lacks) stale(by string, age time.Duration) {
	if l.by == "" || age > l.age {
		l.by, l.age = by, age
	}
}

// Completeness ends the request and says what its answers lack. The error wraps ErrStale:
// the answers must not be given, because stale ones are to be refused.
func (x *Searcher) Completeness() (Completeness, error) {
	s, l := x.s, &x.lacks
	x.ctx = nil
	c := Completeness{Partial: len(l.missing) > 0 && !s.cfg.broken.whole, Stale: l.by != "", MapAge: l.age}
	if c.Partial {
		c.Missing = slices.Clone(l.missing)
		if l.more > 0 {
			c.Missing = append(c.Missing, fmt.Sprintf("and %d more", l.more))
		}
	}
	s.count.answered(l, c)
	if c.Stale && s.cfg.StaleReads == StaleRefuse {
		s.count.refused.Add(1)
		return c, fmt.Errorf("%w: node %s cannot prove that its map is current; it may be %v old", ErrStale, l.by, l.age.Round(time.Millisecond))
	}
	return c, nil
}
