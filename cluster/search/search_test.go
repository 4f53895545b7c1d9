package search

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// Every node gives the same answer, an owner without a call, any other with one.
func TestAnyNodeAnswers(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		r.store("2", 1, 5, indexer.Host, indexer.Disk)
		for n := range 6 {
			for _, node := range []string{"a", "b", "c"} {
				r.check(node, n, r.query(node, n))
			}
		}
		for node, want := range map[string]Stats{"a": {Local: 6}, "b": {Local: 6}, "c": {Calls: 6}} {
			if got := r.nodes[node].s.Stats(); got.Local != want.Local || got.Calls != want.Calls || got.Hedges != 0 || got.Requests != 6 {
				t.Errorf("%s: %+v", node, got)
			}
		}
		if got := r.query("c", 1).tiers["2"].Depth; got != [indexer.NumTiers]uint32{0, 5, 5, 5} {
			t.Errorf("tiers over a call: %v", got)
		}
		if a, b := r.nodes["a"].served.Load(), r.nodes["b"].served.Load(); a == 0 || b == 0 {
			t.Errorf("calls are not balanced: %d and %d", a, b)
		}
		return r
	})
}

// Explanations, paths and prefixes over a call are those of an owner's own trees.
func TestKindsOverACall(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		r.store("2", 1, 5, indexer.Host, indexer.Disk)
		here, there := r.nodes["a"].s.NewSearcher(), r.nodes["c"].s.NewSearcher()
		defer here.Close()
		defer there.Close()
		q := r.question(1)
		for _, instance := range []string{"0", "1", "2"} {
			_, slot := r.slot(instance)
			there.Begin(t.Context())
			want, got := here.Explain(q, slot, nil), there.Explain(q, slot, nil)
			if !slices.Equal(got, want) || len(got) != testBlocks {
				t.Errorf("explain %s: %v, want %v", instance, got, want)
			}
		}
		rows := []indexer.Row{}
		for _, instance := range []string{"2", "0", "1"} {
			_, slot := r.slot(instance)
			rows = append(rows, indexer.Row{Slot: slot})
		}
		want := []indexer.Prefix{{Length: 5, Host: 5, Lower: 5}, {Length: 8, Device: 8}, {Length: 3, Device: 3}}
		for _, x := range []*Searcher{here, there} {
			x.Begin(t.Context())
			if got := x.Prefixes(q, rows, nil); !slices.Equal(got, want) {
				t.Errorf("prefixes: %+v", got)
			}
			s := append(sequence(1)[:6:6], 1, 2)
			got := x.AppendPath([]uint64{7}, indexer.SequenceQuery{Group: 1, Partition: q.Partition, Sequence: s})
			if !slices.Equal(got, append([]uint64{7}, path(1)[:6]...)) {
				t.Errorf("path: %v", got)
			}
			if c, err := x.Completeness(); c.Partial || c.Stale || err != nil {
				t.Errorf("%+v %v", c, err)
			}
		}
		if n := r.nodes["c"].s.Stats().Calls; n != 5 {
			t.Errorf("%d calls for five questions", n)
		}
		return r
	})
}

// An owner that dies costs nothing but the calls under way.
func TestOwnerDies(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		r.kill("a")
		for n := range 40 {
			r.check("a gone", n%6, r.query("c", n%6))
		}
		if s := r.nodes["c"].s.Stats(); s.Partial["partition"] != 0 || s.Failed["error"] > 5 {
			t.Errorf("%+v", s)
		}
		return r
	})
}

// A machine that is cut off swallows calls: the other owner is asked after the delay, and
// then preferred.
func TestOwnerSilent(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		r.net.CutMesh("c", "a")
		slow := 0
		for n := range 100 {
			got := r.query("c", n%6)
			r.check("a silent", n%6, got)
			if got.took > 60*time.Millisecond {
				t.Errorf("query %d took %v", n, got.took)
			}
			if got.took > 0 {
				slow++
			}
			time.Sleep(20 * time.Millisecond)
		}
		s := r.nodes["c"].s.Stats()
		if s.Hedges == 0 || s.HedgesWon != s.Hedges || slow > 10 {
			t.Errorf("%d slow of 100, %+v", slow, s)
		}
		return r
	})
}

// A slow owner is hedged; what it says too late goes nowhere, and its work is cancelled.
func TestSlowOwner(t *testing.T) {
	for _, hedge := range []time.Duration{0, 3 * time.Millisecond, -1} {
		inBubble(t, func(t *testing.T) *rig {
			r := three(t, func(c *Config) { c.Hedge = hedge }, mutant{})
			r.nodes["a"].index.hold.Store(int64(80 * time.Millisecond))
			var longest time.Duration
			for n := range 60 {
				got := r.query("c", n%6)
				r.check("a slow", n%6, got)
				longest = max(longest, got.took)
				time.Sleep(300 * time.Millisecond)
			}
			s := r.nodes["c"].s.Stats()
			limit := map[time.Duration]time.Duration{0: 25 * time.Millisecond, 3 * time.Millisecond: 3 * time.Millisecond, -1: 50 * time.Millisecond}[hedge]
			if s.HedgesWon == 0 || longest != limit || s.Failed["timeout"] != 0 {
				t.Errorf("hedge %v: the longest query took %v, want %v: %+v", hedge, longest, limit, s)
			}
			if late := r.nodes["c"].hub.Stats().Late; late == 0 {
				t.Error("no answer came late")
			}
			return r
		})
	}
}

// Without owners an answer says so: at once when they are known to be gone, at the deadline
// when they are silent.
func TestAllOwnersGone(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		r.net.CutMesh("c", "a")
		r.net.CutMesh("c", "b")
		got := r.query("c", 1)
		if !got.Partial || got.Stale || got.err != nil || len(got.depth) != 0 || got.took != 100*time.Millisecond || len(got.Missing) != 1 ||
			!strings.Contains(got.Missing[0], fmt.Sprintf("partition %d: ", r.partition(1, 1))) ||
			!strings.Contains(got.Missing[0], "a: no answer within 100ms") || !strings.Contains(got.Missing[0], "b: no answer within 100ms") {
			t.Errorf("silent owners: %+v", got)
		}
		r.mu.Lock()
		r.nodes["c"].dead = map[string]bool{"a": true, "b": true}
		r.mu.Unlock()
		r.kill("a")
		r.kill("b")
		for i := range 10 { // each of them is tried once a second
			if got = r.query("c", 1); !got.Partial || i > 0 && got.took > 0 {
				t.Errorf("dead owners: %+v after %v", got, got.took)
			}
		}
		if !strings.Contains(got.Missing[0], "a: not alive") || !strings.Contains(got.Missing[0], "b: not alive") {
			t.Errorf("%v", got.Missing)
		}
		if s := r.nodes["c"].s.Stats(); s.Partial["partition"] != 11 || s.Failed["timeout"] > 4 {
			t.Errorf("%+v", s)
		}
		return r
	})
}

// An owner that only seems dead is found out.
func TestAliveIsAHint(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		r.mu.Lock()
		r.nodes["c"].dead = map[string]bool{"a": true, "b": true}
		r.mu.Unlock()
		r.check("first probe", 1, r.query("c", 1))
		r.check("second probe", 1, r.query("c", 1))
		if got := r.query("c", 1); !got.Partial {
			t.Errorf("both were probed already: %+v", got)
		}
		time.Sleep(time.Second)
		r.check("a second later", 1, r.query("c", 1))
		return r
	})
}

// A partition that no live process may be read for.
func TestNoReadyOwner(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		r.introduce("a", 11) // both restarted: their copies are those of processes that are gone
		r.introduce("b", 12)
		got := r.query("c", 1)
		if want := fmt.Sprintf("partition %d: no ready owner", r.partition(1, 1)); !got.Partial || !slices.Equal(got.Missing, []string{want}) || len(got.depth) != 0 {
			t.Errorf("%+v", got)
		}
		return r
	})
}

// Parts that a request lacks are named once, and not without end.
func TestMissingIsBounded(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		for i := range 40 {
			name := fmt.Sprint("x", i)
			r.register(name)
			r.close(true, name, 1, "a", "b")
		}
		x := r.nodes["a"].s.NewSearcher()
		defer x.Close()
		var got asked
		for range 2 { // a request may ask twice about a path
			got = r.queryWith(x, r.nodes["a"], 1)
		}
		if !got.Partial || len(got.Missing) != maxMissing+1 || got.Missing[maxMissing] != fmt.Sprintf("and %d more", 40-maxMissing) {
			t.Errorf("%q", got.Missing)
		}
		return r
	})
}

// Ready follows the lease, the boot id and the log.
func TestReady(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		want := func(node, reason string) {
			t.Helper()
			if ok, got, detail := r.nodes[node].s.Ready(); got != reason || ok != (reason == "") || ok != (detail == "") {
				t.Errorf("%s: %v %q %q, want %q", node, ok, got, detail, reason)
			}
		}
		want("a", "")
		want("c", NotReadyJoining)
		r.cut(true, "a")
		time.Sleep(6 * time.Second)
		want("a", NotReadyLease)
		want("b", "")
		r.introduce("b", 12) // the next process of b
		want("b", NotReadyJoining)
		r.kill("b")
		r.start("b", 12)
		time.Sleep(time.Second)
		want("b", NotReadyFilling)
		for p := range uint32(testParts) {
			r.move(p, "b", "")
		}
		want("b", "")
		return r
	})
}

// A request ends with its client, and one after Run has ended says so.
func TestEnds(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		r.net.CutMesh("c", "a")
		r.net.CutMesh("c", "b")
		x := r.nodes["c"].s.NewSearcher()
		defer x.Close()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		start := time.Now()
		x.Begin(ctx)
		var scores indexer.Scores
		x.Match(r.question(1), &scores)
		c, err := x.Completeness()
		if took := time.Since(start); took != 10*time.Millisecond || !c.Partial || err != nil {
			t.Errorf("after %v: %+v %v", took, c, err)
		}
		n := r.nodes["c"]
		r.kill("c")
		if got := r.queryWith(x, n, 1); !got.Partial || !strings.Contains(got.Missing[0], errEnded.Error()) {
			t.Errorf("after the end: %+v", got)
		}
		return r
	})
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Name: "a"}, {Name: "a", Boot: 1, Deadline: -1}, {Name: "a", Boot: 1, TServe: time.Millisecond}, {Name: "a", Boot: 1, StaleReads: "x"}} {
		if err := c.Validate(); err == nil {
			t.Errorf("%+v passes", c)
		}
	}
	if _, err := New(Config{Name: "a", Boot: 1}, Deps{}); err == nil {
		t.Error("no dependencies")
	}
}

// A dump is put together from owners that can be read.
func TestDumpSlot(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		g, slot := r.slot("0")
		dump := func(node string) (n int, err error) {
			err = r.nodes[node].s.DumpSlot(t.Context(), g, slot, func(s indexer.Stretch) error {
				n += len(s.Locals)
				return nil
			})
			return n, err
		}
		all := 6 * testBlocks
		for _, node := range []string{"a", "b", "c"} {
			if n, err := dump(node); n != all || err != nil {
				t.Errorf("%s: %d blocks of %d, %v", node, n, all, err)
			}
		}
		// Of two copies each one is closed somewhere, in different partitions.
		one, other := r.pathIn(0, 0), r.pathIn(1, 0)
		r.close(true, "0", one, "a")
		r.close(true, "0", other, "b")
		for _, node := range []string{"a", "b", "c"} {
			if n, err := dump(node); n != all || err != nil {
				t.Errorf("%s with closed copies: %d blocks of %d, %v", node, n, all, err)
			}
		}
		r.close(true, "0", one, "b")
		for _, node := range []string{"a", "b", "c"} {
			if _, err := dump(node); !errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), "partition 0") {
				t.Errorf("%s without a copy: %v", node, err)
			}
		}
		stop := errors.New("stop")
		if err := r.nodes["c"].s.DumpSlot(t.Context(), g, slot, func(indexer.Stretch) error { return stop }); err == nil {
			t.Error("the visitor's error is lost")
		}
		r.apply(state.Command{Unregister: &state.Unregister{Unregistration: catalog.Unregistration{Instance: "0", Model: "m"}}})
		if n, err := dump("c"); n != 0 || err != nil {
			t.Errorf("a slot that is retired: %d blocks, %v", n, err)
		}
		return r
	})
}
