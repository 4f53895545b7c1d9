package sim

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest"
	"github.com/kvcluster/kvcluster/cluster/search"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// slack is added to every time after which a node must have stopped answering: the clock
// of a session begins with its last message, and messages take a while.
const slack = 400 * time.Millisecond

// sessionOver is after how long without a message a session carries nothing any more.
const sessionOver = linkTimeout + linkTimeout/10 + slack

// tally counts answers.
type tally struct {
	asked, none, partial, late, stale, moving, rows, judged, full atomic.Int64
}

// sound reports whether the reader of e says that it began with all that can be had of the
// present life. One whose replay failed says that the content of older batches is unknown
// (RankStatus.Short), and begins another life when the engine answers. What a reader says
// trails what it does, so it must have named a batch of that life; it cannot begin late
// after that.
func (w *world) sound(e *engine) bool {
	l := &e.lives[len(e.lives)-1]
	for _, n := range w.nodes {
		if l.sound {
			break
		}
		if n.answers() {
			r, _, err := n.member.Node().Ingest().RankStatus(e.id, 0)
			l.sound = err == nil && r.Life == l.id && r.State == ingest.Active && r.HasAcknowledged && !r.Short
		}
	}
	return l.sound
}

// everywhere reports whether the state of e's mark is acknowledged.
func (w *world) everywhere(v *state.View, e *engine) bool {
	if len(e.lives) == 0 {
		return false
	}
	if !w.sound(e) {
		return false
	}
	l := e.lives[len(e.lives)-1]
	// A node may count on an earlier reader until its map is too old for reads.
	var reader string
	handedOver := true
	for _, s := range v.Catalog.Sources() {
		if s.Instance == e.id {
			reader = v.Assignments[s.ID].Node
			handedOver = time.Since(w.handed[s.ID]) > tServe+slack
		}
	}
	shown := make([]bool, w.cfg.Partitions)
	for _, n := range w.nodes {
		if !n.answers() {
			continue
		}
		own := n.member.Node().View()
		// A node that is behind in the log says that it is stale, but may be up to date in a
		// moment, and then answers from the copies that it is still sent frames for.
		outdated := w.outdated(own.Index)
		if _, id, ok := lifeIn(own, e.id); !ok || id != l.id {
			if outdated {
				continue
			}
			return false
		}
		for p := range w.cfg.Partitions {
			switch {
			case outdated && !slices.Contains(v.Receivers(p), n.name):
			case !own.Ready(p, n.name) && !slices.Contains(own.Receivers(p), n.name) && !slices.Contains(v.Receivers(p), n.name):
			case n.shows(indexer.Slot(l.slot), e.mark.markers[p]):
				shown[p] = true
			case handedOver && w.net.silence(reader, n.name) > sessionOver:
			case w.net.silence(n.name, reader) > sessionOver && n.unreadable(own, l, p):
			default:
				return false
			}
		}
	}
	for _, ok := range shown {
		if !ok {
			return false
		}
	}
	return true
}

// outdated reports whether a later map index has been known for longer than a node may
// answer without it.
func (w *world) outdated(index uint64) bool {
	for _, s := range w.indexes {
		if s.index > index {
			return time.Since(s.at) > tServe+slack
		}
	}
	return false
}

// shows reports whether a node's own trees have a marker.
func (n *node) shows(slot indexer.Slot, m *prompt) bool {
	var out indexer.Scores
	n.index.reader.Match(indexer.Query{Group: firstGroup, Partition: indexer.PartitionID(m.partition), Locals: m.locals}, &out)
	for _, r := range out.Rows {
		if r.Slot == slot {
			return true
		}
	}
	return false
}

// unreadable reports whether a node says so of its copy.
func (n *node) unreadable(own *state.View, l life, p uint32) bool {
	o := n.member.Owner()
	list := o.Unreadable(nil, o.Mark(), own.Index, firstGroup, indexer.PartitionID(p), func(yield func(indexer.Slot, uint64) bool) {
		yield(indexer.Slot(l.slot), l.id)
	})
	return len(list) > 0
}

// answer is what a client got.
type answer struct {
	search.Completeness
	at    string
	view  *state.View
	walks map[string][2]int // by instance: device, then host
}

// ask puts one question to a node.
func (p *process) ask(ctx context.Context, q *prompt) (a answer, err error) {
	x := p.member.Search().NewSearcher()
	defer x.Close()
	x.Begin(ctx)
	var scores indexer.Scores
	x.Match(indexer.Query{Group: firstGroup, Partition: indexer.PartitionID(q.partition), Locals: q.locals}, &scores)
	pin := x.Pin()
	a = answer{at: p.node.name, view: p.member.Node().View(), walks: map[string][2]int{}}
	put := func(slot indexer.Slot, device, host uint32) {
		g, ok := a.view.Catalog.GroupByID(firstGroup)
		if !ok {
			return
		}
		if h, live := g.Holder(uint32(slot)); live && h.Life <= pin {
			a.walks[h.Instance] = [2]int{int(device), int(host)}
		}
	}
	for _, r := range scores.Rows {
		put(r.Slot, r.Depth, r.Depth)
	}
	for _, r := range scores.Tiers {
		put(r.Slot, r.Depth[indexer.Device], r.Depth[indexer.Host])
	}
	a.Completeness, err = x.Completeness()
	return a, err
}

// query asks a node in its own time and judges the answer.
func (w *world) query(n *node, i int, after time.Duration) {
	p := n.process
	p.queries.Add(1)
	w.asks.Go(func() {
		defer p.queries.Done()
		time.Sleep(after)
		from := make([]since, len(w.engines))
		for k, e := range w.engines {
			from[k] = e.acked()
		}
		w.tally.asked.Add(1)
		began := time.Now()
		a, err := p.ask(context.Background(), w.prompts[i])
		if err != nil || p.killed.Load() {
			w.tally.none.Add(1)
			return
		}
		w.judge(a, w.latest.view(), i, from, began)
	})
}

// judge compares an answer with what engines held since they were at from.
// latest is the latest view of all.
func (w *world) judge(a answer, latest *state.View, i int, from []since, began time.Time) {
	t := &w.tally
	if a.Partial {
		t.partial.Add(1)
		if !slices.ContainsFunc(from, func(s since) bool { return s.life == 0 }) {
			t.late.Add(1)
		}
	}
	if a.Stale {
		t.stale.Add(1)
		return
	}
	t.judged.Add(1)
	anyMoving, anyRow := false, false
	for k, e := range w.engines {
		least, most, moving := e.bounds(from[k].state, i)
		// A life ends for everybody with its entry in the log, also for who is behind.
		_, id, ok := lifeIn(latest, e.id)
		if !ok || id != from[k].life || a.Partial {
			least = [2]int{}
		}
		if !ok || id != from[k].life {
			// A life that begins in the middle is filled by a replay, and goes once more through
			// all that the engine has held.
			_, most, _ = e.bounds(e.origin(from[k].state), i)
		}
		got := a.walks[e.id]
		anyMoving = anyMoving || moving
		anyRow = anyRow || got[1] > 0
		for t, tier := range []string{"device", "host"} {
			if got[t] < least[t] || got[t] > most[t] {
				w.fail("%s answered after %v: prompt %d (partition %d), engine %s: %s score is %d blocks, justified are %d to %d by its states %d to %d (life %d, acknowledged in life %d; partial %t %v, map index %d)",
					a.at, time.Since(began), i, w.prompts[i].partition, e.id, tier, got[t], least[t], most[t], from[k].state, e.last(), id, from[k].life, a.Partial, a.Missing, a.view.Index)
			}
		}
		if least[1] > 0 {
			t.full.Add(1)
		}
	}
	if anyMoving {
		t.moving.Add(1)
		if anyRow {
			t.rows.Add(1)
		}
	}
}

// processes are those that were started, for everybody who looks.
type processes struct {
	mu struct {
		sync.Mutex
		all []*process
	}
}

func (s *processes) add(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.all = append(s.mu.all, p)
}

// view returns the latest view that any process has ever applied.
func (s *processes) view() (latest *state.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.mu.all {
		if p.serves.Load() {
			if v := p.member.Node().View(); latest == nil || v.Index > latest.Index {
				latest = v
			}
		}
	}
	return latest
}

func (l life) String() string { return fmt.Sprintf("slot %d of life %d", l.slot, l.id) }
