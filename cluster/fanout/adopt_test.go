package fanout

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

// takenOver gives node a a source that c has read, and all partitions to c as well.
func (p *paper) takenOver() (l copywire.SlotLife, tenure uint64) {
	for q := range uint32(2) {
		p.do(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: q, To: "c"}}}})
	}
	p.do(state.Command{Register: &state.Registration{Node: "c", Registration: catalog.Registration{
		Instance: "i0", Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: "tcp://e:1"}}})
	src := p.state.View().Catalog.Sources()[0]
	p.do(state.Command{Assign: &state.Assign{Source: src.ID, Node: "a"}})
	tenure = p.state.View().Assignments[src.ID].Tenure
	l = copywire.SlotLife{Group: 1, Slot: 0, Life: src.Ranks[0].Life}
	return l, tenure
}

// A life that another reader wrote goes on where copies are equal to what is continued;
// all others are closed before anything is acknowledged without them.
func TestAdopt(t *testing.T) {
	p := newPaper(t, nil)
	l, tenure := p.takenOver()
	b, c := sessionTo("b", 1), sessionTo("c", 2)
	p.fan.OnPeer(b, true)
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
	reached := w.(*writer).Reach(l.Group, l.Slot)
	reach := func(when string, want bool) {
		t.Helper()
		if got := reached(); got != want {
			t.Errorf("%s: at all who have the slot: %v, want %v", when, got, want)
		}
	}
	reach("written", false)
	p.fan.OnAck(c, 2)
	reach("c has it", false)
	applied(t, w, 0) // b may still answer from what it has
	p.fan.OnLapse(b, true)
	reach("b cannot answer", true)
	p.fan.OnLapse(b, false)
	reach("b can answer", false)
	p.fan.OnAck(b, uint64(len(sent)))
	applied(t, w, 1)
	if err := p.fan.Adopt(l, tenure, have, []uint64{7, 9}); !errors.Is(err, ErrAdopt) {
		t.Errorf("twice: %v", err)
	}
	w.Close()
}

// An owner that was not fenced off and cannot be told may answer from what the earlier
// reader sent: until its map is too old for that, nothing is acknowledged without it. One
// that was told is waited for. What concerns only those who have the slot from this reader
// waits for neither.
func TestAdoptWithoutAnOwner(t *testing.T) {
	for _, b := range []string{"fenced off", "cut off", "told"} {
		synctest.Test(t, func(t *testing.T) {
			p := newPaper(t, nil)
			c := sessionTo("c", 2)
			l, tenure := p.takenOver()
			have := map[string][]copywire.Label{"a": nil, "c": {{Partition: 0, Tenure: l.Life, Sequence: 7}, {Partition: 1, Tenure: l.Life, Sequence: 9}}}
			switch b {
			case "fenced off":
				have["b"] = nil
			case "told":
				p.fan.OnPeer(sessionTo("b", 1), true)
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
			switch b {
			case "cut off":
				applied(t, w, 0)
				time.Sleep(p.fan.cfg.Linger)
			case "told":
				applied(t, w, 0)
				p.fan.OnAck(sessionTo("b", 1), 1<<20)
			}
			applied(t, w, 1)
			w.Close()
		})
	}
}
