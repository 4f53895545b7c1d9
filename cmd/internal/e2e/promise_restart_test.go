package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// restartCase is a way in which an engine may begin again. It ends with the first
// batch of the new run not yet sent.
type restartCase struct {
	name     string
	format   encode.Format
	noReplay bool
	restart  func(e *handDriven)
}

var restartCases = []restartCase{
	{"in place", encode.VLLMMap, false, func(e *handDriven) { e.restartInPlace() }},
	{"in place, no replay", encode.SGLangMap, true, func(e *handDriven) { e.restartInPlace() }},
	{"died and came back", encode.VLLMArray, false, func(e *handDriven) { e.open(e.die()) }},
	{"died and came back, no replay", encode.VLLMMap, true, func(e *handDriven) {
		endpoint, replay := e.die()
		e.awaitStatus("pending")
		e.open(endpoint, replay)
		e.awaitStatus("active") // what it publishes before is lost for good
	}},
	{"came back and went past the old sequence unseen", encode.SGLangArray, false, func(e *handDriven) {
		endpoint, replay := e.die()
		e.open(endpoint, replay)
		for range 30 {
			e.withhold() // batches without events: heartbeats
		}
	}},
	{"clears first and counts from a clock", encode.TensorRT, false, func(e *handDriven) {
		e.open(e.die())
		e.seq = uint64(time.Now().UnixNano())
		e.clear()
		e.send()
	}},
	{"twice in a row", encode.VLLMMap, false, func(e *handDriven) {
		e.restartInPlace()
		e.store(makePrompt(9, 0, 3, 0), 0, 3, indexer.Device)
		e.send()
		e.restartInPlace()
	}},
	{"registered anew", encode.VLLMMap, false, func(e *handDriven) {
		e.restartInPlace()
		if status, ans := call(e.tb, "POST", e.url+"/unregister", map[string]any{"instance_id": e.id, "model_name": e.model}, nil); status != 200 {
			e.tb.Fatalf("unregister: HTTP %d %s", status, ans)
		}
		e.register()
	}},
}

// Promise 6: when a worker has restarted, claims of its earlier life are never credited
// again, and nobody has to do anything for it.
func TestPromise6RestartNeverCreditsEarlierLife(t *testing.T) {
	for _, c := range restartCases {
		t.Run(c.name, func(t *testing.T) { restarts(c, t, nil) })
	}
	in := restartCases[0]
	check := func(tb testing.TB, edit func(*node.Config)) { restarts(in, tb, edit) }
	mustFail(t, "a life inherits what the earlier one held", heir(), check)
	mustFail(t, "restarts are not noticed", seamless, check)
}

func restarts(c restartCase, tb testing.TB, edit func(*node.Config)) {
	url := startNode(tb, edit)
	told := model.New[string](model.Config{})
	e := newHandDriven(tb, newSockets(tb), url, "restart", 31, func(e *handDriven) {
		e.format, e.noReplay, e.told = c.format, c.noReplay, told
	})
	old, fresh := makePrompt(1, 0, 12, 6), makePrompt(1, 1, 12, 6)
	e.store(old, 0, 12, indexer.Device)
	e.store(old, 0, 12, indexer.Host)
	e.settle(old)
	if diff := difference(tb, url, e.model, told, []*handDriven{e}, old); diff != "" {
		tb.Fatalf("before the restart: %s", diff)
	}
	c.restart(e)
	e.store(fresh, 0, 3, indexer.Device)
	e.settle(fresh)
	check := func(when string) {
		tb.Helper()
		for i := range 30 {
			for _, p := range [][]uint32{old, fresh} {
				if diff := difference(tb, url, e.model, told, []*handDriven{e}, p); diff != "" {
					tb.Fatalf("%s, query %d: %s", when, i, diff)
				}
			}
		}
	}
	check("after the first batch of the new life")
	e.store(fresh, 3, 12, indexer.Device)
	e.remove(fresh, indexer.Device, 1)
	e.settle(fresh)
	check("after a second batch")
	e.store(fresh, 1, 2, indexer.Device)
	e.settle(fresh)
	check("after a third batch")
	e.awaitStatus("active")
}

// An engine that restarts and then says nothing is found by asking its replay socket.
func TestPromise6SilentRestartIsFound(t *testing.T) {
	url := startNode(t, nil)
	e := newHandDriven(t, newSockets(t), url, "silent", 41, nil)
	p := makePrompt(1, 0, 12, 6)
	e.store(p, 0, 12, indexer.Device)
	e.settle(p)
	e.restartInPlace()
	await(t, 20*time.Second, func() string {
		if n := e.score(p); n != 0 {
			return fmt.Sprintf("%d blocks of the earlier life are credited", n)
		}
		return ""
	})
}
