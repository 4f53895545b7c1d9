package fanout

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// A life that another reader wrote goes on where copies are equal to what is continued;
// all others are closed before anything is acknowledged without them.
func TestAdopt(t *testing.T) {
	p := newPaper(t, nil)
	for q := range uint32(2) {
		p.do(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: q, To: "c"}}}})
	}
	b, c := sessionTo("b", 1), sessionTo("c", 2)
	p.fan.OnPeer(b, true)
	p.do(state.Command{Register: &state.Registration{Node: "c", Registration: catalog.Registration{
		Instance: "i0", Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: "tcp://e:1"}}})
	src := p.state.View().Catalog.Sources()[0]
	p.do(state.Command{Assign: &state.Assign{Source: src.ID, Node: "a"}})
	tenure := p.state.View().Assignments[src.ID].Tenure
	l := copywire.SlotLife{Group: 1, Slot: 0, Life: src.Ranks[0].Life}
	equal := []copywire.Label{{Partition: 0, Tenure: l.Life, Sequence: 7}, {Partition: 1, Tenure: l.Life, Sequence: 9}}
	have := map[string][]copywire.Label{"b": equal[:1], "c": equal}
	for name, err := range map[string]error{
		"nobody can be reached who has partition 1": p.fan.Adopt(l, tenure, have, []uint64{7, 9}),
		"another tenure": p.fan.Adopt(l, tenure+1, have, []uint64{7, 9}),
		"other lengths":  p.fan.Adopt(l, tenure, have, []uint64{7}),
	} {
		if !errors.Is(err, ErrAdopt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.fan.OnPeer(c, true)
	must(t, p.fan.Adopt(l, tenure, have, []uint64{7, 9}))
	if got := p.kinds(c); !slices.Equal(got, []string{"carry"}) {
		t.Errorf("c, which has all, got %v", got)
	}
	p.mu.Lock()
	sent := p.mu.sent[b]
	p.mu.Unlock()
	last := sent[len(sent)-1]
	if h := last.Frame.Header(); last.Kind != copywire.KindFill || !last.First || last.Last || h.Partition != 1 || h.Tenure != tenure {
		t.Errorf("b, whose copy of partition 1 is another, got %v at last: %+v", p.kinds(b), last)
	}
	w := p.fan.NewWriter()
	f := frame(l, 1, 10)
	f[4] = tenure
	must(t, w.Write(f))
	if got := p.kinds(c); !slices.Equal(got, []string{"carry", "frame"}) {
		t.Errorf("c got %v", got)
	}
	p.fan.OnAck(c, 2)
	applied(t, w, 0) // b may still answer from what it has
	p.fan.OnAck(b, uint64(len(sent)))
	applied(t, w, 1)
	if err := p.fan.Adopt(l, tenure, have, []uint64{7, 9}); !errors.Is(err, ErrAdopt) {
		t.Errorf("twice: %v", err)
	}
	w.Close()
}

// An owner that was not fenced off and cannot be told may answer from what the earlier
// reader sent: until its map is too old for that, nothing is acknowledged without it.
func TestAdoptWithoutAnOwner(t *testing.T) {
	for _, fenced := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p := newPaper(t, nil)
			c := sessionTo("c", 2)
			for q := range uint32(2) {
				p.do(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: q, To: "c"}}}})
			}
			p.do(state.Command{Register: &state.Registration{Node: "c", Registration: catalog.Registration{
				Instance: "i0", Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: "tcp://e:1"}}})
			src := p.state.View().Catalog.Sources()[0]
			p.do(state.Command{Assign: &state.Assign{Source: src.ID, Node: "a"}})
			tenure := p.state.View().Assignments[src.ID].Tenure
			l := copywire.SlotLife{Group: 1, Slot: 0, Life: src.Ranks[0].Life}
			have := map[string][]copywire.Label{"a": nil, "c": {{Partition: 0, Tenure: l.Life, Sequence: 7}, {Partition: 1, Tenure: l.Life, Sequence: 9}}}
			if fenced {
				have["b"] = nil
			}
			p.fan.OnPeer(c, true)
			must(t, p.fan.Adopt(l, tenure, have, []uint64{7, 9}))
			w := p.fan.NewWriter()
			f := frame(l, 1, 10)
			f[4] = tenure
			must(t, w.Write(f))
			reached := w.(*writer).Reach(l.Group, l.Slot)
			if reached() {
				t.Error("a frame is at all who have the slot before they said so")
			}
			p.fan.OnAck(c, 2)
			if !reached() {
				t.Error("a frame is not at all who have the slot")
			}
			if fenced {
				applied(t, w, 1)
			} else {
				applied(t, w, 0)
				time.Sleep(p.fan.cfg.Linger)
				applied(t, w, 1)
			}
			w.Close()
		})
	}
}

// Who has no open copy of a slot is not waited for where only that slot counts, however
// far it is behind with others; whoever may have one is, until it has lapsed.
func TestReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaperOf(t, 2, nil)
		b, c := sessionTo("b", 1), sessionTo("c", 2)
		p.fan.OnPeer(b, true)
		p.fan.OnPeer(c, true)
		var lives []copywire.SlotLife
		for q, owner := range []string{"b", "c"} {
			p.do(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: uint32(q), To: owner}}}})
		}
		for i := range 2 {
			p.do(state.Command{Register: &state.Registration{Node: "a", Registration: catalog.Registration{
				Instance: fmt.Sprint("i", i), Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: fmt.Sprint("tcp://e:", i)}}})
			src := p.state.View().Catalog.Sources()[i]
			lives = append(lives, copywire.SlotLife{Group: 1, Slot: indexer.Slot(src.Ranks[0].Slot), Life: src.Ranks[0].Life})
		}
		w := p.fan.NewWriter().(*writer)
		must(t, w.Write(frame(lives[0], 0, 1))) // at b
		must(t, w.Write(frame(lives[1], 1, 1))) // at c
		first, second := w.Reach(lives[0].Group, lives[0].Slot), w.Reach(lives[1].Group, lives[1].Slot)
		for _, step := range []struct {
			do            func()
			first, second bool
		}{
			{func() {}, false, false},
			{func() { p.fan.OnAck(c, 1<<20) }, false, true},
			{func() { p.fan.OnLapse(b, true) }, true, true},
		} {
			step.do()
			if first() != step.first || second() != step.second {
				t.Errorf("reached %v and %v, want %+v", first(), second(), step)
			}
		}
		w.Close()
	})
}
