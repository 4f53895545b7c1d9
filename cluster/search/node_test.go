package search

import (
	"context"
	"errors"
	"iter"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvcluster/kvcluster/cluster/state"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/reference"
	"github.com/kvcluster/kvcluster/shard/catalog"
	"github.com/kvcluster/kvcluster/transport/link"
)

// rigNode is one node of a rig: what a Search works with, and what the test does to it.
type rigNode struct {
	r     *rig
	name  string
	boot  uint64
	view  atomic.Pointer[state.View]
	index *pausingIndex
	s     *Search
	hub   *link.Hub
	stop  context.CancelFunc
	done  sync.WaitGroup

	// What the test does to it, under rig.mu.
	lagging bool // gets no views
	cut     bool // from the leader
	dead    map[string]bool
	closed  map[closedKey]bool
	version uint64 // counts what opens and closes
	changed map[closedKey]uint64
	served  atomic.Int64
	purged  map[catalog.Retired]bool
}

type closedKey struct {
	partition indexer.PartitionID
	slot      indexer.Slot
}

// pausingIndex is an index whose readers stand still when the test wants it.
type pausingIndex struct {
	*reference.Index
	pause atomic.Int64 // once, after a Match has read
	hold  atomic.Int64 // each time, before a Match reads
}

type pausingReader struct {
	indexer.Reader
	x *pausingIndex
}

func (x *pausingIndex) NewReader() indexer.Reader { return pausingReader{x.Index.NewReader(), x} }

func (r pausingReader) Match(q indexer.Query, out *indexer.Scores) {
	time.Sleep(time.Duration(r.x.hold.Load()))
	r.Reader.Match(q, out)
	time.Sleep(time.Duration(r.x.pause.Swap(0)))
}

func (n *rigNode) readIndex(ctx context.Context) (uint64, error) {
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(time.Millisecond):
	}
	n.r.mu.Lock()
	cut, index := n.cut, n.r.index
	n.r.mu.Unlock()
	if cut {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return index, nil
}

func (n *rigNode) waitApplied(ctx context.Context, index uint64) error {
	for n.view.Load().Index < index {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// Mark implements Owner.
func (n *rigNode) Mark() uint64 {
	n.r.mu.Lock()
	defer n.r.mu.Unlock()
	return n.version
}

// Unreadable implements Owner.
func (n *rigNode) Unreadable(dst []indexer.Slot, since, _ uint64, _ indexer.GroupID, p indexer.PartitionID, lives iter.Seq2[indexer.Slot, uint64]) []indexer.Slot {
	n.r.mu.Lock()
	closed, changed := maps.Clone(n.closed), maps.Clone(n.changed)
	n.r.mu.Unlock()
	for slot := range lives {
		if k := (closedKey{p, slot}); closed[k] || changed[k] > since {
			dst = append(dst, slot)
		}
	}
	return dst
}

func (n *rigNode) peek(ctx context.Context, peer string, g indexer.GroupID, slot indexer.Slot, _ uint64, parts []indexer.PartitionID, visit func(indexer.PartitionID, indexer.Stretch) error) error {
	n.r.mu.Lock()
	o := n.r.nodes[peer]
	n.r.mu.Unlock()
	if o == nil {
		return errors.New("down")
	}
	for _, p := range parts {
		n.r.mu.Lock()
		closed := o.closed[closedKey{p, slot}]
		n.r.mu.Unlock()
		if closed {
			return errors.New("copy is closed")
		}
		if err := o.index.Dump(ctx, g, p, slot, func(s indexer.Stretch) error { return visit(p, s) }); err != nil {
			return err
		}
	}
	return nil
}

// toggle closes or opens a copy, with rig.mu held.
func (n *rigNode) toggle(k closedKey, closed bool) {
	n.version++
	n.changed[k] = n.version
	if delete(n.closed, k); closed {
		n.closed[k] = true
	}
}

func (n *rigNode) write(g indexer.GroupID, p indexer.PartitionID, slot indexer.Slot, nth, depth int, tiers ...indexer.Tier) {
	if len(tiers) == 0 {
		tiers = []indexer.Tier{indexer.Device}
	}
	var b indexer.FrameBuilder
	b.Reset(indexer.Header{Group: g, Partition: p, Slot: slot, Life: 1, Tenure: 1, Sequence: 1})
	run := indexer.Run(nth)
	locals, engines := b.Store(tiers[0], run, 0, indexer.Parent{}, depth)
	copy(locals, path(nth))
	for i := range engines {
		engines[i] = locals[i] ^ 1
	}
	for _, t := range tiers[1:] {
		b.Claim(t, indexer.MakeRange(run, 0, depth))
	}
	w := n.index.NewWriter()
	defer w.Close()
	if err := w.Write(b.Frame()); err != nil {
		n.r.t.Fatal(err)
	}
}

// ignore is a link's user that sends no frames.
type ignore struct{}

func (ignore) OnSession(link.Session) {}

func (ignore) OnFrame(link.Session, uint64, []byte) {}

func (ignore) OnSilence(link.Session) {}

func (ignore) OnResume(link.Session) {}

func (ignore) OnPeer(link.Session, bool) {}

func (ignore) OnAck(link.Session, uint64) {}

func (ignore) OnLapse(link.Session, bool) {}
