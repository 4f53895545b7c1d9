package owner

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// worker takes up what one session receives: one goroutine, one writer of the index.
type worker struct {
	o       *Owner
	carrier *carrier
	id      uint32 // of the carrier
	before  *worker
	queue   queue
	wake    chan struct{}
	ended   chan struct{} // closed by the next session of the peer
	done    chan struct{} // closed when the goroutine is gone

	settling

	// What follows belongs to the goroutine.
	writer  indexer.Writer
	decoder copywire.Decoder
	taken   uint64    // number of the last frame that was taken up
	acked   uint64    // number of the last that was acknowledged
	bytes   int       // of payload since the last checkpoint
	filled  []*record // copies whose fills are written and not yet applied
	silence uint64    // the last silence that has ended in what was taken up
	odd     bool      // a message of the session was malformed
	stopped bool      // something that was taken up may not be applied
}

func newWorker(o *Owner, id uint32, before *worker) *worker {
	return &worker{
		o: o, carrier: o.carrier(id), id: id, before: before,
		wake: make(chan struct{}, 1), ended: make(chan struct{}), done: make(chan struct{}),
	}
}

func (w *worker) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run works until the session is over or ctx is done.
func (w *worker) run(ctx context.Context) {
	defer close(w.done)
	if w.before != nil {
		// Frames of one slot pass through one writer at a time.
		<-w.before.done
		w.before = nil
	}
	w.writer = w.o.cfg.Index.NewWriter()
	defer w.end()
	var items []uint64
	for {
		items = w.queue.take(items)
		if len(items) == 0 {
			select {
			case <-w.wake:
			case <-w.ended:
				return
			case <-ctx.Done():
				return
			}
			continue
		}
		if !w.batch(ctx, items) {
			return
		}
	}
}

// end gives up what the session carried.
func (w *worker) end() {
	w.writer.Close()
	w.settle()
	if w.o.cfg.broken.keepCopies {
		return
	}
	for k, r := range w.o.table.all() {
		if w.stopped {
			r.close(w.id)
		} else if r.lapse(w.id) {
			_, sl := w.o.table.slot(k.group, k.slot)
			sl.keeps.Store(true)
		}
	}
	w.o.remove(w)
}

// batch takes up some items, and leaves nothing that is not applied and acknowledged.
// It reports whether the worker may go on.
func (w *worker) batch(ctx context.Context, items []uint64) bool {
	w.unsettle()
	for len(items) > 0 {
		select {
		case <-w.ended:
			return false
		default:
		}
		var n uint64
		var payload []byte
		var mark bool
		if n, payload, mark, items = next(items); mark {
			w.silence = n
			continue
		}
		if !w.take(ctx, payload) {
			return false
		}
		w.taken = n
		if w.bytes += len(payload); w.bytes >= w.o.cfg.Checkpoint {
			if !w.checkpoint(ctx) {
				return false
			}
			w.unsettle()
		}
	}
	return w.checkpoint(ctx)
}

// checkpoint waits until the index has applied what the session said, and lets
// everybody know.
func (w *worker) checkpoint(ctx context.Context) bool {
	if w.o.cfg.broken.earlyOpen {
		w.openFilled()
	}
	if w.o.cfg.broken.earlyAck {
		w.o.cfg.Links.Ack(w.carrier.session, w.taken)
	}
	if err := w.writer.Flush(ctx); err != nil {
		if ctx.Err() == nil {
			w.o.log.Error("session stops: frames are not applied", "session", w.carrier.session, "error", err)
		}
		w.stopped = true
		return false
	}
	w.openFilled()
	if w.acked != w.taken {
		w.acked = w.taken
		w.o.cfg.Links.Ack(w.carrier.session, w.taken)
	}
	if w.silence != 0 {
		w.o.resume(w.carrier, w.silence)
		w.silence = 0
	}
	w.bytes = 0
	w.settle()
	return true
}

// openFilled opens the copies whose content is applied. A fault of that content has
// closed them before.
func (w *worker) openFilled() {
	for _, r := range w.filled {
		w.o.open(r, w.id)
	}
	w.filled = w.filled[:0]
}

// open opens a filled copy, unless it was closed meanwhile.
func (o *Owner) open(r *record, carrier uint32) bool {
	for {
		s := r.state.Load()
		if phase(s) != filled || carrierOf(s) != carrier {
			return false
		}
		if r.state.CompareAndSwap(s, makeState(open, carrier, o.version.Add(1))|s&written) {
			return true
		}
	}
}

// take carries out one message. It reports whether the worker may go on.
func (w *worker) take(ctx context.Context, payload []byte) bool {
	m, err := w.decoder.Decode(payload)
	if err != nil {
		w.malformed(err)
		return true
	}
	switch m.Kind {
	case copywire.KindFrame:
		err = w.frame(ctx, &m)
	case copywire.KindFill:
		err = w.fill(ctx, &m)
	case copywire.KindOpen:
		err = w.openFresh(ctx, &m)
	case copywire.KindClose:
		w.close(&m)
	case copywire.KindFence:
		err = w.fence(ctx, &m)
	case copywire.KindCursor:
		err = w.cursor(ctx, &m)
	case copywire.KindCarry:
		err = w.carry(ctx, &m)
	}
	if err != nil {
		if ctx.Err() == nil {
			w.o.log.Error("session stops", "session", w.carrier.session, "error", err)
		}
		w.stopped = true
		return false
	}
	return true
}

// settling lets others wait until a worker has applied what it took up. The number is
// odd while it may have something that is not applied.
type settling struct {
	number atomic.Uint64
	mu     struct {
		sync.Mutex
		changed chan struct{} // closed when the number changes; nil = nobody waits
	}
}

func (s *settling) unsettle() { s.number.Add(1) }

// settle says that everything is applied. It may be said again.
func (s *settling) settle() {
	if s.number.Load()%2 == 0 {
		return
	}
	s.number.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.changed != nil {
		close(s.mu.changed)
		s.mu.changed = nil
	}
}

// await returns when everything is applied that was taken up before the call.
func (s *settling) await(ctx context.Context) error {
	before := s.number.Load()
	if before%2 == 0 {
		return nil
	}
	for {
		s.mu.Lock()
		if s.number.Load() != before {
			s.mu.Unlock()
			return nil
		}
		if s.mu.changed == nil {
			s.mu.changed = make(chan struct{})
		}
		changed := s.mu.changed
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitAll waits for all sessions but one. What is decided before the call (a tenure,
// the end of a life) is seen by everything that they take up after it.
func (o *Owner) awaitAll(ctx context.Context, but *worker) error {
	o.mu.Lock()
	all := slices.Clone(o.mu.workers)
	o.mu.Unlock()
	for _, w := range all {
		if w != but {
			if err := w.await(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
