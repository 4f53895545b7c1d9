package search

import (
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
)

// takeOver gives an instance's source another reader, and its rank a new life if asked.
func (r *rig) takeOver(instance string, newLife bool) (life uint64) {
	v := r.state.View()
	for _, s := range v.Catalog.Sources() {
		if a := v.Assignments[s.ID]; s.Instance == instance {
			r.apply(state.Command{Assign: &state.Assign{Source: s.ID, Node: a.Node, Over: a.Tenure}})
			life = s.Ranks[0].Life
		}
	}
	if newLife {
		life = r.apply(state.Command{NewLife: &state.NewLife{Instance: instance, Life: life}}).Index
	}
	return life
}

func (r *rig) filled(instance string, life uint64) {
	r.apply(state.Command{Filled: &state.Filled{Instance: instance, Life: life}})
}

// An answer that was read while a slot was being filled after its source had been taken
// over says so and credits nothing to it, whoever read it and however long ago; one read afterwards does not.
func TestFillingIsSaid(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		named := func(where string, got asked) {
			t.Helper()
			_, credited := got.depth["0"]
			if got.err != nil || !got.Partial || len(got.Missing) != 1 || !strings.Contains(got.Missing[0], "instance 0 rank 0") || credited || got.depth["1"] != 3 {
				r.fail("%s: %v %+v %v", where, got.depth, got.Completeness, got.err)
			}
		}
		r.filled("0", r.takeOver("0", false))
		r.check("filled, with what there was", 1, r.query("c", 1))
		life := r.takeOver("0", false)
		for _, node := range []string{"a", "b", "c"} { // what is there may be more than what the engine has
			named("taken over, at "+node, r.query(node, 1))
		}
		life = r.takeOver("0", true)
		for n := range 6 {
			delete(r.held, heldKey{"0", n})
		}
		for _, node := range []string{"a", "b", "c"} {
			named("filling, at "+node, r.query(node, 1))
		}
		x := r.nodes["a"].s.NewSearcher()
		defer x.Close()
		_, slot := r.slot("0")
		_, other := r.slot("1")
		for s, want := range map[indexer.Slot]bool{slot: true, other: false} {
			x.Begin(t.Context())
			states := x.Explain(r.question(1), s, nil)
			if held := states[0].Tiers != 0; held == want {
				t.Errorf("explain slot %d: %v", s, states)
			}
			if c, err := x.Completeness(); c.Partial != want || err != nil {
				t.Errorf("explain slot %d: %+v %v", s, c, err)
			}
		}
		for _, node := range []string{"a", "c"} { // it is filled between the reading and the end
			for _, owner := range []string{"a", "b"} {
				r.nodes[owner].index.pause.Store(int64(10 * time.Millisecond))
			}
			time.AfterFunc(5*time.Millisecond, func() {
				r.store("0", 1, 5)
				r.filled("0", life)
			})
			named("filled meanwhile, at "+node, r.query(node, 1))
			for _, owner := range []string{"a", "b"} {
				r.nodes[owner].index.pause.Store(0)
			}
			r.check("filled", 1, r.query(node, 1))
			delete(r.held, heldKey{"0", 1})
			// It starts over and is filled between the reading and the end.
			for _, owner := range []string{"a", "b"} {
				r.nodes[owner].index.pause.Store(int64(10 * time.Millisecond))
			}
			time.AfterFunc(5*time.Millisecond, func() { r.filled("0", r.takeOver("0", true)) })
			named("all of it meanwhile, at "+node, r.query(node, 1))
			for _, owner := range []string{"a", "b"} {
				r.nodes[owner].index.pause.Store(0)
			}
			r.check("filled again", 1, r.query(node, 1))
			life = r.takeOver("0", node == "c")
		}
		return r
	})
}
