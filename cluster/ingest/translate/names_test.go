package translate

import (
	"fmt"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

// Naming and coverage, exhaustively over short event sequences. The engine has
// blocks a and b at depth one and two, and up to two kinds of engine hash for the
// same local path (a salt that the query does not see).
type nameEvent struct {
	drop   bool
	hash   uint64 // dropped
	parent uint64 // 0 = root
	hashes []uint64
	locals []uint32
}

func nameHash(kind int, path string) uint64 {
	return spread(uint64(kind)<<8 | uint64(len(path))<<4 | uint64(path[0]-'a')<<1 | uint64(path[len(path)-1]-'a') + 1)
}

func nameEvents(kinds int) (evs []nameEvent) {
	for k := 1; k <= kinds; k++ {
		h := func(p string) uint64 { return nameHash(k, p) }
		for _, p := range []string{"a", "b"} {
			evs = append(evs, nameEvent{hashes: []uint64{h(p)}, locals: []uint32{uint32(p[0])}})
		}
		evs = append(evs,
			nameEvent{parent: h("a"), hashes: []uint64{h("ab")}, locals: []uint32{'b'}},
			nameEvent{parent: h("b"), hashes: []uint64{h("bb")}, locals: []uint32{'b'}},
			nameEvent{hashes: []uint64{h("a"), h("ab")}, locals: []uint32{'a', 'b'}})
		for _, p := range []string{"a", "b", "ab", "bb"} {
			evs = append(evs, nameEvent{drop: true, hash: h(p)})
		}
	}
	return evs
}

// sequences calls visit with every sequence of n events.
func sequences(evs []nameEvent, n int, visit func([]nameEvent)) {
	seq := make([]nameEvent, n)
	var fill func(i int)
	fill = func(i int) {
		if i == n {
			visit(seq)
			return
		}
		for _, e := range evs {
			seq[i] = e
			fill(i + 1)
		}
	}
	fill(0)
}

// naming is a translator and an owner reduced to names: which of the rules they
// keep decides what goes wrong.
type naming struct {
	trim     bool // N1: a mapped hash is not sent again
	perName  bool // N6: a position is covered while a live name is on it
	dumpLive bool // a rebuild learns live names, not positions
}

// play returns whether the coverage is ever above or below what is held. The map is
// rebuilt from the owner's dump before event rebuild.
func (n naming) play(seq []nameEvent, rebuild int) (over, under bool) {
	type name struct {
		hash uint64
		path string
		live bool
	}
	var names []name
	names = append(names, name{})
	mapped := map[uint64]int{}
	covered := map[string]bool{}
	truth := map[uint64]string{}
	for i, e := range seq {
		if i == rebuild {
			mapped = map[uint64]int{}
			for at, nm := range names {
				if at > 0 && (n.dumpLive && nm.live || !n.dumpLive && covered[nm.path]) {
					mapped[nm.hash] = at
				}
			}
		}
		if e.drop {
			delete(truth, e.hash)
			if at := mapped[e.hash]; at != 0 {
				delete(mapped, e.hash)
				names[at].live = false
				still := false
				for _, nm := range names {
					still = still || n.perName && nm.live && nm.path == names[at].path
				}
				if !still {
					delete(covered, names[at].path)
				}
			}
		} else {
			path, known := "", true
			truePath, held := "", true
			if e.parent != 0 {
				truePath, held = truth[e.parent], truth[e.parent] != ""
				at := mapped[e.parent]
				path, known = names[at].path, at != 0
			}
			for j, h := range e.hashes {
				if held {
					truePath += string(rune(e.locals[j]))
					truth[h] = truePath
				}
				if !known {
					continue
				}
				if at := mapped[h]; n.trim && at != 0 {
					path = names[at].path
					continue
				}
				path += string(rune(e.locals[j]))
				names = append(names, name{h, path, true})
				mapped[h] = len(names) - 1
				covered[path] = true
			}
		}
		want := map[string]bool{}
		for _, p := range truth {
			want[p] = true
		}
		for _, q := range []string{"ab", "bb"} {
			a, b := 0, 0
			for a < 2 && covered[q[:a+1]] {
				a++
			}
			for b < 2 && want[q[:b+1]] {
				b++
			}
			over, under = over || a > b, under || a < b
		}
	}
	return over, under
}

// Rules N1 and N6 together are exact, with a rebuild at any point; each weaker
// naming is caught.
func TestNamingRules(t *testing.T) {
	depth := 3
	if *long {
		depth = 4
	}
	for _, c := range []struct {
		name        string
		rules       naming
		kinds       int
		rebuild     bool
		over, under bool
	}{
		{"send again, old names live", naming{perName: true}, 1, false, true, false},
		{"one hash per path, cover as a set", naming{trim: true}, 1, false, false, false},
		{"two hashes per path, cover as a set", naming{trim: true}, 2, false, false, true},
		{"trim and live names", naming{trim: true, perName: true, dumpLive: true}, 2, false, false, false},
		{"dump positions", naming{trim: true, perName: true}, 2, true, true, false},
		{"dump live names", naming{trim: true, perName: true, dumpLive: true}, 2, true, false, false},
	} {
		var over, under bool
		for n := 1; n <= max(depth, 4-c.kinds+1+c.kinds/2); n++ {
			sequences(nameEvents(c.kinds), n, func(seq []nameEvent) {
				for at := 0; at == 0 || c.rebuild && at < n; at++ {
					o, u := c.rules.play(seq, at-boolInt(at == 0))
					over, under = over || o, under || u
				}
			})
		}
		if over != c.over || under != c.under {
			t.Errorf("%s: over %v under %v, want %v %v", c.name, over, under, c.over, c.under)
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The translator and the owner of its frames agree with the model after every short
// sequence.
func TestNamesExhaustive(t *testing.T) {
	depth := map[int]int{1: 4, 2: 3}
	if *long {
		depth = map[int]int{1: 5, 2: 4}
	}
	for kinds, deepest := range depth {
		for n := 1; n <= deepest; n++ {
			count := 0
			sequences(nameEvents(kinds), n, func(seq []nameEvent) {
				count++
				w := newWorld(Config{})
				for i, e := range seq {
					w.t.Begin(uint64(i))
					if e.drop {
						w.remove(indexer.Device, []uint64{e.hash})
					} else {
						w.store(t, Store{HasParent: e.parent != 0, Parent: e.parent, Engines: e.hashes,
							Content: blockhash.Content{Tokens: e.locals, BlockSize: 1, Window: 1}})
					}
					if err := w.t.End(w.owner.apply); err != nil {
						t.Fatalf("%v: %v", seq, err)
					}
				}
				w.compare(t)
				w.t.Close()
			})
			t.Logf("%d kinds of hash: %d sequences of %d", kinds, count, n)
		}
	}
}

func (e nameEvent) String() string {
	if e.drop {
		return fmt.Sprintf("drop %x", e.hash)
	}
	return fmt.Sprintf("store %x under %x", e.hashes, e.parent)
}
