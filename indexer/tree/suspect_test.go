package tree

import (
	"slices"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
)

// TestLower has every slot under suspicion in two attempts: one that held its blocks
// all the time keeps its score, one that lost some in between gets the lower score,
// and one that came or went in between gets none.
func TestLower(t *testing.T) {
	l := openTest(t, LaneConfig{})
	path := sequence(1, 90)
	senders := make([]*sender, 5)
	for s := range senders {
		senders[s] = &sender{l: l, slot: indexer.Slot(s)}
		if s < 4 {
			senders[s].store(0, 0, indexer.Parent{}, path[:20*(s+1)])
		}
	}
	r := l.NewReader()
	defer r.Close()
	q := indexer.Query{Locals: path}
	var out indexer.Scores
	r.enter(l)
	defer r.leave()
	from := l.drops.now.Load()
	if _, done := r.walk(l, q, &r.before); !done {
		t.Fatal("walk failed at rest")
	}
	senders[1].drop(0, 30, 10) // of 40
	senders[2].drop(0, 10, 50) // of 60
	senders[2].store(0+1, 0, indexer.Parent{Kind: indexer.ParentName, Pos: 9}, path[10:60])
	senders[3].clear()
	senders[4].store(0, 0, indexer.Parent{}, path[:5])
	tree, done := r.walk(l, q, &out)
	if !done {
		t.Fatal("walk failed at rest")
	}
	if r.proved(l, tree, from, &out) {
		t.Error("slots that dropped are not under suspicion")
	}
	for i := range l.drops.at {
		l.drops.at[i].Store(1 << 62)
	}
	out.Rows = append(out.Rows, out.Rows[0]) // a slot that moved may be seen twice
	r.lower(l, tree, from, &out)
	sortScores(out.Rows, nil)
	want := []indexer.Row{{Slot: 0, Depth: 20}, {Slot: 1, Depth: 30}, {Slot: 2, Depth: 60}}
	if !slices.Equal(out.Rows, want) {
		t.Errorf("rows %v, want %v", out.Rows, want)
	}
}

// TestSuspects: only a slot that is reported and dropped makes a second look necessary.
func TestSuspects(t *testing.T) {
	l := openTest(t, LaneConfig{})
	path := sequence(1, 20)
	a, b := &sender{l: l, slot: 1}, &sender{l: l, slot: 2}
	a.store(0, 0, indexer.Parent{}, path)
	b.store(0, 0, indexer.Parent{}, sequence(2, 20))
	r := l.NewReader()
	defer r.Close()
	var out indexer.Scores
	look := func(between func()) bool {
		r.enter(l)
		defer r.leave()
		out.Rows = out.Rows[:0]
		from := l.drops.now.Load()
		tree, _ := r.walk(l, indexer.Query{Locals: path}, &out)
		between()
		return r.proved(l, tree, from, &out)
	}
	if !look(func() {}) || !look(func() { b.drop(0, 19, 1) }) || !look(func() { a.store(1, 0, indexer.Parent{}, path) }) {
		t.Error("a look that was not disturbed is not proved")
	}
	if look(func() { a.drop(0, 19, 1) }) {
		t.Error("a reported slot dropped, and nobody noticed")
	}
}
