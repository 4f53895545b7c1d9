package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

// What counts as acknowledged: acked by everybody who may answer, or certainly not
// answered by who has not acked.
func TestApplied(t *testing.T) {
	p := newPaper(t, nil)
	s1 := sessionTo("b", 1)
	p.fan.OnPeer(s1, true)
	l := p.register("i0")
	w := p.fan.NewWriter()
	defer w.Close()
	write := func(seq uint64) { t.Helper(); must(t, w.Write(frame(l, 0, seq))) }
	write(1)
	if got := p.kinds(s1); !slices.Equal(got, []string{"open", "frame"}) {
		t.Errorf("sent %v", got)
	}
	applied(t, w, 0)
	p.fan.OnAck(s1, 1) // the open
	applied(t, w, 0)
	p.fan.OnAck(s1, 2)
	applied(t, w, 1)
	write(2)
	write(3)
	applied(t, w, 1)
	p.fan.OnLapse(s1, true)
	applied(t, w, 3)
	write(4)
	applied(t, w, 4)
	write(5)
	p.fan.OnLapse(s1, false) // it is about to answer again
	applied(t, w, 4)
	p.fan.OnAck(s1, 6)
	applied(t, w, 5)
	// The session is over, but its receiver may not know.
	write(6)
	p.fan.OnPeer(s1, false)
	applied(t, w, 5)
	write(7)
	s2 := sessionTo("b", 2)
	p.fan.OnPeer(s2, true)
	write(8)
	if got := p.kinds(s2); len(got) != 0 {
		t.Errorf("a session in which nothing is open got %v", got)
	}
	applied(t, w, 5)
	p.fan.OnLapse(s1, true)
	applied(t, w, 8)
	if n := len(*p.fan.peers.counted.Load()); n != 1 {
		t.Errorf("%d sessions are counted", n)
	}
	// A frame that does not go into a session: no acknowledgement of that counts, not even
	// one that is on its way.
	p.mu.err["b"] = link.ErrDown
	p.fan.table.Load().own[0].mu.Lock()
	p.fan.table.Load().own[0].copiesOf(p.fan.peers.get("b")).open.add(0)
	p.fan.table.Load().own[0].mu.Unlock()
	write(9)
	p.fan.OnAck(s2, 100)
	applied(t, w, 8)
	p.fan.OnPeer(s2, false)
	applied(t, w, 8)
	p.fan.OnLapse(s2, true)
	applied(t, w, 9)
}

// A session that had lapsed before it was lost is not waited for, and not kept.
func TestLapsedThenLost(t *testing.T) {
	p := newPaper(t, nil)
	s := sessionTo("b", 1)
	p.fan.OnPeer(s, true)
	l := p.register("i0")
	w := p.fan.NewWriter()
	defer w.Close()
	p.fan.OnLapse(s, true)
	must(t, w.Write(frame(l, 0, 1)))
	p.fan.OnPeer(s, false)
	must(t, w.Write(frame(l, 0, 2)))
	applied(t, w, 2)
	if n := len(*p.fan.peers.counted.Load()); n != 0 {
		t.Errorf("%d sessions are counted", n)
	}
}

// Checkpoints are few however rarely somebody asks.
func TestCheckpointsAreBounded(t *testing.T) {
	p := newPaper(t, nil)
	s := sessionTo("b", 1)
	p.fan.OnPeer(s, true)
	l := p.register("i0")
	w := p.fan.NewWriter().(*writer)
	defer w.Close()
	const frames = checkpointEvery * (maxCheckpoints + 10)
	for i := range uint64(frames) {
		must(t, w.Write(frame(l, 0, i)))
	}
	if n := len(w.acks.list); n != maxCheckpoints {
		t.Errorf("%d checkpoints", n)
	}
	applied(t, w, 0)
	p.fan.OnAck(s, 1+checkpointEvery*3+5)
	applied(t, w, checkpointEvery*3)
	p.fan.OnAck(s, 1+frames)
	applied(t, w, frames)
}

// Frames that are nobody's to write here go nowhere.
func TestStrayedFrames(t *testing.T) {
	p := newPaper(t, nil)
	s := sessionTo("b", 1)
	p.fan.OnPeer(s, true)
	l := p.register("i0")
	w := p.fan.NewWriter()
	defer w.Close()
	other := l
	other.Life++
	must(t, w.Write(frame(other, 0, 1)))
	other = l
	other.Slot += 7
	must(t, w.Write(frame(other, 0, 1)))
	source := p.state.View().Catalog.Sources()[0].ID
	p.do(state.Command{Assign: &state.Assign{Source: source, Node: "b"}})
	must(t, w.Write(frame(l, 0, 2)))
	if st := p.fan.Stats(); st.Strayed != 3 || st.Slots != 0 {
		t.Errorf("%+v", st)
	}
	p.fan.OnAck(s, 1)
	applied(t, w, 3)
	if got := p.kinds(s); !slices.Equal(got, []string{"open"}) {
		t.Errorf("sent %v", got)
	}
	for _, bad := range []indexer.Frame{nil, {1, 2, 3}, append(frame(l, 0, 1), 5), frame(l, 2, 1)} {
		if err := w.Write(bad); !errors.Is(err, indexer.ErrFrame) {
			t.Errorf("a frame of %d words: %v", len(bad), err)
		}
	}
}

// A life that somebody else may have written to is left alone; a retired one gets its
// last frames.
func TestLives(t *testing.T) {
	p := newPaper(t, nil)
	s := sessionTo("b", 1)
	p.fan.OnPeer(s, true)
	p.do(state.Command{Register: &state.Registration{Node: "b", Registration: catalog.Registration{
		Instance: "i0", Group: catalog.GroupKey{Model: "m"}, BlockSize: 16, Endpoint: "tcp://e:1"}}})
	source := p.state.View().Catalog.Sources()[0].ID
	p.do(state.Command{Assign: &state.Assign{Source: source, Node: "a"}})
	if got := p.kinds(s); len(got) != 0 {
		t.Errorf("a life of another ingest node: sent %v", got)
	}
	old := p.state.View().Catalog.Sources()[0].Ranks[0]
	p.do(state.Command{NewLife: &state.NewLife{Instance: "i0", Life: old.Life}})
	if got := p.kinds(s); !slices.Equal(got, []string{"open"}) {
		t.Errorf("a new life: sent %v", got)
	}
	l := copywire.SlotLife{Group: 1, Slot: indexer.Slot(p.state.View().Catalog.Sources()[0].Ranks[0].Slot), Life: p.state.View().Catalog.Sources()[0].Ranks[0].Life}
	tenure := p.state.View().Assignments[source].Tenure
	send := func(seq uint64) {
		w := p.fan.NewWriter()
		defer w.Close()
		f := frame(l, 1, seq)
		f[4] = tenure
		must(t, w.Write(f))
	}
	send(1)
	p.do(state.Command{NewLife: &state.NewLife{Instance: "i0", Life: l.Life}})
	send(2)
	if got := p.kinds(s); !slices.Equal(got, []string{"open", "frame", "open", "frame"}) {
		t.Errorf("a retired life: sent %v", got)
	}
	for _, name := range []string{"a", "b", "c"} {
		p.do(state.Command{Purged: &state.Purged{Member: name, Slot: catalog.Retired{Group: 1, Slot: uint32(l.Slot), Life: l.Life}}})
	}
	send(3)
	if st := p.fan.Stats(); st.Strayed != 1 {
		t.Errorf("a purged life: %+v", st)
	}
	if last := p.mu.local[len(p.mu.local)-1]; last != fmt.Sprintf("close %d [0 1]", l.Slot) {
		t.Errorf("at the end of the life: %v", p.mu.local)
	}
}

// A cursor goes to all that have open copies, behind the frames.
func TestCursor(t *testing.T) {
	p := newPaper(t, nil)
	s := sessionTo("b", 1)
	p.fan.OnPeer(s, true)
	p.fan.OnPeer(sessionTo("c", 2), true)
	l := p.register("i0")
	w := p.fan.NewWriter()
	defer w.Close()
	must(t, w.Write(frame(l, 0, 5)))
	p.fan.AppendCursor(copywire.Cursor{SlotLife: l, Tenure: l.Life, Sequence: 5, Digest: 9})
	p.fan.AppendCursor(copywire.Cursor{SlotLife: l, Tenure: l.Life - 1, Sequence: 6})
	if got := p.kinds(s); !slices.Equal(got, []string{"open", "frame", "cursor"}) || len(p.kinds(sessionTo("c", 2))) != 0 {
		t.Errorf("sent %v", got)
	}
	if !slices.Contains(p.mu.local, "cursor 5") || slices.Contains(p.mu.local, "cursor 6") {
		t.Errorf("here: %v", p.mu.local)
	}
}

// The payload of a frame costs no allocation of its own.
func TestWriteAllocates(t *testing.T) {
	p := newPaper(t, nil)
	p.fan.OnPeer(sessionTo("b", 1), true)
	l := p.register("i0")
	w := p.fan.NewWriter()
	f := frame(l, 0, 1)
	must(t, w.Write(f))
	p.fan.table.Load().own[0].close(p.fan.peers.self(), allOf(2)) // the reference index allocates
	p.mu.blind = true
	n := testing.AllocsPerRun(20_000, func() {
		if err := w.Write(f); err != nil {
			t.Fatal(err)
		}
	})
	if n >= 1 {
		t.Errorf("%v allocations for each frame", n)
	}
}

func allOf(n int) set {
	s := newSet(n)
	for p := range n {
		s.add(p)
	}
	return s
}

func BenchmarkWrite(b *testing.B) {
	for _, peers := range []int{0, 1, 2} {
		b.Run(fmt.Sprintf("%d peers", peers), func(b *testing.B) {
			p := newPaper(b, nil)
			for i, name := range []string{"b", "c"}[:peers] {
				p.fan.OnPeer(sessionTo(name, uint64(i+1)), true)
			}
			if peers == 2 {
				p.do(state.Command{Begin: &state.Begin{Moves: []state.Move{{Partition: 0, To: "c"}}}})
			}
			l := p.register("i0")
			w := p.fan.NewWriter()
			f := frame(l, 0, 1)
			must(b, w.Write(f))
			p.fan.table.Load().own[0].close(p.fan.peers.self(), allOf(2))
			p.mu.blind = true
			b.ReportAllocs()
			for b.Loop() {
				_ = w.Write(f)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	good := func() Config {
		p := &paper{}
		return Config{
			Name: "a", Index: reference.New(reference.Config{}), Owner: p, Links: p,
			Report: func(context.Context, state.Report) error { return nil }, Renew: func(indexer.GroupID, indexer.Slot, uint64) {},
		}
	}
	must(t, good().Validate())
	for name, edit := range map[string]func(*Config){
		"name": func(c *Config) { c.Name = "" }, "index": func(c *Config) { c.Index = nil }, "owner": func(c *Config) { c.Owner = nil },
		"links": func(c *Config) { c.Links = nil }, "report": func(c *Config) { c.Report = nil }, "renew": func(c *Config) { c.Renew = nil },
		"hold": func(c *Config) { c.HoldBytes = -1 }, "linger": func(c *Config) { c.Linger = -1 },
		"retry": func(c *Config) { c.RetryMin = time.Hour }, "frame": func(c *Config) { c.FillFrame = 8 },
	} {
		c := good()
		edit(&c)
		if _, err := New(c); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestServeRefill(t *testing.T) {
	p := newPaper(t, nil)
	if _, err := p.fan.ServeRefill(t.Context(), "b", []byte("x")); !errors.Is(err, copywire.ErrMessage) {
		t.Error(err)
	}
	s := sessionTo("b", 1)
	p.fan.OnPeer(s, true)
	l := p.register("i0")
	h := indexer.Header{Group: l.Group, Partition: 1, Slot: l.Slot, Life: l.Life, Tenure: l.Life}
	must(t, second(p.fan.ServeRefill(t.Context(), "b", copywire.AppendRefill(nil, h))))
	h.Tenure++
	must(t, second(p.fan.ServeRefill(t.Context(), "b", copywire.AppendRefill(nil, h))))
	p.fan.refillAll(p.fan.table.Load())
	if got := p.kinds(s); !slices.Equal(got, []string{"open", "close"}) {
		t.Errorf("sent %v", got)
	}
}

func second[T any](_ T, err error) error { return err }

// Flush ends with its context, Close with its time, when a peer does not acknowledge.
func TestFlushGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPaper(t, nil)
		p.fan.OnPeer(sessionTo("b", 1), true)
		l := p.register("i0")
		w := p.fan.NewWriter()
		must(t, w.Write(frame(l, 0, 1)))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("flush: %v", err)
		}
		begin := time.Now()
		w.Close()
		if d := time.Since(begin); d < time.Second || d > 2*time.Second {
			t.Errorf("closed after %v", d)
		}
	})
}
