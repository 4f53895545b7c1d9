package ingest

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/indexer"
)

// filling reports whether the catalog calls rank 0 of w1 so.
func (w *world) filling() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	x, _ := w.catalog.View().Worker("w1")
	return x.Ranks[0].Filling
}

// A slot that was taken over is whole when all that its engine can be asked for is applied,
// not sooner, and that is said until the log has it.
func TestFilling(t *testing.T) {
	runAssigned(t, nil, func(w *world, a *assigned) {
		e := w.engine("e1", true)
		e.record(batch(store("", "abc")))
		e.record(batch(store("abc", "d"), store("", "xyz")))
		w.elsewhere(e, "abcq")
		if w.filling() {
			t.Error("a registration is filling")
		}
		e.hang = true // its first answers are late
		a.give(true)
		w.wait(4 * time.Second)
		w.want("abcd", 0)
		if !w.filling() || len(w.filled) != 0 {
			t.Errorf("filling %v, filled %v, while the engine has not answered", w.filling(), w.filled)
		}
		e.hang = false
		w.refuse = errors.New("no leader")
		w.wait(4 * time.Second)
		w.want("abcd", 4)
		if !w.filling() {
			t.Error("filled without the log")
		}
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		w.wait(5 * time.Second)
		life := w.life("w1", 0)
		if w.filling() || !slices.Equal(w.filled, []uint64{life}) {
			t.Errorf("filling %v, filled %v, the life is %d", w.filling(), w.filled, life)
		}
		w.wait(time.Minute)
		equal(t, "said", len(w.filled), 1)
	})
}

// The engine restarts while its slot is filled: what it still holds is asked for, and the
// life that follows is not whole before either.
func TestFillingGoesOn(t *testing.T) {
	runAssigned(t, nil, func(w *world, a *assigned) {
		e := w.engine("e1", true)
		e.record(batch(store("", "abc")))
		w.elsewhere(e, "abcq")
		e.hang = true
		a.give(true)
		w.wait(time.Second)
		first := w.life("w1", 0)
		e.publish(batch(store("abc", "d"))) // held back
		if err := w.commit(func(at uint64) error {
			_, err := w.catalog.NewLife(at, "w1", 0, first)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		w.settle()
		if !w.filling() {
			t.Error("the next life is whole")
		}
		e.hang = false
		w.wait(5 * time.Second)
		w.want("abcd", 4)
		if second := w.life("w1", 0); w.filling() || !slices.Equal(w.filled, []uint64{second}) {
			t.Errorf("filling %v, filled %v, the life is %d after %d", w.filling(), w.filled, second, first)
		}
	})
}

// An engine that does not say what it holds does not make answers incomplete for ever, and
// one that cannot be asked no longer than it takes to say so.
func TestFillingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		replay, hang, gone bool
		least, most        time.Duration
	}{
		"silent":    {replay: true, hang: true, least: 8 * time.Second, most: 12 * time.Second},
		"gone":      {replay: true, gone: true, least: 9 * time.Second, most: 11 * time.Second},
		"no replay": {most: 500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			runAssigned(t, nil, func(w *world, a *assigned) {
				e := w.engine("e1", c.replay)
				e.record(batch(store("", "abc")))
				w.elsewhere(e, "abc")
				if e.hang = c.hang; c.gone {
					e.disconnect()
				}
				begin := time.Now()
				a.give(true)
				var took time.Duration
				for w.wait(100 * time.Millisecond); w.filling() && took < time.Minute; took = time.Since(begin) {
					w.wait(100 * time.Millisecond)
				}
				if took < c.least || took > c.most {
					t.Errorf("answers were called incomplete for %v, want %v to %v", took, c.least, c.most)
				}
				equal(t, "said", len(w.filled), 1)
			})
		})
	}
}

// lateWriter is one whose frames are acknowledged when the test says so.
type lateWriter struct {
	indexer.Writer
	held *atomic.Bool
	last *atomic.Uint64
}

func (s lateWriter) Applied() uint64 {
	if !s.held.Load() {
		s.last.Store(s.Writer.Applied())
	}
	return s.last.Load()
}

// A batch is acknowledged when all owners have applied it, and not sooner; a life that
// begins, here or by a takeover, says nothing of what another one had.
func TestAcknowledged(t *testing.T) {
	var held atomic.Bool
	slow := func(_ *Config, d *Deps) {
		held.Store(false)
		make := d.NewWriter
		d.NewWriter = func() indexer.Writer { return lateWriter{make(), &held, new(atomic.Uint64)} }
	}
	runEstate(t, []option{slow}, func(w *world, x *estate) {
		check := func(when string, want int) {
			t.Helper()
			r := w.source("w1").Ranks[0]
			if got := int(r.Acknowledged); r.HasAcknowledged != (want >= 0) || want >= 0 && got != want {
				t.Errorf("%s: acknowledged %v, %d, want %d; the latest batch is %d", when, r.HasAcknowledged, got, want, r.Sequence)
			}
		}
		e := w.engine("e1", true)
		w.register("w1", e)
		w.wait(time.Second)
		check("nothing said", -1)
		grow(e, 0, 3)
		check("three batches", 2)
		held.Store(true)
		grow(e, 3, 2)
		check("not applied", 2)
		held.Store(false)
		check("applied", 4)
		w.wait(2 * time.Second) // owners hear of it
		x.move(func() {})
		check("taken over, nothing new", 4)
		e.restart(0)
		held.Store(true)
		e.publish(batch(store("", "x")))
		check("restarted, not applied", -1)
		held.Store(false)
		check("restarted", 0)
	})
}
