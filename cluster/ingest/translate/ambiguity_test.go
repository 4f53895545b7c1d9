package translate

import (
	"flag"
	"strings"
	"testing"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
)

var long = flag.Bool("long", false, "run the exhaustive tests to their fixpoint")

// The engine of these models hashes content only: the hash of a block is its last
// symbol, so one hash names many paths. Its truth is a set of held paths over two
// symbols, at most three long. It stores a path whose parent path it holds, or a
// whole path from the root, or removes a held path by its hash. The guard must never
// credit more than the truth, for any query.
var ambiguousPaths = func() (paths []string) {
	for n := 1; n <= 3; n++ {
		for i := range 1 << n {
			p := make([]byte, n)
			for j := range n {
				p[j] = 'a' + byte(i>>(n-1-j)&1)
			}
			paths = append(paths, string(p))
		}
	}
	return paths
}()

type ambiguousEvent struct {
	store  bool
	parent string   // symbol, "" = root
	paths  []string // stored, in order; or the one removed
}

func (e ambiguousEvent) hashes() (h []string) {
	for _, p := range e.paths {
		h = append(h, p[len(p)-1:])
	}
	return h
}

func pathBit(p string) uint16 {
	at := 1<<len(p) - 2 // shorter paths come before
	for i := range len(p) {
		at += int(p[i]-'a') << (len(p) - 1 - i)
	}
	return 1 << at
}

// ambiguousEvents lists what the engine can do when it holds truth.
func ambiguousEvents(truth uint16) (evs []ambiguousEvent) {
	for _, p := range ambiguousPaths {
		n := len(p)
		if n == 1 {
			evs = append(evs, ambiguousEvent{true, "", []string{p}})
		} else if truth&pathBit(p[:n-1]) != 0 {
			evs = append(evs, ambiguousEvent{true, p[n-2 : n-1], []string{p}})
		}
		if n > 1 {
			whole := make([]string, n)
			for i := range p {
				whole[i] = p[:i+1]
			}
			evs = append(evs, ambiguousEvent{true, "", whole})
		}
		if truth&pathBit(p) != 0 {
			evs = append(evs, ambiguousEvent{false, "", []string{p}})
		}
	}
	return evs
}

// guardState is the engine's truth and what a guard knows.
type guardState struct {
	truth   uint16
	a, b    guardEntry
	orphans string // "parent hash" pairs, in order
	refused bool
}

type guardEntry struct {
	path  string // "" = not mapped
	prev  string // predecessor hash
	taint bool
}

func (s *guardState) entry(h string) *guardEntry {
	if h == "a" {
		return &s.a
	}
	return &s.b
}

func (s *guardState) waiting(h string) (parent string, ok bool) {
	for i := 0; i < len(s.orphans); i += 2 {
		if s.orphans[i+1:i+2] == h {
			return s.orphans[i : i+1], true
		}
	}
	return "", false
}

func (s *guardState) forget(h string) {
	kept := ""
	for i := 0; i < len(s.orphans); i += 2 {
		if s.orphans[i+1:i+2] != h {
			kept += s.orphans[i : i+2]
		}
	}
	s.orphans = kept
}

// overcredit reports whether some query scores above the truth: it does if a
// credited path with all its prefixes credited is not held with all its prefixes.
func (s guardState) overcredit() bool {
	credited := func(p string) bool { return p == s.a.path || p == s.b.path }
	for _, p := range []string{s.a.path, s.b.path} {
		if len(p) > 3 {
			continue // no query is that long
		}
		justified := true
		for i := 1; i <= len(p); i++ {
			if !credited(p[:i]) {
				break
			}
			if justified = justified && s.truth&pathBit(p[:i]) != 0; !justified {
				return true
			}
		}
	}
	return false
}

// A guard is the translator's part of an event; the truth is done already.
type guard func(s *guardState, e ambiguousEvent)

// explore visits all states in breadth, up to depth events, and returns the
// shortest stream that ends above the truth.
func explore(g guard, depth int, visit func(trace []ambiguousEvent, s guardState)) (states int, trace []ambiguousEvent) {
	type step struct {
		from guardState
		ev   ambiguousEvent
	}
	seen := map[guardState]step{{}: {}}
	traceTo := func(s guardState) (t []ambiguousEvent) {
		for s != (guardState{}) {
			st := seen[s]
			t = append([]ambiguousEvent{st.ev}, t...)
			s = st.from
		}
		return t
	}
	front := []guardState{{}}
	for d := 0; d < depth && len(front) > 0; d++ {
		var next []guardState
		for _, s := range front {
			for _, e := range ambiguousEvents(s.truth) {
				n := s
				for _, p := range e.paths {
					if e.store {
						n.truth |= pathBit(p)
					} else {
						n.truth &^= pathBit(p)
					}
				}
				if !n.refused {
					g(&n, e)
				}
				if _, ok := seen[n]; ok {
					continue
				}
				seen[n] = step{s, e}
				next = append(next, n)
				if visit != nil {
					visit(traceTo(n), n)
				}
				if n.overcredit() {
					return len(seen), traceTo(n)
				}
			}
		}
		front = next
	}
	return len(seen), nil
}

func guardRemove(s *guardState, e ambiguousEvent, keepTaint bool) {
	h := e.hashes()[0]
	en := s.entry(h)
	en.path, en.prev = "", ""
	if !keepTaint {
		en.taint = false
	}
	s.forget(h)
}

// guardFlags is the weaker idea: an entry remembers its predecessor's hash, and a
// mismatch flags the hash, so that nothing is credited below it; the flag goes with
// the entry, or stays (sticky). Without check, a mismatch is not even looked for.
func guardFlags(check, sticky bool) guard {
	return func(s *guardState, e ambiguousEvent) {
		if !e.store {
			guardRemove(s, e, sticky || !check)
			return
		}
		known, path, prev := true, "", e.parent
		if prev != "" {
			en := s.entry(prev)
			known = en.path != "" && !en.taint
			path = en.path
		}
		for _, h := range e.hashes() {
			en := s.entry(h)
			if h == prev {
				en.taint = en.taint || check
				break
			}
			if en.path != "" {
				if check && en.prev != prev {
					en.taint = true
					break
				}
				if check && en.taint {
					break
				}
				known, path = true, en.path
			} else if !known {
				s.orphans += prev + h
			} else {
				path += h
				en.path, en.prev = path, prev
				known = !en.taint
			}
			prev = h
		}
		for again := true; again; {
			again = false
			for i := 0; i < len(s.orphans); i += 2 {
				p, h := s.entry(s.orphans[i:i+1]), s.entry(s.orphans[i+1:i+2])
				if p.path != "" && !p.taint && h.path == "" {
					h.path, h.prev = p.path+s.orphans[i+1:i+2], s.orphans[i:i+1]
					s.orphans = s.orphans[:i] + s.orphans[i+2:]
					again = true
					break
				}
			}
		}
	}
}

// guardPredecessor rejects and taints, but compares only the predecessor's hash.
func guardPredecessor(spread bool) guard {
	return func(s *guardState, e ambiguousEvent) {
		contradiction := func() bool {
			prev, in := e.parent, map[string]string{}
			for _, h := range e.hashes() {
				en := s.entry(h)
				if h == prev || en.path != "" && en.prev != prev {
					return true
				}
				if p, ok := s.waiting(h); ok && p != prev {
					return true
				}
				if p, ok := in[h]; ok && p != prev {
					return true
				}
				in[h], prev = prev, h
			}
			return false
		}
		guardTaint(s, e, contradiction, spread)
	}
}

// guardTaint is the frame of the guards that reject a contradicting event whole and
// taint its hashes.
func guardTaint(s *guardState, e ambiguousEvent, contradiction func() bool, spread bool) {
	if !e.store {
		guardRemove(s, e, true)
		return
	}
	taint := func(h string) {
		s.entry(h).taint = true
		s.forget(h)
	}
	if contradiction() || spread && e.parent != "" && s.entry(e.parent).taint {
		for _, h := range e.hashes() {
			taint(h)
		}
		return
	}
	prev := e.parent
	for _, h := range e.hashes() {
		en := s.entry(h)
		if en.path == "" {
			if prev == "" || s.entry(prev).path != "" && !s.entry(prev).taint {
				path := h
				if prev != "" {
					path = s.entry(prev).path + h
				}
				en.path, en.prev = path, prev
				s.forget(h)
			} else {
				s.forget(h)
				s.orphans += prev + h
			}
		}
		prev = h
	}
	for again := true; again; {
		again = false
		for i := 0; i < len(s.orphans); i += 2 {
			ph, h := s.orphans[i:i+1], s.orphans[i+1:i+2]
			if p, en := s.entry(ph), s.entry(h); p.path != "" && !p.taint && !en.taint {
				en.path, en.prev = p.path+h, ph
				s.orphans = s.orphans[:i] + s.orphans[i+2:]
				again = true
				break
			}
		}
	}
}

// guardPath is rule N2 as the translator keeps it: whole paths are compared,
// contradictions taint, and taint spreads to whatever is stored or waits below.
// refuse: the slot is given up at the first contradiction instead.
func guardPath(refuse bool) guard {
	return func(s *guardState, e ambiguousEvent) {
		if !e.store {
			guardRemove(s, e, true)
			return
		}
		var taint func(h string)
		taint = func(h string) {
			s.entry(h).taint = true
			s.forget(h)
			for _, c := range []string{"a", "b"} {
				if p, ok := s.waiting(c); ok && p == h {
					taint(c)
				}
			}
		}
		bad, known, path, prev := false, true, "", e.parent
		if prev != "" {
			path = s.entry(prev).path
			known = path != ""
		}
		seen := prev
		for _, h := range e.hashes() {
			bad = bad || strings.Contains(seen, h)
			seen += h
			en := s.entry(h)
			if p, ok := s.waiting(h); ok && p != prev {
				bad = true
			}
			if en.path != "" {
				bad = bad || known && en.path != path+h
				known, path = true, en.path
			} else {
				path += h
			}
			prev = h
		}
		if bad && refuse {
			*s = guardState{truth: s.truth, refused: true}
			return
		}
		if bad || e.parent != "" && s.entry(e.parent).taint {
			for _, h := range e.hashes() {
				taint(h)
			}
			return
		}
		prev = e.parent
		tainted := false
		for _, h := range e.hashes() {
			en := s.entry(h)
			switch {
			case tainted:
				taint(h)
			case en.taint:
				tainted = true
			case en.path != "":
			case prev == "":
				en.path = h
			case s.entry(prev).path != "":
				en.path = s.entry(prev).path + h
				s.forget(h)
			default:
				s.forget(h)
				s.orphans += prev + h
			}
			prev = h
		}
		for again := true; again; {
			again = false
			for i := 0; i < len(s.orphans); i += 2 {
				ph, h := s.orphans[i:i+1], s.orphans[i+1:i+2]
				if s.entry(ph).path != "" {
					s.entry(h).path = s.entry(ph).path + h
					s.orphans = s.orphans[:i] + s.orphans[i+2:]
					again = true
					break
				}
			}
		}
	}
}

// Every weaker guard is caught with a stream that ends above the truth.
func TestWeakGuardsOvercredit(t *testing.T) {
	for name, g := range map[string]guard{
		"no check":                    guardFlags(false, false),
		"flag until removal":          guardFlags(true, false),
		"sticky flag":                 guardFlags(true, true),
		"predecessor hash":            guardPredecessor(false),
		"predecessor hash, spreading": guardPredecessor(true),
	} {
		states, trace := explore(g, 12, nil)
		if trace == nil {
			t.Errorf("%s: clean over %d states, the models know better", name, states)
			continue
		}
		t.Logf("%s: %d events in %d states", name, len(trace), states)
	}
}

// The guard of rule N2 never credits above the truth, and the translator does what
// the guard does, state by state.
func TestPathGuard(t *testing.T) {
	if states, trace := explore(guardPath(true), 60, nil); trace != nil {
		t.Errorf("refusing: over after %v", trace)
	} else {
		t.Logf("refusing: %d states", states)
	}
	depth := 5
	if *long {
		depth = 60
	}
	states, trace := explore(guardPath(false), depth, func(trace []ambiguousEvent, s guardState) { playGuard(t, trace, s) })
	if trace != nil {
		t.Errorf("tainting: over after %v", trace)
	}
	t.Logf("tainting: %d states", states)
}

var symbolHash = map[string]uint64{"a": 0xa11ce << 20, "b": 0xb0b << 30}

// playGuard plays a stream into a translator and compares the end.
func playGuard(t *testing.T, trace []ambiguousEvent, want guardState) {
	tr := New(Config{Partition: func(uint64) indexer.PartitionID { return 0 }})
	defer tr.Close()
	o := newOwner()
	for i, e := range trace {
		tr.Begin(uint64(i))
		var s Store
		for _, h := range e.hashes() {
			s.Engines = append(s.Engines, symbolHash[h])
			s.Content.Locals = append(s.Content.Locals, uint64(h[0]))
		}
		if e.store {
			s.HasParent, s.Parent = e.parent != "", symbolHash[e.parent]
			tr.Store(s)
		} else {
			tr.Remove(indexer.Device, s.Engines)
		}
		if err := tr.End(o.apply); err != nil {
			t.Fatalf("%v: %v", trace, err)
		}
	}
	paths := map[string]bool{}
	for _, h := range []string{"a", "b"} {
		en := want.entry(h)
		state := HashUnknown
		if _, ok := want.waiting(h); ok {
			state = HashOrphan
		}
		if en.taint {
			state = HashTainted
		}
		if en.path != "" {
			state = HashHeld
			path := ""
			for i := range en.path {
				path = extend(path, uint64(en.path[i]))
			}
			paths[path] = true
		}
		if got := tr.Lookup(symbolHash[h]); got != state {
			t.Fatalf("%v: hash %s has state %d, want %d", trace, h, got, state)
		}
	}
	got := o.covered()
	if len(got) != len(paths) {
		t.Fatalf("%v: %d paths covered, want %d", trace, len(got), len(paths))
	}
	for p := range paths {
		if got[p] == 0 {
			t.Fatalf("%v: path %x is not covered", trace, p)
		}
	}
}

// An engine whose hashes cover one page only stores [a a], then b below a. It holds
// a a b; crediting a b would be too much.
func TestSelfReferenceIsNotCredited(t *testing.T) {
	w := newWorld(Config{})
	store := func(parent uint64, has bool, hs ...uint64) func(tb) {
		return func(t tb) {
			s := Store{Engines: hs, HasParent: has, Parent: parent, Content: blockhash.Content{BlockSize: 1, Window: 1}}
			for _, h := range hs {
				s.Content.Tokens = append(s.Content.Tokens, uint32(h))
			}
			w.store(t, s)
		}
	}
	w.batch(t, store(0, false, 77, 78)) // claims made before
	w.batch(t, store(0, false, 1, 1))
	w.batch(t, store(1, true, 2))
	w.batch(t, store(2, true, 3))
	for h, want := range map[uint64]HashState{1: HashTainted, 2: HashTainted, 3: HashTainted, 77: HashHeld, 78: HashHeld} {
		if got := w.t.Lookup(h); got != want {
			t.Errorf("hash %d: state %d, want %d", h, got, want)
		}
	}
	if n := len(w.owner.covered()); n != 2 {
		t.Errorf("%d paths covered, want 2", n)
	}
	w.batch(t, func(tb) { w.remove(indexer.Device, []uint64{78, 77}) })
	if n := len(w.owner.covered()); n != 0 {
		t.Errorf("%d paths covered after removal", n)
	}
}
