package ingest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run the random faults with this seed only")
	seedsFlag = flag.Int("seeds", 60, "how many seeds of random faults to run")
)

// cacheModel is an engine with a cache of its own: what it really holds.
type cacheModel struct {
	e    *mockEngine
	rnd  *rand.Rand
	held map[string]bool // by path
	ever map[string]bool
}

func (c *cacheModel) pick(from map[string]bool) string {
	paths := make([]string, 0, len(from))
	for p := range from {
		paths = append(paths, p)
	}
	if len(paths) == 0 {
		return ""
	}
	slices.Sort(paths)
	return paths[c.rnd.IntN(len(paths))]
}

// step is one batch of the engine: a few stores and removals of what it holds.
func (c *cacheModel) step() []byte {
	var evs []encode.Event
	for range c.rnd.IntN(3) {
		switch {
		case c.rnd.IntN(3) > 0 || len(c.held) == 0:
			parent := ""
			if c.rnd.IntN(3) > 0 {
				parent = c.pick(c.held)
			}
			n := 1 + c.rnd.IntN(3)
			blocks := ""
			for range n {
				blocks += string(rune('a' + c.rnd.IntN(3)))
			}
			if len(parent)+n > 7 {
				continue
			}
			evs = append(evs, store(parent, blocks))
			for i := range blocks {
				c.held[parent+blocks[:i+1]] = true
				c.ever[parent+blocks[:i+1]] = true
			}
		case c.rnd.IntN(30) == 0:
			evs = append(evs, cleared())
			clear(c.held)
		default:
			p := c.pick(c.held)
			evs = append(evs, remove(p))
			delete(c.held, p)
		}
	}
	return batch(evs...)
}

// score is the held value: the longest prefix whose blocks are all held.
func (c *cacheModel) score(path string) int {
	n := 0
	for n < len(path) && c.held[path[:n+1]] {
		n++
	}
	return n
}

// TestRandomFaults drives engines through losses, reconnections, restarts, hanging and
// broken replays. Whenever the faults are over, an engine that can replay everything is
// indexed exactly, and one that cannot is never credited with more than it holds.
func TestRandomFaults(t *testing.T) {
	seeds := make([]uint64, *seedsFlag)
	for i := range seeds {
		seeds[i] = uint64(i) + 1
	}
	if *seedFlag != 0 {
		seeds = []uint64{*seedFlag}
	}
	for _, seed := range seeds {
		for _, kind := range []string{"replay", "short replay", "no replay"} {
			t.Run(fmt.Sprintf("%s/%d", kind, seed), func(t *testing.T) {
				runWith(t, []option{func(c *Config, _ *Deps) {
					if seed%3 == 0 {
						c.BufferBatches = 3
					}
				}}, func(w *world) { randomFaults(w, nil, seed, kind) })
			})
		}
	}
}

// TestRandomTakeovers has the same faults, and the source goes away and comes back among
// them: with an inheritance, without one, or with owners that do not answer.
func TestRandomTakeovers(t *testing.T) {
	inherited, kept := 0, 0
	for seed := range uint64(*seedsFlag) {
		for _, kind := range []string{"replay", "short replay"} {
			t.Run(fmt.Sprintf("%s/%d", kind, seed), func(t *testing.T) {
				runEstate(t, nil, func(w *world, x *estate) {
					randomFaults(w, x, seed, kind)
					inherited += x.adopted
					kept += x.went
				})
			})
		}
	}
	t.Logf("%d inheritances, %d lives went on", inherited, kept)
	if kept < inherited/4 {
		t.Errorf("of %d inheritances only %d were used", inherited, kept)
	}
}

// takeOver moves the source while the engine goes on.
func (x *estate) takeOver(rnd *rand.Rand, c *cacheModel) {
	w := x.w
	before := w.life("w1", 0)
	x.fail, x.silent = nil, rnd.IntN(12) == 0
	if rnd.IntN(8) == 0 {
		x.fail = errNoLeader
	}
	if rnd.IntN(5) > 0 {
		x.give(false)
		for range rnd.IntN(6) {
			c.e.publish(c.step())
		}
		w.wait(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		for range rnd.IntN(3) {
			c.e.publish(c.step())
		}
	}
	x.give(true)
	w.wait(time.Duration(rnd.IntN(2000)) * time.Millisecond)
	if w.life("w1", 0) == before {
		x.went++
	}
}

func randomFaults(w *world, x *estate, seed uint64, kind string) {
	t := w.t
	rnd := rand.New(rand.NewPCG(seed, 1))
	e := w.engine("e1", kind != "no replay")
	if kind == "short replay" {
		e.size = 4
	}
	w.register("w1", e)
	c := &cacheModel{e: e, rnd: rnd, held: map[string]bool{}, ever: map[string]bool{}}
	garbage := false
	for round := range 4 {
		for range 60 {
			if x != nil && rnd.IntN(12) == 0 {
				x.takeOver(rnd, c)
				continue
			}
			switch rnd.IntN(24) {
			case 0, 1:
				e.record(c.step()) // lost on the way
			case 2:
				e.disconnect()
			case 3:
				e.connect()
			case 4: // a restart that may be unseen, with a cache that is empty
				clear(c.held)
				start := []uint64{0, 0, e.next, e.next + 1, 1 << 40}[rnd.IntN(5)]
				// A run that goes on with the next number on the same connection cannot be
				// told from the one before, and cannot happen: its connection is another.
				if e.replay != "" && start != e.next && rnd.IntN(2) == 0 {
					e.next, e.buffer = start, nil // nobody notices at once
					e.publish(c.step())           // unless the number says so
				} else {
					e.restart(start)
				}
			case 5:
				e.hang = !e.hang
			case 6:
				e.noMarker = !e.noMarker
			case 7:
				e.stopAfter = rnd.IntN(4)
			case 8:
				e.threeFrames = !e.threeFrames
			case 9:
				if rnd.IntN(4) == 0 {
					garbage = true
					e.publish([]byte{0xc1, byte(rnd.IntN(256))})
				}
			case 10:
				w.wait(time.Duration(rnd.IntN(8000)) * time.Millisecond)
			case 11:
				if len(e.buffer) > 0 { // the same message again
					b := e.buffer[len(e.buffer)-1]
					e.send(b.seq, b.payload)
				}
			default:
				e.publish(c.step())
			}
		}
		// The faults are over.
		e.hang, e.stopAfter, e.noMarker = false, 0, false
		if e.down {
			e.connect()
		}
		w.wait(5 * time.Second)
		e.publish(batch())
		w.wait(3 * time.Minute)
		// A tiny backlog loses batches that wait for a slot number: late, but never wrong.
		// A takeover loses what waited for a parent, and what was below a hole.
		exact := kind == "replay" && !garbage && seed%3 != 0 && x == nil
		for p := range c.ever {
			got, want := w.score(p), c.score(p)
			if got > want || exact && got < want {
				t.Errorf("seed %d, %s, round %d: score of %q is %d, the engine holds %d", seed, kind, round, p, got, want)
			}
		}
		// What comes now counts.
		e.publish(batch(store("", "xyz")))
		w.settle()
		if got := w.score("xyz"); got != 3 {
			t.Errorf("seed %d, %s, round %d: a new chain has score %d, want 3", seed, kind, round, got)
		}
		e.publish(batch(remove("xyz", "xy", "x")))
		w.settle()
		if st := w.rank("w1", 0).State; st != Active && st != Buffering {
			t.Errorf("seed %d, %s, round %d: state %v", seed, kind, round, st)
		}
		if t.Failed() {
			t.Fatalf("%+v", w.source("w1"))
		}
	}
}
