package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Step is one thing that happens, and what goes on for a while after it. Its numbers name
// whoever has them when it is carried out.
type Step struct {
	Kind string
	A, B int
	For  time.Duration // how long traffic goes on before the next step
	Seed uint64        // of what the step and the traffic choose
}

func (s Step) String() string { return fmt.Sprintf("%s %d %d, %v", s.Kind, s.A, s.B, s.For) }

// do carries out a step.
func (w *world) do(s *Step) {
	w.rng = rand.New(rand.NewPCG(s.Seed, 3))
	w.traffic(s.For)
}

// every is about how often the traffic does something.
const every = 40 * time.Millisecond

// traffic lets engines publish and clients ask for a while.
func (w *world) traffic(d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until) && !w.failed(); {
		for _, e := range w.engines {
			if w.rng.IntN(3) == 0 {
				w.batch(e)
			}
		}
		if up := w.up(); len(up) > 0 {
			for range 1 + w.rng.IntN(2) {
				w.query(up[w.rng.IntN(len(up))], w.rng.IntN(numPrompts), time.Duration(w.rng.Int64N(int64(4*time.Millisecond))))
			}
		}
		w.tick(1 + time.Duration(w.rng.Int64N(int64(2*every))))
	}
}

// batch publishes something.
func (w *world) batch(e *engine) {
	for range 1 + w.rng.IntN(3) {
		e.random(w.rng)
	}
	if e.mark == nil || w.rng.IntN(10) == 0 {
		e.addMarkers()
	}
	e.send()
}

// thaw lets the batches of an engine through again.
func (w *world) thaw(e *engine) {
	if e.frozen {
		e.frozen = false
		w.net.mem.Heal(e.endpoint)
		w.net.mem.Heal(e.replay)
	}
}
