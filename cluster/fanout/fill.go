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
	// labels are, for a dump from a peer, those that its copies had to have at the fence.
	labels map[indexer.PartitionID]uint64

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
		from, at, ok := s.sourceOf(p, pe)
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
		fl.labels = map[indexer.PartitionID]uint64{}
		for _, p := range fl.list {
			fl.labels[p] = s.label[p]
		}
	case fromNothing:
		s.pend.busy, fl.complete = true, true
	}
	c.had.or(fl.parts)
	c.fill = fl
	return fl
}

// sourceOf finds the content of a partition: here, else at a peer that answers, else
// at one that may.
func (s *slot) sourceOf(p indexer.PartitionID, target *peer) (from source, at *peer, ok bool) {
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
		case c.sess.lapsed.Load() || s.f.clock() < pe.avoid.Load():
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

func (w *filler) close() {
	if w.local != nil {
		w.local.Close()
	}
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
			fl.at.avoid.Store(fl.f.clock() + int64(fl.f.cfg.RetryMax))
		}
	case fromNothing:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dump = map[indexer.PartitionID]copywire.Copy{}
	for _, c := range list {
		if c.Open && int(c.Partition) < len(fl.s.label) && fl.parts.has(int(c.Partition)) && fl.current(&c) {
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

// current reports that a dump has everything that was said of its partition before the
// fence. A peer that knows of a newer tenure, of which this node does not know yet, has
// refused frames, and its copy is whole but older.
func (fl *fill) current(c *copywire.Copy) bool {
	return fl.from != fromPeer || fl.f.cfg.broken.anyLabel ||
		c.Tenure == fl.s.tenure && c.Sequence == fl.labels[c.Partition]
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
