package search

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// scenario is one thing that goes wrong, with what the rules want of it. Each is run with
// all rules, and by TestMutants without one.
type scenario func(t *testing.T, m mutant) *rig

var scenarios = map[string]scenario{
	"lease lost at the asker":      leaseLostAtAsker,
	"lease lost at the owner":      leaseLostAtOwner,
	"paused between lease and end": pausedAfterReading,
	"responder behind":             responderBehind,
	"asker behind":                 askerBehind,
	"asker never catches up":       askerStuck,
	"unreadable at one owner":      unreadableAtOne,
	"unreadable at all owners":     unreadableAtAll,
	"filled while it is read":      filledMeanwhile,
	"owner restarted":              ownerRestarted,
	"restart not yet known":        restartUnknown,
	"partition moved":              partitionMoved,
	"slot reused":                  slotReused,
}

func TestFaults(t *testing.T) {
	for name, run := range scenarios {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) *rig { return run(t, mutant{}) })
		})
	}
}

// Without its rule each scenario goes wrong.
func TestMutants(t *testing.T) {
	for _, c := range []struct {
		name, scenario string
		mutant         mutant
	}{
		{"lease checked before the tree is read", "paused between lease and end", mutant{leaseFirst: true}},
		{"no lease at the asker", "lease lost at the asker", mutant{noLease: true}},
		{"no lease at the owner", "lease lost at the owner", mutant{noLease: true}},
		{"missing owners not told", "unreadable at all owners", mutant{whole: true}},
		{"unreadable ignored", "unreadable at one owner", mutant{unreadable: true}},
		{"unreadable ignored, all owners", "unreadable at all owners", mutant{unreadable: true}},
		{"copies looked at after the tree only", "filled while it is read", mutant{lateMark: true}},
		{"not-ready owner answers", "owner restarted", mutant{anyOwner: true}},
		{"former owner answers", "partition moved", mutant{anyOwner: true}},
		{"former boot id trusted", "restart not yet known", mutant{otherBoot: true}},
		{"rows mapped with an old view", "asker behind", mutant{oldView: true}},
		{"rows mapped with an old view for ever", "asker never catches up", mutant{oldView: true}},
		{"responder does not wait", "responder behind", mutant{behind: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := scenarios[c.scenario](t, c.mutant)
				found := r.bad
				r.bad = nil
				r.end()
				if len(found) == 0 {
					t.Error("nothing goes wrong without the rule")
				}
				t.Log(strings.Join(found, "\n"))
			})
		})
	}
}

func refuse(c *Config) { c.StaleReads = StaleRefuse }

// A node that is cut off from the leader says so after TServe and not before, gives no
// answer if it is to refuse, and recovers.
func leaseLostAtAsker(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	for _, node := range []string{"c", "b"} {
		r.cut(true, node)
		time.Sleep(3 * time.Second)
		r.check(node+" within the lease", 1, r.query(node, 1))
		time.Sleep(4 * time.Second)
		got := r.query(node, 1)
		if !got.Stale || got.Partial || got.err != nil || got.MapAge < 5*time.Second || got.MapAge > 9*time.Second || got.depth["0"] != testBlocks {
			r.fail("%s without a lease: %+v", node, got)
		}
		r.cut(false, node)
		time.Sleep(2 * time.Second)
		r.check(node+" again", 1, r.query(node, 1))
	}
	if s := r.nodes["c"].s.Stats(); s.Stale != 1 || s.LeaseFailed == 0 || !s.LeaseHeld {
		r.fail("%+v", s)
	}
	return r
}

// So does an owner: its log may lack that it is none any more.
func leaseLostAtOwner(t *testing.T, m mutant) *rig {
	r := three(t, refuse, m)
	r.cut(true, "a", "b")
	time.Sleep(7 * time.Second)
	got := r.query("c", 1)
	if !errors.Is(got.err, ErrStale) || !got.Stale || got.MapAge < 5*time.Second || !strings.Contains(got.err.Error(), "cannot prove that its map is current") {
		r.fail("owners without a lease: %+v", got)
	}
	r.cut(false, "a", "b")
	time.Sleep(2 * time.Second)
	r.check("again", 1, r.query("c", 1))
	return r
}

// A process may stand still between any two steps. The lease counts when everything has
// been read.
func pausedAfterReading(t *testing.T, m mutant) *rig {
	r := three(t, func(c *Config) { c.Deadline = time.Minute; c.Hedge = -1 }, m)
	for _, node := range []string{"a", "c"} {
		r.cut(true, "a", "b")
		r.nodes["a"].index.pause.Store(int64(7 * time.Second))
		r.nodes["b"].index.pause.Store(int64(7 * time.Second))
		if got := r.query(node, 1); !got.Stale {
			r.fail("asked %s, and the owner stood still for longer than its lease: %+v", node, got)
		}
		r.cut(false, "a", "b")
		r.nodes["a"].index.pause.Store(0)
		r.nodes["b"].index.pause.Store(0)
		time.Sleep(3 * time.Second)
	}
	return r
}

// An owner whose log is behind the asker's does not answer before it has caught up: it may
// not know that it is an owner, or who has which slot.
func responderBehind(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	r.lag(true, "a", "b")
	r.register("new")
	r.store("new", 1, 4)
	time.AfterFunc(40*time.Millisecond, func() { r.lag(false, "a") })
	got := r.query("c", 1)
	r.check("owners behind", 1, got)
	if got.took < 40*time.Millisecond {
		r.fail("answered after %v, before any owner knew", got.took)
	}
	r.lag(true, "a")
	r.register("newer")
	if got := r.query("c", 1); !got.Partial || len(got.depth) != 0 {
		r.fail("owners that never catch up: %+v", got)
	}
	r.lag(false, "a", "b")
	r.check("caught up", 1, r.query("c", 1))
	return r
}

// An asker that is behind waits until it can name every slot.
func askerBehind(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	r.lag(true, "c")
	r.register("new")
	r.store("new", 1, 4)
	time.AfterFunc(30*time.Millisecond, func() { r.lag(false, "c") })
	r.check("asker behind", 1, r.query("c", 1))
	return r
}

func askerStuck(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	r.lag(true, "c")
	r.register("new")
	r.store("new", 1, 4)
	got := r.query("c", 1)
	if !got.Partial || len(got.Missing) != 1 || !strings.Contains(got.Missing[0], "node c has applied the log to") {
		r.fail("an asker that never catches up: %+v", got)
	}
	return r
}

// Slots that one owner cannot read are asked of another, and of nobody else; what the first
// has of them does not count.
func unreadableAtOne(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	_, slot := r.slot("0")
	n := 1
	p := r.partition(1, n)
	// The copies that are closed still show what was true once: more than is held now.
	drop := func(node string) {
		var b indexer.FrameBuilder
		b.Reset(indexer.Header{Group: 1, Partition: p, Slot: slot, Life: 1, Tenure: 1, Sequence: 2})
		b.Drop(indexer.Device, indexer.MakeRange(indexer.Run(n), 2, testBlocks-2))
		w := r.nodes[node].index.NewWriter()
		defer w.Close()
		if err := w.Write(b.Frame()); err != nil {
			t.Fatal(err)
		}
	}
	drop("b")
	r.held[heldKey{"0", n}] = 2
	r.close(true, "0", n, "a")
	for range 6 {
		for _, node := range []string{"a", "b", "c"} {
			r.check(node, n, r.query(node, n))
		}
	}
	// The other kinds of questions.
	for _, node := range []string{"a", "c"} {
		x := r.nodes[node].s.NewSearcher()
		defer x.Close()
		for range 3 {
			x.Begin(t.Context())
			states := x.Explain(r.question(n), slot, nil)
			if !states[1].Tiers.Has(indexer.Device) || states[2].Tiers != 0 || !states[2].Evicted {
				r.fail("%s explains %v", node, states)
			}
			_, other := r.slot("1")
			prefixes := x.Prefixes(r.question(n), []indexer.Row{{Slot: other}, {Slot: slot}}, nil)
			if prefixes[0].Length != 3 || prefixes[1].Length != 2 {
				r.fail("%s: prefixes %v", node, prefixes)
			}
			if c, err := x.Completeness(); c.Partial || err != nil {
				r.fail("%s: %+v %v", node, c, err)
			}
		}
	}
	return r
}

// A copy that is opened between the reading of the tree and the look at the copies was not
// open when it was read.
func filledMeanwhile(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	g, slot := r.slot("0")
	n := 1
	for _, node := range []string{"a", "c"} {
		if err := r.nodes["a"].index.Purge(t.Context(), g, slot); err != nil {
			t.Fatal(err)
		}
		r.close(true, "0", n, "a")
		r.nodes["a"].index.pause.Store(int64(10 * time.Millisecond))
		time.AfterFunc(5*time.Millisecond, func() {
			r.nodes["a"].write(g, r.partition(g, n), slot, n, testBlocks)
			r.close(false, "0", n, "a")
		})
		r.check(node, n, r.query(node, n))
		time.Sleep(time.Second)
		r.nodes["a"].index.pause.Store(0)
	}
	return r
}

func unreadableAtAll(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	r.close(true, "1", 1, "a", "b")
	want := fmt.Sprintf("instance 1 rank 0 in partition %d: ", r.partition(1, 1))
	for _, node := range []string{"a", "b", "c"} {
		got := r.query(node, 1)
		if !got.Partial || got.Stale || len(got.Missing) != 1 || !strings.HasPrefix(got.Missing[0], want) || got.depth["0"] != testBlocks || got.depth["1"] != 0 {
			r.fail("%s: %+v", node, got)
		}
		if got.took > 0 {
			r.fail("%s: %v for what nobody can answer", node, got.took)
		}
		r.check(node+", another partition", r.pathIn((r.partition(1, 1)+1)%testParts, 0), r.query(node, r.pathIn((r.partition(1, 1)+1)%testParts, 0)))
	}
	return r
}

// A process that has just started is not asked for what the one before it held.
func ownerRestarted(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	r.kill("a")
	r.introduce("a", 11)
	r.start("a", 11)
	time.Sleep(time.Second)
	for range 6 {
		for _, node := range []string{"a", "b", "c"} {
			r.check(node, 1, r.query(node, 1))
		}
	}
	return r
}

// The log does not know yet that the process is another one.
func restartUnknown(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	r.kill("a")
	r.start("a", 11)
	time.Sleep(time.Second)
	for range 6 {
		for _, node := range []string{"a", "c"} {
			r.check(node, 1, r.query(node, 1))
		}
	}
	return r
}

// A partition moves while the asker does not know: the former owner says at which map index
// it is none, and the asker plans again.
func partitionMoved(t *testing.T, m mutant) *rig {
	r := newRigBroken(t, nil, m, []string{"a", "b", "c"}, []string{"a"}, []string{"a"}, []string{"a"}, []string{"a"})
	r.register("0")
	r.store("0", 1, 4)
	r.lag(true, "c")
	p := r.partition(1, 1)
	r.move(uint32(p), "b", "a")
	g, slot := r.slot("0")
	r.nodes["b"].write(g, p, slot, 1, 4)
	if err := r.nodes["a"].index.Purge(t.Context(), g, slot); err != nil { // a has freed it
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { r.lag(false, "c") })
	got := r.query("c", 1)
	r.check("moved", 1, got)
	r.check("at the former owner", 1, r.query("a", 1))
	if s := r.nodes["c"].s.Stats(); s.Replans != 1 || got.took < 20*time.Millisecond || got.took > 25*time.Millisecond {
		r.fail("after %v: %+v", got.took, s)
	}
	r.lag(true, "c")
	r.move(uint32(p), "a", "b")
	if got := r.query("c", 1); !got.Partial {
		r.fail("an asker that cannot learn the layout: %+v", got)
	}
	return r
}

// A slot changes hands while its rows are on their way: the next holder gets nothing.
func slotReused(t *testing.T, m mutant) *rig {
	r := three(t, nil, m)
	r.nodes["a"].index.pause.Store(int64(50 * time.Millisecond))
	r.nodes["b"].index.pause.Store(int64(50 * time.Millisecond))
	_, slot := r.slot("0")
	time.AfterFunc(10*time.Millisecond, func() {
		res := r.apply(state.Command{Unregister: &state.Unregister{Unregistration: catalog.Unregistration{Instance: "0", Model: "m"}}})
		for name, n := range r.nodes {
			if err := n.index.Purge(t.Context(), 1, slot); err != nil {
				t.Error(err)
			}
			r.apply(state.Command{Purged: &state.Purged{Member: name, Slot: res.Retired[0]}})
		}
		r.register("next")
		if _, again := r.slot("next"); again != slot {
			t.Errorf("slot %d was not used again, but %d", slot, again)
		}
	})
	got := r.query("c", 1)
	if d, ok := got.depth["next"]; ok {
		r.fail("the next holder of the slot is credited with %d blocks", d)
	}
	if got.depth["1"] != 3 {
		r.fail("%+v", got)
	}
	return r
}
