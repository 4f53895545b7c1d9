package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport"
)

// mustFail runs a check against something that breaks a promise; the check has to
// notice. A check that cannot fail proves nothing.
func mustFail(t *testing.T, broken string, edit func(*node.Config), check func(testing.TB, func(*node.Config))) {
	t.Run(broken, func(t *testing.T) {
		a := &attempt{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			check(a, edit)
		}()
		<-done
		a.mu.Lock()
		defer a.mu.Unlock()
		if len(a.mu.failures) == 0 {
			t.Errorf("the check passes although %s", broken)
			return
		}
		t.Logf("noticed: %.300s", a.mu.failures[0])
	})
}

// attempt is a testing.TB that keeps failures instead of failing the test.
type attempt struct {
	testing.TB
	mu struct {
		sync.Mutex
		failures []string
	}
}

func (a *attempt) Fail() { a.Error("failed") }

func (a *attempt) FailNow() { a.Fatal("failed") }

func (a *attempt) Failed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.mu.failures) > 0
}

func (a *attempt) Error(args ...any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.failures = append(a.mu.failures, fmt.Sprint(args...))
}

func (a *attempt) Errorf(format string, args ...any) { a.Error(fmt.Sprintf(format, args...)) }

func (a *attempt) Fatal(args ...any) {
	a.Error(args...)
	runtime.Goexit()
}

func (a *attempt) Fatalf(format string, args ...any) { a.Fatal(fmt.Sprintf(format, args...)) }

// broken is an index that does something wrong on the way in or out. Its functions are
// shared by the nodes of a cluster and called by several goroutines at a time.
type broken struct {
	indexer.Index
	write func(indexer.Writer, indexer.Frame) error
	match func(indexer.Reader, indexer.Query, *indexer.Scores)
	purge func(indexer.GroupID, indexer.Slot) bool // false = not done
}

func breakIndex(b broken) func(*node.Config) {
	return func(c *node.Config) {
		c.WrapIndex = func(x indexer.Index) indexer.Index {
			own := b // of each node its own index; what is broken is shared
			own.Index = x
			return &own
		}
	}
}

func (b *broken) NewWriter() indexer.Writer { return brokenWriter{b.Index.NewWriter(), b} }
func (b *broken) NewReader() indexer.Reader { return brokenReader{b.Index.NewReader(), b} }

func (b *broken) Purge(ctx context.Context, g indexer.GroupID, s indexer.Slot) error {
	if b.purge != nil && !b.purge(g, s) {
		return nil
	}
	return b.Index.Purge(ctx, g, s)
}

type brokenWriter struct {
	indexer.Writer
	b *broken
}

func (w brokenWriter) Write(f indexer.Frame) error {
	if w.b.write == nil {
		return w.Writer.Write(f)
	}
	return w.b.write(w.Writer, f)
}

type brokenReader struct {
	indexer.Reader
	b *broken
}

func (r brokenReader) Match(q indexer.Query, out *indexer.Scores) {
	if r.b.match == nil {
		r.Reader.Match(q, out)
		return
	}
	r.b.match(r.Reader, q, out)
}

// without returns a write that leaves out operations.
func without(drop func(f indexer.Frame, op *indexer.Op) bool) func(indexer.Writer, indexer.Frame) error {
	return func(w indexer.Writer, f indexer.Frame) error {
		return w.Write(filter(f, func(op *indexer.Op) bool { return !drop(f, op) }))
	}
}

// filter copies the operations of a frame that are kept.
func filter(f indexer.Frame, keep func(*indexer.Op) bool) indexer.Frame {
	var b indexer.FrameBuilder
	b.Reset(f.Header())
	var op indexer.Op
	for off := f.Next(0, &op); off != 0; off = f.Next(off, &op) {
		if keep(&op) {
			appendOp(&b, &op)
		}
	}
	return b.Frame()
}

func appendOp(b *indexer.FrameBuilder, op *indexer.Op) {
	switch op.Kind {
	case indexer.OpStore:
		locals, engines := b.Store(op.Tier, op.Run, op.Start, op.Parent, len(op.Locals))
		copy(locals, op.Locals)
		copy(engines, op.Engines)
	case indexer.OpClaim:
		for i := range op.NumRanges() {
			b.Claim(op.Tier, op.Range(i))
		}
	case indexer.OpDrop:
		for i := range op.NumRanges() {
			b.Drop(op.Tier, op.Range(i))
		}
	case indexer.OpClear:
		b.Clear(op.Tier)
	}
}

// lateDrops writes what is dropped only after so many further frames of its copy.
func lateDrops(frames int) func(indexer.Writer, indexer.Frame) error {
	type copyKey struct {
		writer    indexer.Writer
		group     indexer.GroupID
		partition indexer.PartitionID
		slot      indexer.Slot
	}
	type late struct {
		at    int
		frame indexer.Frame
	}
	var mu sync.Mutex
	seen := map[copyKey]int{}
	waiting := map[copyKey][]late{}
	return func(w indexer.Writer, f indexer.Frame) error {
		mu.Lock()
		defer mu.Unlock()
		h := f.Header()
		k := copyKey{w, h.Group, h.Partition, h.Slot}
		seen[k]++
		drops := append(indexer.Frame(nil), filter(f, func(op *indexer.Op) bool { return op.Kind == indexer.OpDrop })...)
		if err := w.Write(filter(f, func(op *indexer.Op) bool { return op.Kind != indexer.OpDrop })); err != nil {
			return err
		}
		if drops.NumOps() > 0 {
			waiting[k] = append(waiting[k], late{seen[k] + frames, drops})
		}
		for len(waiting[k]) > 0 && waiting[k][0].at <= seen[k] {
			if err := w.Write(waiting[k][0].frame); err != nil {
				return err
			}
			waiting[k] = waiting[k][1:]
		}
		return nil
	}
}

// neverFalling answers with the best score that a slot ever had for a prompt.
func neverFalling() func(indexer.Reader, indexer.Query, *indexer.Scores) {
	type key struct {
		slot indexer.Slot
		last uint64
	}
	var mu sync.Mutex
	best := map[key]uint32{}
	return func(r indexer.Reader, q indexer.Query, out *indexer.Scores) {
		r.Match(q, out)
		mu.Lock()
		defer mu.Unlock()
		for i, row := range out.Rows {
			k := key{row.Slot, q.Locals[len(q.Locals)-1]}
			best[k] = max(best[k], row.Depth)
			out.Rows[i].Depth = best[k]
		}
	}
}

// heir is an index in which a slot inherits what the slots before it held; with one
// engine in a group, every life inherits the claims of the earlier ones.
func heir() func(*node.Config) {
	var mu sync.Mutex
	newest := map[indexer.GroupID]indexer.Slot{}
	return breakIndex(broken{
		write: func(w indexer.Writer, f indexer.Frame) error {
			h := f.Header()
			mu.Lock()
			newest[h.Group] = max(newest[h.Group], h.Slot)
			mu.Unlock()
			return w.Write(filter(f, func(op *indexer.Op) bool { return op.Kind != indexer.OpClear }))
		},
		match: func(r indexer.Reader, q indexer.Query, out *indexer.Scores) {
			r.Match(q, out)
			mu.Lock()
			defer mu.Unlock()
			best := indexer.Row{Slot: newest[q.Group]}
			for _, row := range out.Rows {
				best.Depth = max(best.Depth, row.Depth)
			}
			if best.Depth > 0 {
				out.Rows = append(out.Rows[:0], best)
			}
		},
		purge: func(indexer.GroupID, indexer.Slot) bool { return false },
	})
}

// seamless is a network on which no restart can be seen: sequences never go back and
// connections never break.
func seamless(c *node.Config) {
	c.WrapNetwork = func(n transport.Network) transport.Network { return seamlessNetwork{n} }
}

type seamlessNetwork struct{ transport.Network }

func (n seamlessNetwork) NewLoop(name string) (transport.Loop, error) {
	l, err := n.Network.NewLoop(name)
	return seamlessLoop{l}, err
}

type seamlessLoop struct{ transport.Loop }

func (l seamlessLoop) Subscribe(cfg transport.SubscribeConfig, h transport.SubscribeHandler) (transport.Socket, error) {
	return l.Loop.Subscribe(cfg, &seamlessHandler{SubscribeHandler: h})
}

type seamlessHandler struct {
	transport.SubscribeHandler
	next      uint64
	connected bool
}

func (h *seamlessHandler) OnMessage(frames [][]byte) {
	if n := len(frames); n >= 3 {
		frames[n-2] = binary.BigEndian.AppendUint64(nil, h.next)
		h.next++
	}
	h.SubscribeHandler.OnMessage(frames)
}

func (h *seamlessHandler) OnConnect() {
	if !h.connected {
		h.connected = true
		h.SubscribeHandler.OnConnect()
	}
}

func (h *seamlessHandler) OnDisconnect() {}

// lossy is a network that loses every 15th batch and hides the gap.
func lossy(c *node.Config) {
	c.WrapNetwork = func(n transport.Network) transport.Network { return lossyNetwork{n} }
}

type lossyNetwork struct{ transport.Network }

func (n lossyNetwork) NewLoop(name string) (transport.Loop, error) {
	l, err := n.Network.NewLoop(name)
	return lossyLoop{l}, err
}

type lossyLoop struct{ transport.Loop }

func (l lossyLoop) Subscribe(cfg transport.SubscribeConfig, h transport.SubscribeHandler) (transport.Socket, error) {
	return l.Loop.Subscribe(cfg, &lossyHandler{seamlessHandler{SubscribeHandler: h}, 0})
}

type lossyHandler struct {
	seamlessHandler
	n int
}

func (h *lossyHandler) OnMessage(frames [][]byte) {
	if h.n++; h.n%15 != 0 {
		h.seamlessHandler.OnMessage(frames)
	}
}
