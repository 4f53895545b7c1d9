package sim

import (
	"context"
	"time"

	"github.com/kvcluster/kvcluster/shard/catalog"
)

func (w *world) engine(s *Step) *engine {
	e := w.engines[s.A%len(w.engines)]
	w.logf("engine %s, at batch %d", e.id, e.seq)
	return e
}

func (w *world) engineRestartsInPlace(s *Step) { w.engine(s).restartInPlace() }
func (w *world) engineRestarts(s *Step)        { w.engine(s).restart() }
func (w *world) engineDisconnects(s *Step)     { w.net.mem.Disconnect(w.engine(s).endpoint) }

func (w *world) engineFreezes(s *Step) {
	e := w.engine(s)
	e.frozen = true
	w.net.mem.Freeze(e.endpoint)
}

func (w *world) engineWithholds(s *Step) {
	e := w.engine(s)
	for range 1 + s.B%3 {
		e.random(w.rng)
		e.withhold()
	}
}

func (w *world) engineLoses(s *Step) {
	e := w.engine(s)
	for range 1 + s.B%2 {
		e.random(w.rng)
		e.lose()
	}
	w.batch(e)
}

func (w *world) engineClears(s *Step) {
	e := w.engine(s)
	e.clear()
	w.batch(e)
}

// engineRegistersAnew takes an engine out and in again; it knows nothing of it.
func (w *world) engineRegistersAnew(s *Step) {
	e, at := w.engine(s), pick(w.up(), s.B)
	if at == nil {
		return
	}
	w.background(10*time.Second, at, func(ctx context.Context, p *process) error {
		if err := p.member.Node().Unregister(ctx, catalog.Unregistration{Instance: e.id, Model: groupKey.Model}); err != nil {
			return err
		}
		return p.member.Node().Register(ctx, e.registration())
	}, func(err error) { w.logf("register anew %s: %v", e.id, err) })
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
	}
}
