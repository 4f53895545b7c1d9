package owner

import (
	"maps"
	"sync"
	"unsafe"

	"github.com/kvcluster/kvcluster/transport/link"
)

// OnSession, OnFrame, OnSilence and OnResume are the incoming half of link.Handler.
// None of them waits.

// OnSession begins a session. What the older one of this peer carried is closed from
// this moment on, although what had been received of it may still be applied.
func (o *Owner) OnSession(s link.Session) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.ended {
		return
	}
	before := o.mu.peers[s.Peer]
	if before != nil {
		o.replaced(before)
	}
	w := newWorker(o, o.addCarrier(s), before)
	o.mu.peers[s.Peer] = w
	o.mu.workers = append(o.mu.workers, w)
	o.mu.begin = append(o.mu.begin, w)
	routes := maps.Clone(*o.routes.Load())
	routes[s.Number] = w
	o.routes.Store(&routes)
	o.log.Info("session begins", "session", s)
	o.signal()
}

// replaced ends a session. Called with mu.
func (o *Owner) replaced(w *worker) {
	if !o.cfg.broken.keepCopies {
		w.carrier.over.Store(true)
	}
	close(w.ended)
	routes := maps.Clone(*o.routes.Load())
	delete(routes, w.carrier.session.Number)
	o.routes.Store(&routes)
	o.dumps.forget(w.carrier.session)
}

// Forget ends the session of a peer that is no member any more, and closes what it
// carried.
func (o *Owner) Forget(peer string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w := o.mu.peers[peer]; w != nil {
		delete(o.mu.peers, peer)
		o.replaced(w)
		o.log.Info("session ends: the peer is gone", "session", w.carrier.session)
	}
}

func (o *Owner) route(s link.Session) *worker {
	if w := (*o.routes.Load())[s.Number]; w != nil && w.carrier.session == s {
		return w
	}
	return nil
}

// OnFrame takes the next payload of a session.
func (o *Owner) OnFrame(s link.Session, n uint64, payload []byte) {
	if w := o.route(s); w != nil {
		w.queue.push(n, payload)
		o.count.bytes.Add(uint64(len(payload)))
		w.signal()
	}
}

// OnSilence makes what the session carries unreadable.
func (o *Owner) OnSilence(s link.Session) {
	if w := o.route(s); w != nil {
		w.carrier.silences.Add(1)
		o.log.Warn("session is silent", "session", s)
	}
}

// OnResume makes it readable again when what has been received is applied.
func (o *Owner) OnResume(s link.Session) {
	w := o.route(s)
	if w == nil {
		return
	}
	silence := w.carrier.silences.Load()
	if o.cfg.broken.earlyResume {
		o.resume(w.carrier, silence)
	}
	w.queue.mark(silence)
	o.log.Info("session is heard again", "session", s)
	w.signal()
}

// queue is what a session has received and its worker has not taken up. The window
// of the link bounds it: nothing in it is acknowledged.
//
//	item   number of the frame | bytes of payload | payload, padded to words
//	mark   number of a silence | isMark
type queue struct {
	mu struct {
		sync.Mutex
		words []uint64
	}
}

const (
	isMark = 1 << 63
	// keepWords is the memory that a queue keeps while it is not needed.
	keepWords = 128 << 10
)

func (q *queue) push(n uint64, payload []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	at, size := len(q.mu.words), (len(payload)+7)/8
	need := at + 2 + size
	if need > cap(q.mu.words) {
		next := make([]uint64, at, max(2*cap(q.mu.words), need, 1024))
		copy(next, q.mu.words)
		q.mu.words = next
	}
	q.mu.words = q.mu.words[:need]
	q.mu.words[at], q.mu.words[at+1] = n, uint64(len(payload))
	if size > 0 {
		q.mu.words[need-1] = 0
		copy(payloadOf(q.mu.words[at+2:]), payload)
	}
}

func (q *queue) mark(silence uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.mu.words = append(q.mu.words, silence, isMark)
}

// take returns all items, in exchange for the memory of the last ones.
func (q *queue) take(last []uint64) []uint64 {
	if cap(last) > keepWords && len(last) < cap(last)/4 {
		last = nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.mu.words
	q.mu.words = last[:0]
	return items
}

// next splits the first item off. payload is nil for a mark.
func next(items []uint64) (n uint64, payload []byte, mark bool, rest []uint64) {
	n, size := items[0], items[1]
	if size == isMark {
		return n, nil, true, items[2:]
	}
	words := 2 + (int(size)+7)/8
	return n, payloadOf(items[2:])[:size], false, items[words:]
}

// payloadOf looks at words as bytes.
func payloadOf(w []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), len(w)*8)
}
