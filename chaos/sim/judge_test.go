package sim

import (
	"testing"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cluster/search"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// judged is a world with one engine that held three blocks of prompt 0, then two.
func judged(t *testing.T) (*world, *state.View) {
	w := newWorld(Config{Partitions: 4})
	e := &engine{w: w, id: "e0", said: model.New[string](model.Config{})}
	e.begin(held{})
	e.begin(held{0: {0b111, 0}})
	e.begin(held{0: {0b011, 0b100}})
	e.begin(held{0: {0b011, 0}})
	w.engines = []*engine{e}
	c := catalog.New()
	if err := c.Register(7, catalog.Registration{Instance: "e0", Group: groupKey, BlockSize: blockTokens, Endpoint: "engine"}); err != nil {
		t.Fatal(err)
	}
	return w, &state.View{Index: 7, Catalog: c.View()}
}

// The judge finds answers that are too high or too low, and lets those pass that say so.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		name         string
		from         since
		got          [2]int
		completeness search.Completeness
		wrong        bool
	}{
		{"as it is", since{3, 7}, [2]int{2, 2}, search.Completeness{}, false},
		{"too high", since{3, 7}, [2]int{3, 3}, search.Completeness{}, true},
		{"too high in the host tier", since{3, 7}, [2]int{2, 3}, search.Completeness{}, true},
		{"too high and partial", since{3, 7}, [2]int{3, 3}, search.Completeness{Partial: true}, true},
		{"too high and stale", since{3, 7}, [2]int{3, 3}, search.Completeness{Stale: true}, false},
		{"too low", since{3, 7}, [2]int{1, 1}, search.Completeness{}, true},
		{"too low and partial", since{3, 7}, [2]int{1, 1}, search.Completeness{Partial: true}, false},
		{"too low in another life", since{3, 6}, [2]int{0, 0}, search.Completeness{}, false},
		{"the removal is under way", since{1, 7}, [2]int{3, 3}, search.Completeness{}, false},
		{"between two tiers", since{2, 7}, [2]int{2, 3}, search.Completeness{}, false},
		{"what it never held", since{0, 7}, [2]int{4, 4}, search.Completeness{}, true},
		{"a new life shows the past", since{3, 6}, [2]int{3, 3}, search.Completeness{}, false},
	} {
		w, v := judged(t)
		w.judge(answer{Completeness: c.completeness, at: "n0", view: v, walks: map[string][2]int{"e0": c.got}}, v, 0, []since{c.from}, w.began)
		if w.failed() != c.wrong {
			t.Errorf("%s: %v", c.name, w.mu.failures)
		}
	}
}
