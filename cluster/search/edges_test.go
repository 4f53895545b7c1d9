package search

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// A path that only a slot stored whose copy is closed at one owner.
func TestPathOfUnreadableSlot(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		n := r.pathIn(2, 5)
		r.register("x")
		g, slot := r.slot("x")
		r.nodes["b"].write(g, 2, slot, n, 6) // a has nothing of it
		r.close(true, "x", n, "a")
		for _, node := range []string{"a", "b", "c", "c", "c"} {
			x := r.nodes[node].s.NewSearcher()
			defer x.Close()
			x.Begin(t.Context())
			if got := x.AppendPath(nil, indexer.SequenceQuery{Group: 1, Partition: 2, Sequence: sequence(n)}); len(got) != 6 {
				t.Errorf("%s: %d blocks of 6", node, len(got))
			}
			if c, err := x.Completeness(); c.Partial || err != nil {
				t.Errorf("%s: %+v %v", node, c, err)
			}
		}
		return r
	})
}

// An answer from before the first one's map index knows too little to complete it: that owner
// is asked again, at the pin.
func TestAnswerBelowThePin(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, func(c *Config) { c.Hedge = 3 * time.Millisecond }, mutant{})
		r.close(true, "0", 1, "b")
		c := r.nodes["c"]
		c.s.peer("b").note(50*time.Millisecond, time.Now()) // so that a is asked first
		r.lag(true, "a", "c")
		r.register("new")
		r.store("new", 1, 4)
		r.nodes["a"].index.hold.Store(int64(30 * time.Millisecond))
		time.AfterFunc(2*time.Millisecond, func() { r.lag(false, "c") })
		time.AfterFunc(35*time.Millisecond, func() { r.lag(false, "a") })
		got := r.query("c", 1)
		r.check("below the pin", 1, got)
		if s := c.s.Stats(); s.Calls != 3 || s.HedgesWon != 1 || got.took < 60*time.Millisecond {
			t.Errorf("after %v: %+v", got.took, s)
		}
		return r
	})
}

// What is no request is refused, counted, and harms nobody.
func TestGarbage(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		good := appendQuestion(nil, &question{kind: kindMatch, query: r.question(1)})
		other := append([]byte(nil), good...)
		other[0] = 9
		for text, req := range map[string][]byte{"request of 0 bytes": nil, "request of 7 bytes": make([]byte, 7), "version 0": make([]byte, 64), "version 9, this node speaks 1": other, "bytes for": good[:64]} {
			_, err := r.nodes["c"].hub.Call(t.Context(), "a", Method, req)
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v", text, err)
			}
		}
		if n := r.nodes["a"].s.Stats().ServedFailed["malformed"]; n != 5 {
			t.Errorf("%d malformed", n)
		}
		// Partitions and groups that there are not.
		x := r.nodes["c"].s.NewSearcher()
		defer x.Close()
		var scores indexer.Scores
		x.Begin(t.Context())
		x.Match(indexer.Query{Group: 7, Partition: 1, Locals: path(1)}, &scores)
		if c, err := x.Completeness(); c.Partial || err != nil || len(scores.Rows) != 0 {
			t.Errorf("a group that there is not: %+v %v", c, err)
		}
		x.Begin(t.Context())
		x.Match(indexer.Query{Group: 1, Partition: 99, Locals: path(1)}, &scores)
		if c, _ := x.Completeness(); !c.Partial {
			t.Error("a partition that there is not is complete")
		}
		r.check("after that", 1, r.query("c", 1))
		// An owner that answers nonsense is one that failed.
		r.nodes["a"].hub.Handle(Method, func(context.Context, string, []byte) ([]byte, error) { return []byte("nonsense"), nil })
		for range 4 {
			r.check("a talks nonsense", 1, r.query("c", 1))
		}
		if n := r.nodes["c"].s.Stats().Failed["malformed"]; n == 0 {
			t.Error("nonsense is not counted")
		}
		return r
	})
}

// Many at once, while views change. The race detector looks on.
func TestAtTheSameTime(t *testing.T) {
	inBubble(t, func(t *testing.T) *rig {
		r := three(t, nil, mutant{})
		want := make([]map[string]uint32, 6)
		for n := range want {
			want[n] = r.want(n)
		}
		var all sync.WaitGroup
		for i := range 12 {
			node := r.nodes[string(rune('a'+i%3))]
			all.Go(func() {
				x := node.s.NewSearcher()
				defer x.Close()
				for q := range 60 {
					got := r.queryWith(x, node, (i+q)%6)
					if got.Partial || got.Stale || got.err != nil || !maps.Equal(got.depth, want[(i+q)%6]) {
						t.Errorf("%s: %v %+v", node.name, got.depth, got.Completeness)
					}
					node.s.Stats()
					node.s.Ready()
					time.Sleep(time.Duration(i) * 100 * time.Microsecond)
				}
			})
		}
		for i := range 30 {
			r.lag(i%3 != 0, "a", "c")
			r.register(fmt.Sprint("n", i))
			time.Sleep(300 * time.Microsecond)
		}
		r.lag(false, "a", "c")
		all.Wait()
		return r
	})
}
