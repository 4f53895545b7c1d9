package model

import (
	"maps"
	"slices"
	"testing"
)

// The tests name blocks by small numbers: a path 1 2 3 has the local hashes 1, 2, 3
// and its engine hash is written as a decimal number of its blocks, 123.

func hash(blocks ...uint64) (h uint64) {
	for _, b := range blocks {
		h = h*100 + b
	}
	return h
}

// stored stores blocks under a path.
func stored(tier int, under []uint64, blocks ...uint64) Event {
	e := Event{Kind: Stored, Tier: tier, HasParent: len(under) > 0, Parent: hash(under...)}
	p := slices.Clone(under)
	for _, b := range blocks {
		p = append(p, b)
		e.Locals = append(e.Locals, b)
		e.Engines = append(e.Engines, hash(p...))
	}
	return e
}

func removed(tier int, paths ...[]uint64) Event {
	e := Event{Kind: Removed, Tier: tier}
	for _, p := range paths {
		e.Engines = append(e.Engines, hash(p...))
	}
	return e
}

func p(blocks ...uint64) []uint64 { return blocks }

// check asks for the bounds of one query after each of some events.
type check struct {
	event           Event
	query           []uint64
	held, reachable int
}

func run(t *testing.T, m *Model[int], checks []check) {
	t.Helper()
	for i, c := range checks {
		m.Apply(1, c.event)
		if reachable, held := m.Bounds(1, c.query); held != c.held || reachable != c.reachable {
			t.Errorf("step %d: held %d, reachable %d, want %d, %d", i, held, reachable, c.held, c.reachable)
		}
	}
}

func TestHeldAndReachable(t *testing.T) {
	q := p(1, 2, 3, 4, 5)
	run(t, New[int](Config{}), []check{
		{stored(Device, nil, 1, 2, 3, 4), q, 4, 4},
		{removed(Device, p(1, 2)), q, 1, 1},
		{stored(Device, p(1), 2), q, 4, 2},
		{stored(Device, p(1, 2, 3, 4), 5), q, 5, 2},
		{stored(Device, p(1, 2), 3, 4), q, 5, 4},
		{stored(Device, p(1, 2, 3, 4), 5), q, 5, 5},
		{removed(Device, p(1, 2, 3, 4, 5), p(1)), q, 0, 0},
		{stored(Device, nil, 1), q, 4, 1},
	})
}

// Event sequences on which other indexes over-counted, with the right values.
func TestPublishedSequences(t *testing.T) {
	t.Run("grouped removal", func(t *testing.T) {
		q := p(1, 2)
		run(t, New[int](Config{}), []check{
			{stored(Device, nil, 1, 2, 3), q, 2, 2},
			{stored(Device, p(1), 4), q, 2, 2},
			{removed(Device, p(1)), q, 0, 0},
			{stored(Device, nil, 1, 2), q, 2, 2},
			{removed(Device, p(1, 2, 3), p(1, 2)), q, 1, 1},
		})
	})
	t.Run("grouped removal, six events", func(t *testing.T) {
		q := p(1, 2, 20)
		run(t, New[int](Config{}), []check{
			{stored(Device, nil, 1, 30), q, 1, 1},
			{stored(Device, p(1), 2, 20, 21), q, 3, 3},
			{removed(Device, p(1)), q, 0, 0},
			{stored(Device, nil, 1), q, 3, 1},
			{stored(Device, p(1), 2, 20), q, 3, 3},
			{removed(Device, p(1, 2, 20, 21), p(1, 2, 20)), q, 2, 2},
		})
	})
}

// Two physical copies of one block: with set semantics one removal ends the claim,
// with counting the second does.
func TestCopies(t *testing.T) {
	q := p(1, 2, 3, 4, 5, 6, 7)
	for _, c := range []struct {
		count                bool
		first, second, third int
	}{{false, 2, 2, 2}, {true, 7, 2, 2}} {
		m := New[int](Config{CountCopies: c.count})
		m.Apply(1, stored(Device, nil, 1, 2, 3))
		m.Apply(1, Event{Kind: Stored, HasParent: true, Parent: hash(1, 2), Engines: []uint64{hash(1, 2, 3)}, Locals: p(3)})
		m.Apply(1, stored(Device, p(1, 2, 3), 4, 5, 6, 7))
		for i, want := range []int{c.first, c.second, c.third} {
			m.Apply(1, removed(Device, p(1, 2, 3)))
			if got := m.Held(1, q); got != want {
				t.Errorf("counting %t: held %d after removal %d, want %d", c.count, got, i+1, want)
			}
		}
	}
}

func TestTierWalk(t *testing.T) {
	m := New[int](Config{})
	q := p(1, 2, 3, 4, 5)
	// Rank 0: two blocks, one more on the host, two more on disk. Rank 1: one, and
	// one more on disk.
	m.Apply(0, stored(Device, nil, 1, 2))
	m.Apply(0, stored(Host, p(1, 2), 3))
	m.Apply(0, stored(Disk, p(1, 2, 3), 4, 5))
	m.Apply(1, stored(Device, nil, 1))
	m.Apply(1, stored(Disk, p(1), 2))
	m.Apply(2, stored(External, nil, 1, 2))
	want := map[int]Walk{0: {2, 3, 5, 5}, 1: {1, 1, 2, 2}, 2: {0, 0, 0, 2}}
	if got := m.Scores(q); !maps.Equal(got, want) {
		t.Errorf("walks %v, want %v", got, want)
	}
	// Store in both, remove from the device: the host hit stays.
	m.Apply(3, stored(Device, nil, 1, 2))
	m.Apply(3, stored(Host, nil, 1, 2))
	m.Apply(3, removed(Device, p(1, 2), p(1)))
	if got, want := m.Walk(3, q), (Walk{0, 2, 2, 2}); got != want {
		t.Errorf("after a demotion %v, want %v", got, want)
	}
	m.Apply(3, Event{Kind: Cleared, Tier: Disk})
	m.Apply(3, Event{Kind: Stored, Tier: External, Placeholder: true, Engines: []uint64{hash(1), 999}})
	if got := m.Tiers(3, q); !slices.Equal(got, []uint8{1<<Host | 1<<External, 1 << Host, 0, 0, 0}) {
		t.Errorf("tiers %v", got)
	}
	m.Apply(3, Event{Kind: Cleared, Tier: AllTiers})
	m.Apply(0, Event{Kind: Cleared, Tier: Host})
	if got, want := m.Walk(0, q), (Walk{2, 2, 2, 2}); got != want || m.Walk(3, q) != (Walk{}) {
		t.Errorf("after clears %v, want %v", got, want)
	}
	m.Remove(1)
	if got := m.Scores(q); len(got) != 2 {
		t.Errorf("after a removal %v", got)
	}
}

// The 4,096 patterns of three tiers and four blocks, against the text of the rule.
func TestTierPatterns(t *testing.T) {
	q := p(1, 2, 3, 4)
	m := New[int](Config{})
	for s := range 1 << 12 {
		for i := range q {
			for tier := range 3 {
				if s>>(3*i+tier)&1 == 1 {
					m.Apply(s, Event{Kind: Stored, Tier: tier, Engines: []uint64{1, 2, 3, 4}[:i+1], Locals: q[:i+1]})
					for j := range i { // the blocks above were only needed to name the place
						if s>>(3*j+tier)&1 == 0 {
							m.Apply(s, Event{Kind: Removed, Tier: tier, Engines: []uint64{uint64(j + 1)}})
						}
					}
				}
			}
		}
	}
	for s := range 1 << 12 {
		var want Walk
		pos := 0
		for tier := range NumTiers {
			for pos < 4 && tier < 3 && s>>(3*pos+tier)&1 == 1 {
				pos++
			}
			want[tier] = pos
		}
		if got := m.Walk(s, q); got != want {
			t.Fatalf("pattern %012b: %v, want %v", s, got, want)
		}
	}
}

func TestOrphans(t *testing.T) {
	m := New[int](Config{})
	q := p(1, 2, 3, 4)
	expect := func(step string, held, orphans int) {
		t.Helper()
		if got := m.Held(1, q); got != held || m.Counts().Orphans != orphans {
			t.Errorf("%s: held %d with %d orphans, want %d with %d", step, got, m.Counts().Orphans, held, orphans)
		}
	}
	m.Apply(1, stored(Device, p(1, 2), 3, 4))
	expect("parent unknown", 0, 2)
	m.Apply(2, stored(Device, nil, 1, 2))
	expect("parent known to another", 0, 2)
	m.Apply(1, stored(Device, nil, 1))
	expect("a block above the parent", 1, 2)
	m.Apply(1, removed(Device, p(1, 2, 3, 4)))
	expect("an orphan removed", 1, 1)
	m.Apply(1, stored(Device, p(1), 2))
	expect("the parent", 3, 0)
	m.Apply(1, stored(Host, p(1, 2, 9), 9))
	m.Apply(1, Event{Kind: Cleared, Tier: Device})
	expect("clear of the device", 0, 1)
	m.Apply(1, Event{Kind: Cleared, Tier: AllTiers})
	expect("clear", 0, 0)
	// The parent was evicted since: the child waits until it is back.
	m.Apply(1, stored(Device, nil, 1, 2))
	m.Apply(1, removed(Device, p(1, 2)))
	m.Apply(1, stored(Device, p(1, 2), 3))
	expect("parent evicted", 1, 1)
	m.Apply(1, Event{Kind: Stored, Tier: Host, Placeholder: true, Engines: []uint64{hash(1, 2, 3), 999}})
	m.Apply(1, stored(Device, p(1), 2))
	expect("parent back", 3, 0)
	m.Apply(1, removed(Device, p(1, 2, 3)))
	if got, want := m.Walk(1, q), (Walk{2, 3, 3, 3}); got != want {
		t.Errorf("a tier announced of an orphan: %v, want %v", got, want)
	}
}

// Hashes that name a block's content only, not its prefix.
func TestContradictions(t *testing.T) {
	store := func(parent uint64, blocks ...uint64) Event {
		return Event{Kind: Stored, HasParent: parent != 0, Parent: parent, Engines: blocks, Locals: blocks}
	}
	m := New[int](Config{})
	for i, step := range []struct {
		event Event
		ok    bool
		query []uint64
		held  int
	}{
		{store(0, 5, 6), true, p(5, 6), 2},
		{store(5, 5), false, p(5, 5), 1},          // follows itself
		{store(0, 7, 8, 7), false, p(7, 8), 0},    // comes twice
		{store(0, 9), true, p(9), 1},              // the rest of the stream goes on
		{store(9, 6), false, p(9, 6), 1},          // another parent than before
		{store(9, 7), true, p(9, 7), 1},           // tainted
		{store(7, 10), true, p(9, 7, 10), 1},      // below a tainted one
		{store(0, 10), true, p(10), 0},            // tainted in turn
		{store(9, 11, 12), true, p(9, 11, 12), 3}, // untouched
		{store(0, 5, 6), true, p(5, 6), 2},        // claims made before stay
		{Event{Kind: Removed, Engines: p(6)}, true, p(5, 6), 1},
		{store(5, 6), true, p(5, 6), 1},      // and are not made again
		{store(40, 41), true, p(40, 41), 0},  // an orphan
		{store(42, 41), false, p(40, 41), 0}, // with another parent
		{store(0, 40), true, p(40, 41), 1},   // is not attached
	} {
		if ok := m.Apply(1, step.event); ok != step.ok {
			t.Errorf("step %d: taken %t, want %t", i, ok, step.ok)
		}
		if got := m.Held(1, step.query); got != step.held {
			t.Errorf("step %d: held %d, want %d", i, got, step.held)
		}
	}
}

func TestNamespaces(t *testing.T) {
	tokens := []uint32{0, 1, 2, 3, 4, 5, 6, 7}
	for _, c := range []struct {
		lora, salt string
		want       uint64
	}{
		{"", "", 9143094415614847814},
		{"adapter-a", "", 6665157333201000639},
		{"", "tenant-a", 17009624042690211646},
		{"adapter-a", "tenant-a", 8269515957840517240},
	} {
		got := LocalHashes(tokens[:4], 4, c.lora, c.salt)
		if len(got) != 1 || got[0] != c.want {
			t.Errorf("lora %q, salt %q: %d, want %d", c.lora, c.salt, got, c.want)
		}
	}
	if got := LocalHashes(tokens, 4, "", ""); !slices.Equal(got, []uint64{9143094415614847814, 12124091508212882195}) {
		t.Errorf("two blocks: %d", got)
	}
	if got := LocalHashes(tokens[:7], 0, "", ""); got != nil {
		t.Errorf("block size 0: %d", got)
	}

	m := New[int](Config{})
	m.Apply(1, Event{Kind: Stored, Engines: []uint64{1}, Tokens: tokens[:4], BlockSize: 4, Salt: "tenant-a"})
	m.Apply(1, Event{Kind: Stored, HasParent: true, Parent: 1, Engines: []uint64{2}, Tokens: tokens[4:], BlockSize: 4})
	if got := m.Held(1, LocalHashes(tokens, 4, "", "tenant-a")); got != 2 {
		t.Errorf("a child inherits its parent's salt: held %d, want 2", got)
	}
	if got := m.Held(1, LocalHashes(tokens, 4, "", "")); got != 0 {
		t.Errorf("another namespace: held %d, want 0", got)
	}
	if m.Apply(1, Event{Kind: Stored, Engines: []uint64{1}, Tokens: tokens[:4], BlockSize: 4, Salt: "tenant-b"}) {
		t.Error("one hash under two salts was taken")
	}
	// An orphan's namespace is its parent's, once that is known.
	m.Apply(2, Event{Kind: Stored, HasParent: true, Parent: 1, Engines: []uint64{2}, Tokens: tokens[4:], BlockSize: 4})
	m.Apply(2, Event{Kind: Stored, Engines: []uint64{1}, Tokens: tokens[:4], BlockSize: 4, Lora: "adapter-a"})
	if got := m.Held(2, LocalHashes(tokens, 4, "adapter-a", "")); got != 2 {
		t.Errorf("an orphan inherits as well: held %d, want 2", got)
	}
}

func TestClaimsAndCounts(t *testing.T) {
	m := New[string](Config{})
	m.Apply("a", stored(Device, nil, 1, 2))
	m.Apply("b", stored(Host, nil, 1, 3))
	m.Apply("a", Event{Kind: Stored, Engines: []uint64{777}, Locals: p(1)}) // another hash of the first block
	m.Apply("a", removed(Device, p(1)))
	if got := m.Held("a", p(1, 2)); got != 2 {
		t.Errorf("covered by the other hash: held %d, want 2", got)
	}
	want := []Claim{{hash(1, 2), p(1, 2), 1}, {777, p(1), 1}}
	got := m.Claims("a")
	if !slices.EqualFunc(got, want, func(a, b Claim) bool {
		return a.Engine == b.Engine && slices.Equal(a.Path, b.Path) && a.Tiers == b.Tiers
	}) {
		t.Errorf("claims %v, want %v", got, want)
	}
	c := m.Counts()
	if c != (Counts{Held: [NumTiers]int{2, 2}, Distinct: 3, Claims: 4}) {
		t.Errorf("counts %+v", c)
	}
	if got := m.Holders(); len(got) != 2 {
		t.Errorf("holders %v", got)
	}
}
