package fanout

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/kvcluster/kvcluster/cluster/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// threeNodes makes a world of three nodes, in which a and b own everything and a reads
// four sources.
func threeNodes(t *testing.T, broken mutant, tune func(*Config)) *world {
	w := newWorld(t, 4, broken, tune)
	for _, name := range []string{"a", "b", "c"} {
		w.start(name)
	}
	for p := range w.partitions {
		w.begin(state.Move{Partition: p, To: "a"})
		w.begin(state.Move{Partition: p, To: "b"})
	}
	for _, instance := range []string{"i0", "i1", "i2", "i3"} {
		w.register(instance, "a")
	}
	w.node("a").startFeed(1, 2*time.Millisecond)
	return w
}

// end lets everything settle, compares, and looks for what should not have been.
func (w *world) end(within time.Duration) {
	w.t.Helper()
	w.endWith(within, true)
}

// endLenient is for worlds in which copies were closed behind the sender's back.
func (w *world) endLenient(within time.Duration) {
	w.t.Helper()
	w.endWith(within, false)
}

func (w *world) endWith(within time.Duration, strict bool) {
	w.t.Helper()
	for _, n := range w.all() {
		if n.feed() != nil {
			n.feed().setQuiet(true)
		}
	}
	if err := w.settled(within); err != nil {
		w.t.Error(err)
	}
	if copies, errs := w.compare(); len(errs) > 0 || copies == 0 {
		w.t.Errorf("%d copies compared, %d differences; the first: %s", copies, len(errs), first(errs))
	}
	for _, o := range w.odd() {
		if strict {
			w.t.Error(o)
		}
	}
	for _, f := range w.failed() {
		w.t.Error(f)
	}
	w.stopAll()
	time.Sleep(time.Minute) // for timers of calls
}

func first(errs []string) string {
	if len(errs) == 0 {
		return ""
	}
	return errs[0]
}

// Frames reach all owners; a new copy is filled while they go on and the change then
// commits by itself.
func TestDualWriteAndMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := threeNodes(t, mutant{}, nil)
		time.Sleep(2 * time.Second)
		for p := range w.partitions {
			drop := []string{"a", "b"}[p%2]
			w.begin(state.Move{Partition: p, To: "c", Drop: drop})
		}
		time.Sleep(3 * time.Second)
		v := w.view()
		if len(v.Jobs) > 0 {
			t.Errorf("changes have not committed: %+v", v.Jobs)
		}
		for p := range w.partitions {
			if !v.Ready(p, "c") {
				t.Errorf("c does not own partition %d", p)
			}
		}
		if st := w.node("a").fan.Stats(); st.Peers["c"].Fills == 0 {
			t.Errorf("nothing was filled: %+v", st)
		}
		w.end(10 * time.Second)
	})
}
