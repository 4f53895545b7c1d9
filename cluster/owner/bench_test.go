package owner

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cluster/copywire"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/tree"
	"github.com/kvcluster/kvcluster/transport/link"
)

// freeLinks acknowledges to nobody.
type freeLinks struct{ acked uint64 }

func (l *freeLinks) Ack(_ link.Session, n uint64) { l.acked = n }
func (*freeLinks) Current(link.Session) bool      { return true }

// nullIndex takes frames and does nothing: what is left is the owner's own cost.
type nullIndex struct{ indexer.Index }

type nullWriter struct{ indexer.Writer }

func (nullIndex) NewWriter() indexer.Writer    { return nullWriter{} }
func (nullWriter) Write(indexer.Frame) error   { return nil }
func (nullWriter) Flush(context.Context) error { return nil }
func (nullWriter) Close()                      {}
func cpu() (d time.Duration) {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		d = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return d
}

// benchFrames are payloads of a slot that stores n blocks and drops them again.
func benchFrames(slots, blocks int) (open, frames [][]byte) {
	var b indexer.FrameBuilder
	for s := range slots {
		l := copywire.SlotLife{Group: 1, Slot: indexer.Slot(s), Life: 1}
		var parts []indexer.PartitionID
		for p := range indexer.PartitionID(4) {
			parts = append(parts, p)
			h := indexer.Header{Group: 1, Slot: l.Slot, Partition: p, Life: 1, Tenure: 1, Sequence: 1}
			b.Reset(h)
			locals, engines := b.Store(indexer.Device, 0, 0, indexer.Parent{}, blocks)
			for i := range locals {
				locals[i], engines[i] = uint64(s%8)<<40|uint64(p)<<32|uint64(i)+1, uint64(i)+1
			}
			frames = append(frames, copywire.AppendFrame(nil, b.Frame()))
			b.Reset(h)
			b.Drop(indexer.Device, indexer.MakeRange(0, 0, blocks))
			frames = append(frames, copywire.AppendFrame(nil, b.Frame()))
		}
		open = append(open, copywire.AppendOpen(nil, l, 1, parts))
	}
	return open, frames
}

// BenchmarkFrame is what a frame costs from OnFrame on, in CPU time of the process, with
// the queue, decoding, checks and labels, into nothing and into the tree. Half of the
// frames store so many blocks, the others drop them.
func BenchmarkFrame(b *testing.B) {
	for _, into := range []string{"nothing", "tree"} {
		for _, blocks := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("%s/blocks=%d", into, blocks), func(b *testing.B) {
				x := indexer.Index(nullIndex{})
				if into == "tree" {
					t, err := tree.Open(tree.Config{Lanes: 1, Reserve: 1 << 30})
					if err != nil {
						b.Fatal(err)
					}
					defer t.Close()
					x = t
				}
				benchFrame(b, x, blocks)
			})
		}
	}
}

func benchFrame(b *testing.B, x indexer.Index, blocks int) {
	links := &freeLinks{}
	o, err := New(Config{Name: "o", Index: x, Links: links, Logger: quietLog,
		Broken: func(context.Context, string, indexer.Header) error { return nil }})
	if err != nil {
		b.Fatal(err)
	}
	s := link.Session{Peer: "a", SenderBoot: 1, ReceiverBoot: 1, Number: 1}
	o.OnSession(s)
	w := o.route(s)
	w.writer = x.NewWriter() // the goroutine's work is done here, so that it can be measured
	defer w.writer.Close()
	n := uint64(0)
	push := func(p []byte) { n++; o.OnFrame(s, n, p) }
	open, frames := benchFrames(500, blocks)
	for _, p := range open {
		push(p)
	}
	ctx := context.Background()
	var items []uint64
	work := func() {
		if items = w.queue.take(items); !w.batch(ctx, items) {
			b.Fatal("stopped")
		}
	}
	work()
	b.ReportAllocs()
	b.ResetTimer()
	start := cpu()
	for i := range b.N {
		push(frames[i%len(frames)])
		if i%1000 == 999 {
			work()
		}
	}
	work()
	spent := cpu() - start
	b.ReportMetric(float64(spent)/float64(b.N), "cpu-ns/frame")
	b.ReportMetric(float64(spent)/float64(b.N)/float64(blocks), "cpu-ns/block")
	if st := o.Stats(); st.Frames != uint64(b.N) || st.Faults != 0 {
		b.Fatalf("stats %+v", st)
	}
}

// BenchmarkUnreadable asks for 2,000 slots, all of which are readable.
func BenchmarkUnreadable(b *testing.B) {
	o, err := New(Config{Name: "o", Index: nullIndex{}, Links: &freeLinks{}, Logger: quietLog,
		Broken: func(context.Context, string, indexer.Header) error { return nil }})
	if err != nil {
		b.Fatal(err)
	}
	s := link.Session{Peer: "a", SenderBoot: 1, ReceiverBoot: 1, Number: 1}
	o.OnSession(s)
	w := o.route(s)
	w.writer = nullWriter{}
	open, _ := benchFrames(2000, 1)
	for i, p := range open {
		o.OnFrame(s, uint64(i)+1, p)
	}
	w.batch(context.Background(), w.queue.take(nil))
	lives := func(yield func(indexer.Slot, uint64) bool) {
		for s := range indexer.Slot(2000) {
			if !yield(s, 1) {
				return
			}
		}
	}
	var dst []indexer.Slot
	b.ReportAllocs()
	for b.Loop() {
		if dst = o.Unreadable(dst[:0], o.Mark(), 1<<40, 1, 2, lives); len(dst) != 0 {
			b.Fatalf("%d unreadable", len(dst))
		}
	}
}

// TestFrameAllocates: a frame costs no allocation.
func TestFrameAllocates(t *testing.T) {
	o, err := New(Config{Name: "o", Index: nullIndex{}, Links: &freeLinks{}, Logger: quietLog,
		Broken: func(context.Context, string, indexer.Header) error { return nil }})
	if err != nil {
		t.Fatal(err)
	}
	s := link.Session{Peer: "a", SenderBoot: 1, ReceiverBoot: 1, Number: 1}
	o.OnSession(s)
	w := o.route(s)
	w.writer = nullWriter{}
	open, frames := benchFrames(8, 16)
	var items []uint64
	round := func() {
		for _, p := range frames {
			o.OnFrame(s, 1, p)
		}
		items = w.queue.take(items)
		w.batch(context.Background(), items)
	}
	for i, p := range open {
		o.OnFrame(s, uint64(i)+1, p)
	}
	round()
	round()
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations for %d frames", n, len(frames))
	}
	if n := o.Stats().Ignored["closed"]; n != 0 {
		t.Errorf("%d frames ignored", n)
	}
}
