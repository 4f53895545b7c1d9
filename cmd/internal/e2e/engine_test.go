package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/model"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
	"github.com/kvcluster/kvcluster/transport/zmq"
)

// blockTokens is the block size of the prompts below.
const blockTokens = 4

// makePrompt makes a prompt of so many blocks; equal arguments make equal prompts.
// A branch shares the first `shared` blocks with the family's other branches.
func makePrompt(family, branch, blocks, shared int) []uint32 {
	p := make([]uint32, 0, blocks*blockTokens)
	for b := range blocks {
		for k := range blockTokens {
			tok := uint32(family)<<20 | uint32(b*blockTokens+k)
			if b >= shared {
				tok |= uint32(branch+1) << 13
			}
			p = append(p, tok)
		}
	}
	return p
}

func localsOf(prompt []uint32) []uint64 { return model.LocalHashes(prompt, blockTokens, "", "") }

// engineHashes names the blocks of a prompt as an engine would: by their prefix.
func engineHashes(prompt []uint32) []uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	var out []uint64
	for _, l := range localsOf(prompt) {
		h = (h ^ l) * 0xff51afd7ed558ccd
		h ^= h >> 33
		out = append(out, h)
	}
	return out
}

// handDriven is an engine whose every batch a test decides. What it publishes goes to
// its judge first. One goroutine uses it.
type handDriven struct {
	tb  testing.TB
	net transport.Network
	id  string
	url string // of the node that it registers at
	// owners are the nodes at each of which a batch must be seen to be applied; nil = all
	// of the cluster that url belongs to: any of the owners may answer the next query.
	owners   func() []string
	model    string
	format   encode.Format
	noReplay bool
	pub      transport.Publisher
	seq      uint64
	told     *model.Model[string] // what it said so far; nil = nobody asks
	pending  []encode.Event
	events   []model.Event
	markers  [][]uint32 // held only to see that batches were applied
	marked   uint32
	// before is called with each event that the judge takes in, before the batch of it is
	// published: a reader may meet the node in the middle of a batch.
	before func()
}

// newSockets opens a network for the engines of a test.
func newSockets(tb testing.TB) transport.Network {
	tb.Helper()
	network, err := zmq.New(zmq.Config{Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := network.Close(); err != nil {
			tb.Errorf("network: %v", err)
		}
	})
	return network
}

// newHandDriven opens an engine and registers it; it returns once the node listens.
func newHandDriven(tb testing.TB, net transport.Network, url, model string, id int, edit func(*handDriven)) *handDriven {
	tb.Helper()
	e := &handDriven{tb: tb, net: net, id: strconv.Itoa(id), url: url, model: model, format: encode.VLLMMap}
	if edit != nil {
		edit(e)
	}
	e.open("tcp://127.0.0.1:0", "tcp://127.0.0.1:0")
	tb.Cleanup(func() { e.close() })
	e.register()
	return e
}

func (e *handDriven) open(endpoint, replay string) {
	e.tb.Helper()
	if e.noReplay {
		replay = ""
	}
	pub, err := e.net.NewPublisher(transport.PublisherConfig{Endpoint: endpoint, ReplayEndpoint: replay, FourFrames: true})
	if err != nil {
		e.tb.Fatalf("engine %s: %v", e.id, err)
	}
	e.pub = pub
}

func (e *handDriven) close() {
	if e.pub == nil {
		return
	}
	if err := e.pub.Close(); err != nil {
		e.tb.Errorf("engine %s: close: %v", e.id, err)
	}
	e.pub = nil
}

func (e *handDriven) register() {
	e.tb.Helper()
	body := map[string]any{"instance_id": e.id, "endpoint": e.pub.Endpoint(), "model_name": e.model, "block_size": blockTokens}
	if r := e.pub.ReplayEndpoint(); r != "" {
		body["replay_endpoint"] = r
	}
	if status, ans := call(e.tb, "POST", e.url+"/register", body, nil); status != 201 {
		e.tb.Fatalf("register %s: HTTP %d %s", e.id, status, ans)
	}
	e.awaitStatus("active")
}

func (e *handDriven) awaitStatus(want string) {
	e.tb.Helper()
	await(e.tb, 20*time.Second, func() string {
		if l := listenerOf(e.tb, e.url, e.id); l.Status != want {
			return fmt.Sprintf("stream of %s is %s, want %s (%s)", e.id, l.Status, want, l.LastError)
		}
		return ""
	})
}

// listener is a rank's stream as /workers shows it.
type listener struct {
	Endpoint     string
	Status       string
	LastError    string `json:"last_error"`
	Batches      uint64
	Events       uint64
	Gaps         uint64
	Lives        uint64
	Mismatches   uint64  `json:"block_size_mismatches"`
	Acknowledged *uint64 `json:"acknowledged_sequence"`
	Held         map[string]uint64
	Rejected     map[string]uint64
	Degraded     string
	Warnings     []string
}

// listenerOf returns rank 0 of a worker.
func listenerOf(tb testing.TB, url, id string) (l listener) {
	tb.Helper()
	var ws []struct {
		Instance  any `json:"instance_id"`
		Listeners map[string]listener
	}
	call(tb, "GET", url+"/workers", nil, &ws)
	for _, w := range ws {
		if f, ok := w.Instance.(float64); ok && strconv.FormatFloat(f, 'f', -1, 64) == id || w.Instance == id {
			return w.Listeners["0"]
		}
	}
	return listener{Status: "not there"}
}

// store adds a store of blocks [from, to) of a prompt to the batch.
func (e *handDriven) store(prompt []uint32, from, to int, tier indexer.Tier) {
	names, locals := engineHashes(prompt), localsOf(prompt)
	ev := encode.Event{
		Kind: engine.Stored, Hashes: names[from:to], Medium: e.format.Medium(tier), Group: -1, SpecKind: "full_attention",
		Tokens: prompt[from*blockTokens : to*blockTokens], BlockSize: blockTokens,
	}
	told := model.Event{Kind: model.Stored, Tier: int(tier), Engines: names[from:to], Locals: locals[from:to]}
	if from > 0 {
		ev.HasParent, ev.Parent = true, names[from-1]
		told.HasParent, told.Parent = true, names[from-1]
	}
	e.pending, e.events = append(e.pending, ev), append(e.events, told)
}

// remove adds a removal of blocks of a prompt to the batch.
func (e *handDriven) remove(prompt []uint32, tier indexer.Tier, blocks ...int) {
	names := engineHashes(prompt)
	var gone []uint64
	for _, b := range blocks {
		gone = append(gone, names[b])
	}
	e.pending = append(e.pending, encode.Event{Kind: engine.Removed, Hashes: gone, Medium: e.format.Medium(tier), Group: -1})
	e.events = append(e.events, model.Event{Kind: model.Removed, Tier: int(tier), Engines: gone})
}

// clear adds the end of everything to the batch.
func (e *handDriven) clear() {
	e.pending = append(e.pending, encode.Event{Kind: engine.Cleared, Group: -1})
	e.events = append(e.events, model.Event{Kind: model.Cleared, Tier: model.AllTiers})
	e.markers = nil
}

// payload ends the batch and tells the judge.
func (e *handDriven) payload() []byte {
	if e.told != nil {
		for _, ev := range e.events {
			e.told.Apply(e.id, ev)
			if e.before != nil {
				e.before()
			}
		}
	}
	out := encode.Append(nil, e.format, &encode.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Events: e.pending})
	e.pending, e.events = nil, nil
	return out
}

// send publishes the batch.
func (e *handDriven) send() {
	if err := e.pub.Publish("", e.seq, e.payload()); err != nil {
		e.tb.Errorf("engine %s: publish: %v", e.id, err)
	}
	e.seq++
}

// withhold keeps the batch for replay and does not send it.
func (e *handDriven) withhold() {
	if err := e.pub.Record("", e.seq, e.payload()); err != nil {
		e.tb.Errorf("engine %s: record: %v", e.id, err)
	}
	e.seq++
}

// forget makes the engine a new one: nothing held, nothing to replay.
func (e *handDriven) forget() {
	e.markers, e.pending, e.events = nil, nil, nil
	e.seq = 0
	if e.told != nil {
		e.told.Remove(e.id)
	}
	if e.before != nil {
		e.before()
	}
}

// restartInPlace is a restart that nobody can see at the sockets.
func (e *handDriven) restartInPlace() {
	e.forget()
	if err := e.pub.ForgetReplay(); err != nil {
		e.tb.Errorf("engine %s: %v", e.id, err)
	}
}

// die closes the sockets; comeBack opens new ones on the same ports.
func (e *handDriven) die() (endpoint, replay string) {
	endpoint, replay = e.pub.Endpoint(), e.pub.ReplayEndpoint()
	e.close()
	e.forget()
	return endpoint, replay
}

// mark adds to the batch, for each prompt, the store of a block that lies in the same
// partition as the prompt, so that frames reach it in the same order; earlier ones go.
// The function that it returns says whether all of them can be seen.
func (e *handDriven) mark(prompts ...[]uint32) (missing func() string) {
	for _, m := range e.markers {
		e.remove(m, indexer.Device, 0)
	}
	e.markers = nil
	wanted := map[uint32]bool{}
	for _, p := range prompts {
		wanted[partitionOf(p)] = true
	}
	for _, at := range slices.Sorted(maps.Keys(wanted)) {
		m := make([]uint32, blockTokens)
		for {
			e.marked++
			n, _ := strconv.ParseUint(e.id, 10, 32)
			m[0], m[1], m[2] = 1<<31, e.marked, uint32(n)
			if partitionOf(m) == at {
				break
			}
		}
		e.markers = append(e.markers, m)
		e.store(m, 0, 1, indexer.Device)
	}
	markers := slices.Clone(e.markers)
	return func() string {
		for len(markers) > 0 {
			for _, url := range e.everywhere() {
				ans, err := tryAsk(url, e.model, markers[0])
				if err != nil || ans.Scores[e.id]["0"] != blockTokens {
					return fmt.Sprintf("the last batch of engine %s, number %d, is not applied at %s (%v)", e.id, e.seq-1, url, err)
				}
			}
			markers = markers[1:]
		}
		return ""
	}
}

func (e *handDriven) everywhere() []string {
	if e.owners == nil {
		return nodesOf(e.url)
	}
	return e.owners()
}

// partitionOf is where a chain of the first registered model lives.
func partitionOf(prompt []uint32) uint32 {
	const firstGroup = 1
	return shard.Layout{Partitions: shard.DefaultPartitions}.Partition(firstGroup, localsOf(prompt[:blockTokens])[0], 0)
}

// settle publishes what is pending and returns when it and all before is applied in
// the partitions of the prompts.
func (e *handDriven) settle(prompts ...[]uint32) {
	e.tb.Helper()
	missing := e.mark(prompts...)
	e.send()
	await(e.tb, 20*time.Second, missing)
}

// awaitBatches returns when all batches of an engine that never restarted have been
// translated: for tests in which blocks may go by themselves, markers included.
func (e *handDriven) awaitBatches() {
	e.tb.Helper()
	await(e.tb, 20*time.Second, func() string {
		if l := listenerOf(e.tb, e.url, e.id); l.Batches < e.seq {
			return fmt.Sprintf("%d of %d batches of engine %s have come", l.Batches, e.seq, e.id)
		}
		return ""
	})
}

// score asks the node how many leading blocks of a prompt the engine holds.
func (e *handDriven) score(prompt []uint32) int {
	e.tb.Helper()
	return ask(e.tb, e.url, e.model, prompt).Scores[e.id]["0"] / blockTokens
}

// ask queries a prompt of plain tokens. An answer that says it lacks something, as a
// cluster on a busy machine may for a moment, is asked for again.
func ask(tb testing.TB, url, model string, prompt []uint32) (ans answer) {
	tb.Helper()
	await(tb, 10*time.Second, func() string {
		var err error
		if ans, err = tryAsk(url, model, prompt); err != nil {
			tb.Fatalf("query: %v", err)
		}
		if ans.Partial || ans.Stale {
			return fmt.Sprintf("%s: partial %v, stale %v, missing %q", url, ans.Partial, ans.Stale, ans.Missing)
		}
		return ""
	})
	return ans
}

// tryAsk is ask where a node may have been killed.
func tryAsk(url, model string, prompt []uint32) (ans answer, err error) {
	resp, err := http.Post(url+"/query", "application/json", bytes.NewReader(promptBody(model, prompt)))
	if err != nil {
		return ans, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return ans, err
	case resp.StatusCode != 200:
		return ans, fmt.Errorf("HTTP %d %s", resp.StatusCode, body)
	}
	return ans, json.Unmarshal(body, &ans)
}

func promptBody(model string, prompt []uint32) []byte {
	b := append(make([]byte, 0, 11*len(prompt)+64), `{"model_name":"`...)
	b = append(append(b, model...), `","token_ids":[`...)
	for i, tok := range prompt {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendUint(b, uint64(tok), 10)
	}
	return append(b, "]}"...)
}
