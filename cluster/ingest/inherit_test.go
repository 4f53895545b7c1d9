package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/ingest/translate"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// estate is what owners know of slots: the test's index, the latest cursors, and the
// latest frame of every copy.
type estate struct {
	assigned
	cursors map[indexer.Slot]Cursor
	labels  map[copyName]indexer.Header
	fail    error // of every adoption
	failFor map[indexer.Slot]error
	silent  bool // adoptions are not answered
	edit    func(*Inheritance)
	adopted int
	went    int // takeovers after which the life was still the same
}

type copyName struct {
	slot      indexer.Slot
	partition indexer.PartitionID
}

func runEstate(t *testing.T, opts []option, test func(w *world, x *estate)) {
	t.Helper()
	x := &estate{cursors: map[indexer.Slot]Cursor{}, labels: map[copyName]indexer.Header{}}
	all := append([]option{x.option, func(c *Config, d *Deps) {
		d.Takeover = x
		d.Cursor = x.cursor
		make := d.NewWriter
		d.NewWriter = func() indexer.Writer { return labelled{make(), x} }
	}}, opts...)
	runWith(t, all, func(w *world) {
		x.w = w
		test(w, x)
	})
}

// labelled notes the frames of every copy. Within a life neither tenures nor sequences
// go back.
type labelled struct {
	indexer.Writer
	x *estate
}

func (l labelled) Write(f indexer.Frame) error {
	h := f.Header()
	l.x.w.mu.Lock()
	k := copyName{h.Slot, h.Partition}
	old := l.x.labels[k]
	if old.Life == h.Life && (old.Tenure > h.Tenure || old.Sequence > h.Sequence) && f.NumOps() > 0 && !clears(f) {
		l.x.w.faults = append(l.x.w.faults, fmt.Sprintf("label %+v after %+v", h, old))
	}
	l.x.labels[k] = h
	l.x.w.mu.Unlock()
	return l.Writer.Write(f)
}

// clears says whether a frame only ends a life: what it is labelled with counts no more.
func clears(f indexer.Frame) bool {
	var op indexer.Op
	f.Next(0, &op)
	return f.NumOps() == 1 && op.Kind == indexer.OpClear && op.Tier == indexer.AllTiers
}

func (x *estate) cursor(c Cursor) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	x.cursors[c.Slot] = c
}

func (x *estate) Adopt(group indexer.GroupID, slot indexer.Slot, life, tenure uint64, done func(Inheritance, error)) {
	if x.silent {
		return
	}
	go func() {
		time.Sleep(x.w.delay)
		done(x.inheritance(group, slot, life))
	}()
}

func (x *estate) inheritance(group indexer.GroupID, slot indexer.Slot, life uint64) (in Inheritance, err error) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	x.adopted++
	if err := errors.Join(x.fail, x.failFor[slot]); err != nil {
		return in, err
	}
	c := x.cursors[slot]
	if c.Life != life {
		return in, nil
	}
	in.Cursors = []Cursor{c}
	for p := range indexer.PartitionID(8) {
		part := translate.Inherited{Partition: p, Cursor: c.Sequence}
		if h := x.labels[copyName{slot, p}]; h.Life == life {
			part.Cursor = max(part.Cursor, h.Sequence)
		}
		err := x.w.index.Dump(context.Background(), group, p, slot, func(s indexer.Stretch) error {
			part.Stretches = append(part.Stretches, s)
			return nil
		})
		if err != nil {
			return in, err
		}
		in.Parts = append(in.Parts, part)
	}
	if x.edit != nil {
		x.edit(&in)
	}
	return in, nil
}

// move takes the source of w1 away, lets the engine go on, and gives it back.
func (x *estate) move(meanwhile func()) {
	x.give(false)
	x.w.settle()
	meanwhile()
	x.give(true)
	x.w.settle()
}

func (w *world) note(rank int) string {
	for _, n := range w.source("w1").Ranks[rank].Warnings {
		if strings.HasPrefix(n, "taken over") {
			return strings.TrimPrefix(n, "taken over from another node: ")
		}
	}
	return ""
}

// The life goes on: what the engine's buffer does not reach back to is kept, what it
// removed meanwhile goes, what it stored comes.
func TestInherit(t *testing.T) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		e.size = 4
		w.register("w1", e)
		grow(e, 0, 5)
		e.publish(batch(store("", "xyz")))
		w.wait(2 * time.Second) // owners hear of it
		e.publish(batch(store("abcde", "f")))
		life := w.life("w1", 0)
		x.move(func() {
			w.want("abcdef", 6, "xyz", 3)
			e.publish(batch(remove("xyz")))
			e.publish(batch(store("abcdef", "g"), store("", "pq")))
		})
		w.want("abcdefg", 7, "xyz", 2, "pq", 2)
		equal(t, "life", w.life("w1", 0), life)
		equal(t, "lives", w.lives, 0)
		equal(t, "note", w.note(0), "9 blocks kept, 3 batches replayed")
		equal(t, "purged", len(w.purged), 0)
		equal(t, "state", w.source("w1").Ranks[0].State, Active)
		e.publish(batch(remove("abcdefg", "pq", "xy")))
		w.want("abcdefg", 6, "pq", 1, "xyz", 1)
		x.move(func() { e.publish(batch(store("x", "y"))) }) // and again
		w.want("abcdefg", 6, "pq", 1, "xyz", 2)
		equal(t, "life", w.life("w1", 0), life)
		w.unregister("w1", nil)
		w.settle()
		equal(t, "purged", len(w.purged), 1)
		equal(t, "held", w.index.Stats().Held[0], 0)
	})
}

// Blocks that wait for their parent are in no dump. They come again, since owners are told
// of a batch before them, as far back as batches are remembered.
func TestInheritOrphans(t *testing.T) {
	for back, kept := range map[int]bool{0: true, 3: true, digestWindow - 3: true, digestWindow - 2: false} {
		runEstate(t, nil, func(w *world, x *estate) {
			e := w.engine("e1", true)
			w.register("w1", e)
			e.publish(batch(store("", "a"), store("", "x")))
			e.publish(batch(store("abc", "de"), store("xy", "z"))) // c and y are not known
			e.publish(batch(remove("xyz")))                        // one of them goes
			for range back {
				e.publish(batch(store("", "x")))
			}
			w.wait(2 * time.Second) // owners hear of it
			want := uint64(0)
			if !kept {
				want = e.next - 1
			}
			equal(t, "told", x.cursors[0].Sequence, want)
			life := w.life("w1", 0)
			x.move(func() {})
			equal(t, "life", w.life("w1", 0), life)
			w.want("abcde", 1, "xyz", 1)
			e.publish(batch(store("a", "bc"), store("x", "y")))
			depth := 3
			if kept {
				depth = 5
			}
			w.want("abcde", depth, "xyz", 2)
			w.wait(2 * time.Second)
			if kept { // nothing waits any more
				equal(t, "told", x.cursors[0].Sequence, e.next-1)
			}
		})
	}
}

// A node that read the source before asked for a new life, and gets it when this one goes
// on with the old one already: the new one is filled from the oldest batch, and not from
// where the stream has come to.
func TestLifeEndedElsewhere(t *testing.T) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 5)
		w.wait(2 * time.Second)
		life := w.life("w1", 0)
		x.move(func() { e.publish(batch(store("", "xyz"))) })
		equal(t, "life", w.life("w1", 0), life)
		w.NewLife("w1", 0, life, func(err error) { equal(t, "new life", err, nil) })
		w.settle()
		if w.life("w1", 0) == life {
			t.Fatal("no new life")
		}
		w.want("abcde", 5, "xyz", 3)
		e.publish(batch(remove("xyz")))
		w.settle()
		w.want("abcde", 5, "xyz", 2)
		equal(t, "lives asked for here", w.lives, 1)
	})
}

// Whatever is missing of the proof or of the estate, the slot starts over: nothing of
// the old life is credited, and what the engine can replay is.
func TestNotInherited(t *testing.T) {
	contradict := func(w *world, e *mockEngine) {
		ev := store("xy", "k") // the hash of another path
		ev.Hashes[0] = hash("abc")
		e.publish(batch(store("", "xy"), ev))
	}
	for _, c := range []struct {
		name   string
		why    string
		before func(w *world, x *estate, e *mockEngine) // before the source moves
		while  func(w *world, x *estate, e *mockEngine)
		want   []any
	}{
		{"no cursor", "no owner knows how far it had come",
			func(w *world, x *estate, e *mockEngine) { clear(x.cursors) }, nil, []any{"abcde", 5}},
		{"the engine restarted", "batch 4 has other content than before: the engine restarted", nil,
			func(w *world, x *estate, e *mockEngine) {
				e.next, e.buffer = 0, nil
				for i := range 6 {
					e.publish(batch(store("uvwuvw"[:i], "uvwuvw"[i:i+1])))
				}
			}, []any{"abcde", 0, "uvwuvw", 6}},
		{"the engine restarted and has said less", "replay has nothing from batch 4 on", nil,
			func(w *world, x *estate, e *mockEngine) {
				e.next, e.buffer = 0, nil
				e.publish(batch(store("", "u")))
			}, []any{"abcde", 0, "u", 1}},
		{"the buffer does not reach back", "replay begins at 7, after batch 4", nil,
			func(w *world, x *estate, e *mockEngine) {
				e.size = 3
				e.publish(batch(store("", "u")))
				e.publish(batch(store("u", "v")))
				e.publish(batch(store("", "p")))
				e.publish(batch(store("p", "q")))
				e.publish(batch(store("uv", "w")))
			}, []any{"abcde", 0, "uv", 0, "pq", 2}},
		{"adoption fails", "partition 3 has no owner",
			func(w *world, x *estate, e *mockEngine) { x.fail = errors.New("partition 3 has no owner") }, nil, []any{"abcde", 5}},
		{"owners do not answer", "the owners did not answer",
			func(w *world, x *estate, e *mockEngine) { x.silent = true }, nil, []any{"abcde", 5}},
		{"a partition is missing", "7 of 8 partitions",
			func(w *world, x *estate, e *mockEngine) {
				x.edit = func(in *Inheritance) { in.Parts = in.Parts[:7] }
			}, nil, []any{"abcde", 5}},
		{"a copy is older than its cursor", "partition 2 at batch 3",
			func(w *world, x *estate, e *mockEngine) {
				x.edit = func(in *Inheritance) { in.Parts[2].Cursor = 3 }
			}, nil, []any{"abcde", 5}},
		{"a dump that cannot be", "cannot be inherited: partition 3 comes twice",
			func(w *world, x *estate, e *mockEngine) {
				x.edit = func(in *Inheritance) { in.Parts[2] = in.Parts[3] }
			}, nil, []any{"abcde", 5}},
		{"hashes contradict each other", errUnsound.Error(),
			func(w *world, x *estate, e *mockEngine) { contradict(w, e) }, nil, []any{"abcde", 5, "xy", 2}},
		{"hashes contradicted each other, and more came", errUnsound.Error(),
			func(w *world, x *estate, e *mockEngine) {
				contradict(w, e)
				w.wait(3 * time.Second)
				e.publish(batch(store("xy", "z")))
			}, nil, []any{"abcde", 5, "xyz", 3}},
		{"the replay hangs", "replay failed (silent)", nil,
			func(w *world, x *estate, e *mockEngine) { e.hang = true }, []any{"abcde", 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			runEstate(t, nil, func(w *world, x *estate) {
				e := w.engine("e1", true)
				w.register("w1", e)
				grow(e, 0, 5)
				w.wait(2 * time.Second)
				if c.before != nil {
					c.before(w, x, e)
				}
				first := catalog.Retired{Group: 1, Slot: 0, Life: w.life("w1", 0)}
				x.move(func() {
					if c.while != nil {
						c.while(w, x, e)
					}
				})
				w.wait(time.Minute)
				w.want(c.want...)
				equal(t, "lives", w.lives, 1)
				if note := w.note(0); !strings.HasPrefix(note, "started over ("+c.why+"), ") {
					t.Errorf("note %q, want %q", note, c.why)
				}
				// This process wrote the old life, so it reports its slot, once.
				if len(w.purged) != 1 || w.purged[0] != first {
					t.Errorf("purged %v, want %v", w.purged, first)
				}
				e.hang = false
				e.publish(batch(store("", "mn")))
				w.want("mn", 2)
				equal(t, "restarts beyond one", w.source("w1").Counters.Restarts > 1, false)
			})
		})
	}
}

// A life that this process has not written and does not go on with is not its to report.
func TestForeignLifeNotInherited(t *testing.T) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		w.elsewhere(e, "abc")
		old := catalog.Retired{Group: 1, Slot: 0, Life: w.life("w1", 0)}
		w.delay = time.Second
		x.give(true)
		w.wait(10 * time.Millisecond)
		if !w.m.Reports(old) {
			t.Error("a life that may be written is nobody's to report")
		}
		w.wait(5 * time.Second)
		equal(t, "asked", x.adopted, 1)
		equal(t, "lives", w.lives, 1)
		equal(t, "purged", len(w.purged), 0)
		equal(t, "reports", w.m.Reports(old), false)
		w.want("abc", 0)
	})
}

// It ends while the owners are being asked: then it is reported, and the answer comes too late.
func TestUnregisteredDuringAdoption(t *testing.T) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 3)
		w.wait(2 * time.Second)
		x.give(false)
		w.settle()
		w.delay = time.Second
		x.give(true)
		w.wait(10 * time.Millisecond)
		w.unregister("w1", nil)
		w.wait(5 * time.Second)
		equal(t, "purged", len(w.purged), 1)
		equal(t, "lives", w.lives, 0)
		equal(t, "held", w.index.Stats().Held[0], 0)
	})
}

// The connection breaks again and again while a life is being continued.
func TestInheritAcrossDisconnects(t *testing.T) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 3)
		w.wait(2 * time.Second)
		x.give(false)
		w.settle()
		w.delay = time.Second
		e.disconnect()
		x.give(true)
		w.wait(100 * time.Millisecond)
		e.connect() // while the owners are asked
		e.disconnect()
		w.wait(2 * time.Second)
		w.want("abc", 3)
		e.hang = true
		e.connect() // and while the engine is
		w.wait(time.Second)
		e.disconnect()
		e.record(batch(store("abc", "d"), store("", "xy")))
		e.hang = false
		e.connect()
		w.wait(2 * time.Second)
		w.want("abcd", 4, "xy", 2)
		equal(t, "lives", w.lives, 0)
		e.restart(0) // a real restart is found as ever
		w.wait(2 * time.Second)
		w.want("abcd", 0, "xy", 0)
		equal(t, "lives", w.lives, 1)
	})
}

// Ranks of one stream go on together or start over together.
func TestInheritRanks(t *testing.T) {
	for _, fail := range []bool{false, true} {
		t.Run(fmt.Sprintf("fail=%v", fail), func(t *testing.T) {
			runEstate(t, nil, func(w *world, x *estate) {
				e := w.engine("e1", true)
				w.register("w1", e, 0, 1)
				e.publish(rankBatch(0, store("", "abc")))
				e.publish(rankBatch(1, store("", "xyz")))
				w.wait(2 * time.Second)
				e.publish(rankBatch(1, store("xyz", "u")))
				w.mu.Lock()
				if fail {
					x.failFor = map[indexer.Slot]error{1: errNoLeader}
				}
				w.mu.Unlock()
				x.move(func() {
					e.publish(rankBatch(0, store("abc", "d")))
					e.publish(rankBatch(1, remove("xyzu")))
				})
				w.wait(10 * time.Second)
				equal(t, "rank 0", w.score("abcd"), 4)
				equal(t, "rank 1", w.score("xyzu", 1), 3)
				if fail {
					equal(t, "lives", w.lives, 2)
					equal(t, "note", w.note(0), "started over (another rank of its stream starts over), 5 batches replayed")
				} else {
					equal(t, "lives", w.lives, 0)
				}
			})
		})
	}
}

// One rank of two was restarted by the old reader, the other not yet: a number that fits
// proves nothing for it, and one that was not reached does not either.
func TestInheritRankOfAnotherRun(t *testing.T) {
	for _, n := range []int{2, 6} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { inheritRankOfAnotherRun(t, n) })
	}
}

func inheritRankOfAnotherRun(t *testing.T, n int) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		w.register("w1", e, 0, 1)
		e.publish(rankBatch(0, store("", "abc")))
		for i := range 4 {
			e.publish(rankBatch(1, store("xyzu"[:i], "xyzu"[i:i+1])))
		}
		w.wait(2 * time.Second)
		x.give(false)
		w.settle()
		e.next, e.buffer = 0, nil
		first := rankBatch(0, store("", "k"))
		e.record(first)
		for i := range n {
			e.record(rankBatch(1, store("uvwuvw"[:i], "uvwuvw"[i:i+1])))
		}
		w.mu.Lock()
		c := x.cursors[0]
		other := c
		other.Sequence, other.Digest = 0, digestOf(first)
		x.cursors[0] = other
		w.mu.Unlock()
		x.edit = func(in *Inheritance) {
			if in.Cursors[0].Slot == 0 {
				for i := range in.Parts {
					in.Parts[i].Cursor, in.Parts[i].Stretches = 0, nil
				}
			}
		}
		x.give(true)
		w.wait(10 * time.Second)
		equal(t, "rank 1, old run", w.score("xyzu", 1), 0)
		equal(t, "lives", w.lives, 1)
	})
}

// The reader goes away in the middle of a new life: the old one has been cleared, so that
// it is the same engine proves nothing for what the owners have.
func TestClearedLifeIsNotInherited(t *testing.T) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 5)
		w.wait(2 * time.Second)
		w.mu.Lock()
		w.refuse = errNoLeader
		w.mu.Unlock()
		e.hang = true
		e.record(batch()) // a gap, and no replay to close it
		e.publish(batch(store("", "xy")))
		w.wait(20 * time.Second)
		equal(t, "losses", w.source("w1").Counters.Losses, 1)
		w.want("abcde", 0)
		x.move(func() { e.hang = false })
		w.want("abcde", 0, "xy", 0)
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		w.wait(time.Minute)
		w.want("abcde", 5, "xy", 2)
		equal(t, "lives", w.lives, 1)
	})
}

// The engine restarts right after its life was taken over, and nothing shows at its sockets:
// batches of the new run are no late ones of the old, and it is not taken for the old one
// when it comes to the number behind the cursor.
func TestRestartRightAfterTakeover(t *testing.T) {
	for _, many := range []int{1, 5, 6, 9} {
		runEstate(t, nil, func(w *world, x *estate) {
			e := w.engine("e1", true)
			w.register("w1", e)
			grow(e, 0, 5)
			e.publish(batch(store("", "xyz")))
			w.wait(2 * time.Second)
			x.move(func() {})
			w.wait(time.Second)
			w.want("abcde", 5, "xyz", 3)
			equal(t, "lives", w.lives, 0)
			e.next, e.buffer = 0, nil
			for i := range many {
				e.publish(batch(store("", "pqrstuvwx"[:i+1])))
			}
			w.wait(time.Second)
			w.want("abcde", 0, "xyz", 0, "pqrstuvwx", many)
			equal(t, "lives", w.lives, 1)
		})
	}
}

// A life whose stream began late, since the replay failed, is not gone on with: the new
// reader would take what its owners have for all there is, and never ask for the rest.
func TestShortLifeIsNotInherited(t *testing.T) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		grow(e, 0, 5)
		e.hang = true
		w.register("w1", e)
		w.wait(20 * time.Second)
		e.publish(batch(store("", "xy")))
		w.wait(2 * time.Second)
		w.want("abcde", 0, "xy", 2)
		equal(t, "short", w.source("w1").Ranks[0].Short, true)
		x.move(func() { e.hang = false })
		w.wait(time.Minute)
		w.want("abcde", 5, "xy", 2)
		equal(t, "short", w.source("w1").Ranks[0].Short, false)
		equal(t, "lives", w.lives, 1)
		// From here on it is like any other.
		x.move(func() { e.publish(batch(remove("xy"))) })
		w.want("abcde", 5, "xy", 1)
		equal(t, "lives", w.lives, 1)
	})
}

// The engine turns out to be another one while the log has no leader: nothing of the life
// that was gone on with is credited any more.
func TestInheritedLifeEndsAtOnce(t *testing.T) {
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		w.register("w1", e)
		grow(e, 0, 5)
		w.wait(2 * time.Second)
		e.publish(batch(store("abcde", "f")))
		x.move(func() {
			w.mu.Lock()
			w.refuse = errNoLeader
			w.mu.Unlock()
			e.next, e.buffer = 0, nil
			e.publish(batch(store("", "u")))
		})
		w.want("abcdef", 0, "u", 0)
		equal(t, "held", w.index.Stats().Held[0], 0)
		w.mu.Lock()
		w.refuse = nil
		w.mu.Unlock()
		w.wait(time.Minute)
		w.want("abcdef", 0, "u", 1)
	})
}

// The cache group that was indexed is still the one.
func TestInheritCacheGroup(t *testing.T) {
	grouped := func(g int64, ev encode.Event) encode.Event {
		ev.Group, ev.SpecKind = g, "full_attention"
		return ev
	}
	runEstate(t, nil, func(w *world, x *estate) {
		e := w.engine("e1", true)
		w.register("w1", e)
		e.publish(batch(grouped(2, store("", "abc"))))
		w.wait(2 * time.Second)
		x.move(func() {
			e.publish(batch(grouped(1, store("", "xyz")), grouped(1, remove("abc"))))
			e.publish(batch(grouped(2, store("abc", "d"))))
		})
		w.want("abcd", 4, "xyz", 0)
		equal(t, "lives", w.lives, 0)
	})
}
