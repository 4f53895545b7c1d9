package fanout

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

// source is where the content of a fill comes from.
type source uint8

const (
	fromSelf    source = iota // this node's own open copy
	fromPeer                  // an open copy of a peer, by a fence
	fromNothing               // nobody has had it: all frames are pending
	forgotten                 // nothing is filled: this node's copies are freed
)

// Errors of fills.
var (
	errLost     = errors.New("the session was lost")
	errCanceled = errors.New("canceled")
	errSource   = errors.New("the source has closed its copy")
	errStalled  = errors.New("the target does not acknowledge")
	errForeign  = errors.New("this node's copy is not to be written, or refused the content")
)

// fill makes some copies of a slot at one target equal to those at a source: dump,
// frames that rebuild it, then the frames that came since the dump, and only then the
// copies are open.
//
//	fence or dump      frames for the target are held from here on
//	  |  fetch, rebuild, send what the dump has
//	  |  send held frames, while more come
//	end                under the slot's lock: the last of them, the end of the fill
type fill struct {
	f      *Fanout
	s      *slot
	target *peer
	sess   *session // of the target
	from   source
	at     *peer // the source, if it is one
	token  uint64
	parts  set
	list   []indexer.PartitionID

	// Guarded by the slot's lock.
	queue    queue
	over     bool // frames that should have been held are gone
	canceled bool
	complete bool // the content is here: the source is not needed any more

	flight   []inFlight
	inFlight int64
	ended    chan struct{} // closed at the end
}

type inFlight struct{ n, bytes uint64 }

// hold keeps a frame for the end of the fill.
func (fl *fill) hold(e held) {
	if fl.over || fl.f.cfg.broken.noHold {
		return
	}
	if !fl.f.keep(&fl.queue, e) {
		fl.over = true
		fl.f.count.overflows.Add(1)
		fl.f.release(&fl.queue)
	}
}

// cancel makes the fill fail at its end. The caller holds the slot's lock.
func (fl *fill) cancel() { fl.canceled = true }

// beginFill chooses what to fill at a target and where the content comes from: one
// source for as much as it has. For a peer the fence is on its way when it returns.
func (s *slot) beginFill(t *table, pe *peer, now time.Time) *fill {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.retired || !pe.up() {
		return nil
	}
	c := s.copiesOf(pe)
	if c.fill != nil || now.Before(c.retryAt) {
		return nil
	}
	fl := &fill{f: s.f, s: s, target: pe, sess: c.sess, parts: newSet(t.partitions), ended: make(chan struct{})}
	if pe.self() && s.forget(t, pe) {
		fl.from = forgotten
		fl.parts.or(c.had)
		fl.parts.andNot(t.routed(pe))
		fl.list = fl.parts.list()
		c.open.andNot(fl.parts)
		c.fill = fl
		return fl
	}
	missing := t.want(pe).clone()
	missing.and(s.touched)
	missing.andNot(c.open)
	for _, p := range missing.list() {
		from, at, ok := s.sourceOf(p, pe, now)
		switch {
		case !ok:
			continue
		case fl.parts.empty():
			fl.from, fl.at = from, at
		case fl.from != from || fl.at != at:
			continue
		}
		fl.parts.add(int(p))
	}
	if fl.parts.empty() {
		return nil
	}
	fl.list = fl.parts.list()
	switch fl.from {
	case fromPeer:
		fl.token = s.f.token.Add(1)
		if !s.f.sendControl(s.copies[fl.at.index].sess, copywire.AppendFence(nil, fl.token, s.name, fl.list)) {
			return nil
		}
		c.held.or(fl.parts)
	case fromNothing:
		s.pend.busy, fl.complete = true, true
	}
	c.had.or(fl.parts)
	c.fill = fl
	return fl
}

// sourceOf finds the content of a partition: here, else at a peer that answers, else
// at one that may.
func (s *slot) sourceOf(p indexer.PartitionID, target *peer, now time.Time) (from source, at *peer, ok bool) {
	if s.pend.parts != nil && s.pend.parts.has(int(p)) {
		return fromNothing, nil, !s.pend.busy
	}
	best := 0
	for _, pe := range s.f.peers.all() {
		c := s.live(pe)
		if c == nil || pe == target || !c.open.has(int(p)) {
			continue
		}
		rank := 1
		switch {
		case pe.self():
			return fromSelf, pe, true
		case c.sess.lapsed.Load() || now.UnixNano() < pe.avoid.Load():
		case s.f.table.Load().view.Ready(uint32(p), pe.name):
			rank = 3
		default:
			rank = 2
		}
		if rank > best {
			best, at = rank, pe
		}
	}
	return fromPeer, at, at != nil
}

// worker carries out one fill after the other.
func (f *Fanout) worker(ctx context.Context, work <-chan need) {
	w := &filler{f: f}
	defer w.close()
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-work:
			if fl := n.s.beginFill(f.table.Load(), n.to, time.Now()); fl != nil {
				fl.done(fl.run(ctx, w))
			}
			n.to.filling.Add(-1)
			select {
			case f.freed <- struct{}{}:
			default:
			}
		}
	}
}

// filler is what a worker uses again.
type filler struct {
	f     *Fanout
	local indexer.Writer
	build indexer.FrameBuilder
}

func (w *filler) writer() indexer.Writer {
	if w.local == nil {
		w.local = w.f.cfg.Index.NewWriter()
	}
	return w.local
}

func (w *filler) close() {
	if w.local != nil {
		w.local.Close()
	}
}

func (fl *fill) run(ctx context.Context, w *filler) error {
	var dump map[indexer.PartitionID]copywire.Copy
	if fl.from != forgotten {
		var err error
		if dump, err = fl.fetch(ctx); err != nil {
			return err
		}
	}
	if fl.target.self() {
		fl.f.selfFill(fl, true)
		defer func() {
			// Nothing of it may be on its way to the index when others are told.
			if w.local != nil {
				_ = w.local.Flush(ctx)
			}
			fl.f.selfFill(fl, false)
		}()
		if err := fl.beginLocal(ctx); err != nil {
			return err
		}
	}
	if fl.from == forgotten {
		return fl.forgetLocal(ctx, w)
	}
	for _, p := range fl.list {
		if err := fl.content(ctx, w, p, dump[p]); err != nil {
			return err
		}
	}
	if fl.target.self() {
		return fl.finishLocal(ctx, w)
	}
	return fl.finish(ctx)
}

// fetch gets the content of all partitions.
func (fl *fill) fetch(ctx context.Context) (dump map[indexer.PartitionID]copywire.Copy, err error) {
	var list []copywire.Copy
	switch fl.from {
	case fromSelf:
		list, err = fl.dumpLocal(ctx)
	case fromPeer:
		list, err = copywire.Fetch(ctx, fl.call(fl.at.name), fl.token, fl.f.cfg.DumpBytes)
		if err != nil {
			fl.at.avoid.Store(time.Now().Add(fl.f.cfg.RetryMax).UnixNano())
		}
	case fromNothing:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dump = map[indexer.PartitionID]copywire.Copy{}
	for _, c := range list {
		if c.Open && int(c.Partition) < len(fl.s.label) && fl.parts.has(int(c.Partition)) {
			dump[c.Partition] = c
		}
	}
	fl.s.mu.Lock()
	defer fl.s.mu.Unlock()
	gone := fl.parts.clone()
	for p := range dump {
		gone.del(int(p))
	}
	if !gone.empty() {
		fl.f.count.closedSources.Add(1)
		fl.s.close(fl.at, gone)
		return nil, fmt.Errorf("%w: %d partitions at %s", errSource, gone.count(), fl.at.name)
	}
	fl.complete = true
	return dump, nil
}

func (fl *fill) sourceName() string {
	if fl.at == nil {
		return "none"
	}
	return fl.at.name
}

// call makes calls to a node that take at most Config.CallTimeout each.
func (fl *fill) call(peer string) copywire.Caller {
	return func(ctx context.Context, method string, req []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, fl.f.cfg.CallTimeout)
		defer cancel()
		return fl.f.cfg.Links.Call(ctx, peer, method, req)
	}
}

// alive says why the fill cannot go on. The caller holds the slot's lock.
func (fl *fill) alive() error {
	switch {
	case fl.s.gone || fl.s.retired || fl.canceled || fl.over:
		return errCanceled
	case fl.sess != fl.target.cur.Load() || fl.sess.broken.Load():
		return errLost
	case fl.from == fromNothing && (fl.s.pend.parts == nil || !fl.s.pend.parts.meets(fl.parts)):
		return errCanceled // too much was pending
	}
	return nil
}

func (fl *fill) check() error {
	fl.s.mu.Lock()
	defer fl.s.mu.Unlock()
	return fl.alive()
}

// content sends what a copy has, as frames that make an empty copy equal to it.
func (fl *fill) content(ctx context.Context, w *filler, p indexer.PartitionID, c copywire.Copy) error {
	return copywire.Rebuild(&w.build, fl.s.header(p, c.Sequence), c.Stretches, fl.f.cfg.FillFrame/8, func(first, last bool, fr indexer.Frame) error {
		if fl.f.cfg.broken.noClear {
			if first {
				fr = withoutClear(fr)
			}
			first = false
		}
		if err := errors.Join(fl.f.pacer.wait(ctx, 8*len(fr)), fl.check()); err != nil {
			return err
		}
		if fl.target.self() {
			return fl.writeLocal(w, fr)
		}
		return fl.send(ctx, copywire.AppendFill(nil, first, last && fl.f.cfg.broken.openFirst, fr))
	})
}

// withoutClear is for a mutant.
func withoutClear(fr indexer.Frame) indexer.Frame {
	out := append(append(indexer.Frame{}, fr[:frameHeader]...), fr[frameHeader+1:]...)
	out[0] = uint64(len(out)) | uint64(fr.NumOps()-1)<<32
	return out
}

// send sends a part of a fill to a peer, as far as that keeps pace.
func (fl *fill) send(ctx context.Context, payload []byte) error {
	n, err := fl.f.cfg.Links.Send(fl.sess.id, payload)
	if err != nil {
		fl.f.broke(fl.sess)
		return fmt.Errorf("%w: %w", errLost, err)
	}
	fl.sess.sent(n)
	fl.target.count.fillFrames.Add(1)
	fl.target.count.filled.Add(uint64(len(payload)))
	fl.flight = append(fl.flight, inFlight{n, uint64(len(payload))})
	fl.inFlight += int64(len(payload))
	for fl.inFlight > fl.f.cfg.FillWindow {
		news := fl.sess.news.next()
		acked, taken := fl.sess.acked.Load(), 0
		for taken < len(fl.flight) && fl.flight[taken].n <= acked {
			fl.inFlight -= int64(fl.flight[taken].bytes)
			taken++
		}
		fl.flight = fl.flight[taken:]
		if fl.inFlight <= fl.f.cfg.FillWindow {
			break
		}
		if err := fl.await(ctx, news); err != nil {
			return err
		}
	}
	return nil
}

// stall is how long a fill waits for an acknowledgement.
const stall = 5 * time.Second

func (fl *fill) await(ctx context.Context, news <-chan struct{}) error {
	timer := time.NewTimer(stall)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-news:
	case <-timer.C:
		return errStalled
	}
	return fl.check()
}

// waiting are the frames that have come since the dump. The caller holds the slot's
// lock.
func (fl *fill) waiting() *queue {
	if fl.from == fromNothing {
		return &fl.s.pend.queue
	}
	return &fl.queue
}

// rest is how many bytes of held frames are sent under the slot's lock at the end of a
// fill: less than a millisecond.
const rest = 64 << 10

// finish sends the held frames until few are left, and with the lock held these and the
// end of the fill.
func (fl *fill) finish(ctx context.Context) error {
	s := fl.s
	for sent := 0; ; {
		s.mu.Lock()
		if err := fl.alive(); err != nil {
			s.mu.Unlock()
			return err
		}
		more, left := fl.waiting().frames[sent:], 0
		for _, e := range more {
			left += len(e.payload)
		}
		if left <= rest {
			err := fl.close(more)
			s.mu.Unlock()
			return err
		}
		more = append([]held(nil), more...)
		s.mu.Unlock()
		for _, e := range more {
			if fl.parts.has(int(e.p)) {
				if err := fl.send(ctx, e.fill()); err != nil {
					return err
				}
			}
		}
		sent += len(more)
	}
}

// fill is the frame as a part of a fill.
func (e held) fill() []byte {
	m, err := copywire.Decode(e.payload)
	if err != nil {
		panic(fmt.Sprintf("fanout: own payload: %v", err)) // pack made it
	}
	return copywire.AppendFill(make([]byte, 0, len(e.payload)), false, false, m.Frame)
}

// close sends the last frames and opens the copies. The caller holds the slot's lock.
func (fl *fill) close(more []held) error {
	s := fl.s
	send := func(payload []byte) bool {
		if !s.f.sendControl(fl.sess, payload) {
			return false
		}
		fl.target.count.fillFrames.Add(1)
		fl.target.count.filled.Add(uint64(len(payload)))
		return true
	}
	for _, e := range more {
		if fl.parts.has(int(e.p)) && !send(e.fill()) {
			return errLost
		}
	}
	var b indexer.FrameBuilder
	for _, p := range fl.list {
		// A frame without operations: the copy is complete up to the sequence in it.
		b.Reset(s.header(p, s.label[p]))
		if !send(copywire.AppendFill(nil, false, true, b.Frame())) {
			return errLost
		}
	}
	fl.open()
	return nil
}

// open notes that the copies are open. The caller holds the slot's lock.
func (fl *fill) open() {
	c := &fl.s.copies[fl.target.index]
	c.held.andNot(fl.parts)
	c.open.or(fl.parts)
	if fl.s.cursor.Life != 0 {
		if fl.target.self() {
			fl.f.cfg.Owner.CursorLocal(fl.s.cursor)
		} else {
			fl.f.sendControl(fl.sess, copywire.AppendCursor(nil, fl.s.cursor))
		}
	}
	if fl.from == fromNothing {
		fl.s.settlePending(fl.parts)
	}
}

// done ends the fill, however it went.
func (fl *fill) done(err error) {
	s, f := fl.s, fl.f
	close(fl.ended)
	s.mu.Lock()
	c := &s.copies[fl.target.index]
	c.fill = nil
	if c.sess == fl.sess {
		c.held.andNot(fl.parts)
	}
	f.release(&fl.queue)
	if err == nil {
		c.backoff = 0
	} else {
		if fl.from == fromNothing {
			s.pend.busy = false
		}
		c.backoff = min(max(2*c.backoff, f.cfg.RetryMin), f.cfg.RetryMax)
		c.retryAt = time.Now().Add(c.backoff)
	}
	s.mu.Unlock()
	switch {
	case err == nil && fl.from != forgotten:
		fl.target.count.fills.Add(1)
	case err != nil:
		fl.target.count.failed.Add(1)
		if !errors.Is(err, context.Canceled) {
			f.log.Info("fill failed; it is tried again", "slot", s.name, "partitions", len(fl.list), "target", fl.target.name, "source", fl.sourceName(), "error", err)
		}
	}
	if f.backlog.Load() == 0 || err != nil {
		f.wakeUp()
	}
}
