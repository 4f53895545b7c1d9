package owner

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
)

const (
	// retryFirst and retryMost are how long the owner waits until it tells a peer again
	// of a broken copy.
	retryFirst = 100 * time.Millisecond
	retryMost  = 5 * time.Second
)

// faults are the closed copies of which the ingest nodes have yet to be told. There is
// one goroutine for each peer that has any.
type faults struct {
	mu struct {
		sync.Mutex
		pending map[string][]fault // by peer; present while its goroutine runs
		start   []string
	}
}

// fault is a copy that was closed, and who carried it.
type fault struct {
	indexer.Header
	carrier *carrier // nil = this node
}

// OnFault is the fault handler of the index: it closes the copy whose frame was
// refused. It does not wait.
func (o *Owner) OnFault(h indexer.Header, err error) {
	if _, r := o.table.find(h.Group, h.Partition, h.Slot); r != nil {
		o.fault(r, h, err)
	}
}

// fault closes a copy that refused a frame, and has its ingest node told.
func (o *Owner) fault(r *record, h indexer.Header, err error) {
	o.count.faults.Add(1)
	if o.cfg.broken.openFaulty {
		return
	}
	for {
		s := r.state.Load()
		if phase(s) == closed {
			return
		}
		if !r.state.CompareAndSwap(s, written) {
			continue
		}
		var c *carrier
		if id := carrierOf(s); id != localCarrier {
			if c = o.carrier(id); c == nil || c.over.Load() {
				return // the next session of that peer fills it
			}
		}
		o.report(h, c, err.Error())
		return
	}
}

// report has the ingest node of a closed copy told.
func (o *Owner) report(h indexer.Header, c *carrier, why string) {
	peer := o.cfg.Name
	if c != nil {
		peer = c.session.Peer
	}
	o.log.Error("copy closed, to be filled again", "slot", copywire.LifeOf(h).String(), "partition", h.Partition, "sequence", h.Sequence, "from", peer, "why", why)
	o.faults.mu.Lock()
	waiting, running := o.faults.mu.pending[peer]
	o.faults.mu.pending[peer] = append(waiting, fault{h, c})
	if !running {
		o.faults.mu.start = append(o.faults.mu.start, peer)
	}
	o.faults.mu.Unlock()
	o.signal()
}

// begin returns the peers for which a goroutine is to be started.
func (f *faults) begin() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	start := f.mu.start
	f.mu.start = nil
	return start
}

// take returns what a peer is to be told, and ends its turn if that is nothing.
func (f *faults) take(peer string) []fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.mu.pending[peer]
	if len(out) == 0 {
		delete(f.mu.pending, peer)
		return nil
	}
	f.mu.pending[peer] = nil
	return out
}

// tellBroken tells a peer of its broken copies until it has heard of all of them, or
// has none any more.
func (o *Owner) tellBroken(ctx context.Context, peer string) {
	wait := retryFirst
	for {
		todo := o.faults.take(peer)
		if todo == nil || ctx.Err() != nil {
			return
		}
		failed := slices.DeleteFunc(todo, func(f fault) bool {
			h := f.Header
			if !o.stillBroken(h) || f.carrier != nil && f.carrier.over.Load() {
				return true
			}
			err := o.cfg.Broken(ctx, peer, h)
			if err != nil && ctx.Err() == nil {
				o.log.Warn("ingest node not told of a closed copy", "peer", peer, "slot", copywire.LifeOf(h).String(), "partition", h.Partition, "error", err)
			}
			return err == nil || o.cfg.broken.forgetBroken
		})
		if len(failed) == 0 {
			wait = retryFirst
			continue
		}
		o.faults.mu.Lock()
		o.faults.mu.pending[peer] = append(failed, o.faults.mu.pending[peer]...)
		o.faults.mu.Unlock()
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		wait = min(2*wait, retryMost)
	}
}

// stillBroken reports that a copy is closed, in the life and tenure in which it was
// broken. If it was filled meanwhile nobody needs to know.
func (o *Owner) stillBroken(h indexer.Header) bool {
	sl, r := o.table.find(h.Group, h.Partition, h.Slot)
	return r != nil && sl.life.Load() == h.Life && sl.tenure.Load() == h.Tenure && phase(r.state.Load()) == closed
}

func (o *Owner) headerOf(k key, r *record) indexer.Header {
	h := indexer.Header{Group: k.group, Partition: k.partition, Slot: k.slot, Tenure: r.tenure.Load(), Sequence: r.sequence.Load()}
	if sl, _ := o.table.find(k.group, k.partition, k.slot); sl != nil {
		h.Life = sl.life.Load()
	}
	return h
}
