package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// Promise 1: once the events received so far are applied, the score of a worker is the
// number of leading blocks that it holds, holes included, in every tier.
func TestPromise1Exact(t *testing.T) {
	exact(t, nil)
	mustFail(t, "holes are not seen", breakIndex(broken{write: withoutInnerDrops()}), exact)
	mustFail(t, "a refilled hole stays empty", breakIndex(broken{write: without(func(_ indexer.Frame, op *indexer.Op) bool {
		return op.Kind == indexer.OpStore && len(op.Locals) == 1 && op.Parent.Kind == indexer.ParentName
	})}), exact)
	mustFail(t, "further tiers are not credited", breakIndex(broken{write: without(func(_ indexer.Frame, op *indexer.Op) bool {
		return op.Kind == indexer.OpClaim
	})}), exact)
	mustFail(t, "all holders of the first block get the best score", breakIndex(broken{match: func(r indexer.Reader, q indexer.Query, out *indexer.Scores) {
		r.Match(q, out)
		var most uint32
		for _, row := range out.Rows {
			most = max(most, row.Depth)
		}
		for i := range out.Rows {
			out.Rows[i].Depth = most
		}
	}}), exact)
}

// withoutInnerDrops leaves out the removals that make holes.
func withoutInnerDrops() func(indexer.Writer, indexer.Frame) error {
	type runKey struct {
		slot      indexer.Slot
		partition indexer.PartitionID
		run       indexer.Run
	}
	var mu sync.Mutex
	ends := map[runKey]int{}
	return func(w indexer.Writer, f indexer.Frame) error {
		h := f.Header()
		mu.Lock()
		defer mu.Unlock()
		return w.Write(filter(f, func(op *indexer.Op) bool {
			switch op.Kind {
			case indexer.OpStore:
				k := runKey{h.Slot, h.Partition, op.Run}
				ends[k] = max(ends[k], int(op.Start)+len(op.Locals))
			case indexer.OpDrop:
				r := op.Range(0)
				return r.From()+r.Len() == ends[runKey{h.Slot, h.Partition, r.Run()}]
			}
			return true
		}))
	}
}

func exact(tb testing.TB, edit func(*node.Config)) {
	const name = "exact"
	url := startNode(tb, edit)
	net := newSockets(tb)
	told := model.New[string](model.Config{})
	var engines []*handDriven
	for i, format := range []encode.Format{encode.VLLMMap, encode.SGLangMap, encode.VLLMArray} {
		engines = append(engines, newHandDriven(tb, net, url, name, 11+i, func(e *handDriven) { e.format, e.told = format, told }))
	}
	var prompts [][]uint32
	for family := range 4 {
		for branch := range 3 {
			prompts = append(prompts, makePrompt(family+1, branch, 12, 6))
		}
	}
	check := func(when string, prompts ...[]uint32) {
		tb.Helper()
		for _, p := range prompts {
			if diff := difference(tb, url, name, told, engines, p); diff != "" {
				tb.Fatalf("%s: %s", when, diff)
			}
		}
	}
	holes(engines[0], prompts[0], func(when string) { check(when, prompts[:3]...) })

	rng := rand.New(rand.NewPCG(7, 7))
	for round := range 120 {
		e := engines[rng.IntN(len(engines))]
		var touched [][]uint32
		for range 1 + rng.IntN(4) {
			p := prompts[rng.IntN(len(prompts))]
			touched = append(touched, p)
			randomStep(rng, e, p)
		}
		e.settle(touched...)
		check(fmt.Sprintf("round %d", round), touched...)
	}
	check("at the end", prompts...)
}

// holes walks through the cases of promise 1 by name.
func holes(e *handDriven, p []uint32, check func(string)) {
	step := func(when string, do func()) {
		e.tb.Helper()
		do()
		e.settle(p)
		check(when)
	}
	const device, host = indexer.Device, indexer.Host
	step("a stored prompt", func() { e.store(p, 0, 12, device) })
	step("a hole", func() { e.remove(p, device, 3) })
	step("the hole refilled, the tail was never announced again", func() { e.store(p, 3, 4, device) })
	step("the first block gone", func() { e.remove(p, device, 0) })
	step("the first block back", func() { e.store(p, 0, 1, device) })
	step("two holes", func() { e.remove(p, device, 2, 7) })
	step("the later hole refilled", func() { e.store(p, 7, 8, device) })
	step("the earlier hole refilled", func() { e.store(p, 2, 3, device) })
	step("copies in the host tier", func() { e.store(p, 4, 9, host) })
	step("a device hole that the host tier covers", func() { e.remove(p, device, 5) })
	step("a host hole behind it", func() { e.remove(p, host, 7) })
	step("nothing", func() { e.clear() })
	step("a part of it again", func() { e.store(p, 0, 5, device) })
}

// randomStep adds something that an engine could do to its batch.
func randomStep(rng *rand.Rand, e *handDriven, p []uint32) {
	tier := indexer.Device
	if rng.IntN(4) == 0 {
		tier = indexer.Host
	}
	blocks := len(p) / blockTokens
	switch n := rng.IntN(100); {
	case n < 55:
		from := 0
		if rng.IntN(3) == 0 {
			from = rng.IntN(blocks)
		}
		e.store(p, from, from+1+rng.IntN(blocks-from), tier)
	case n < 99:
		var gone []int
		for range 1 + rng.IntN(3) {
			gone = append(gone, rng.IntN(blocks))
		}
		e.remove(p, tier, gone...)
	default:
		e.clear()
	}
}

// difference compares the answer for a prompt with what the engines said.
func difference(tb testing.TB, url, name string, told *model.Model[string], engines []*handDriven, p []uint32) string {
	tb.Helper()
	ans, locals := ask(tb, url, name, p), localsOf(p)
	for _, e := range engines {
		w := told.Walk(e.id, locals)
		if got := ans.Scores[e.id]["0"]; got != w[indexer.Device]*blockTokens {
			return fmt.Sprintf("prompt %d: engine %s scores %d tokens, holds %d", p[0], e.id, got, w[indexer.Device]*blockTokens)
		}
		i := ans.Instances[e.id]
		if i.GPU != w[indexer.Device]*blockTokens || i.CPU != w[indexer.Host]*blockTokens || i.Disk != w[indexer.External]*blockTokens || i.Longest != i.Disk {
			return fmt.Sprintf("prompt %d: engine %s answers %+v, holds %v blocks by tier", p[0], e.id, i, w)
		}
	}
	return ""
}
