package e2e

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/chaos/oplist"
	"github.com/kvcluster/kvcluster/chaos/trace"
	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/indexer/blockhash"
	"github.com/kvcluster/kvcluster/shard"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

var fullLists = flag.Bool("oplist.full", false, "play the whole op lists of the public trace, not the beginning of one")

// The common op list, whose answers are known: through engines' sockets, ingest, fan-out,
// links, owners, search and HTTP. A node alone and every node of a cluster of five give
// the same rows, depths and row hash, and hold the same blocks at the end.
//
// Blocks are of one token, which is the block's number in the list; so contents hash to
// something else than the list says, and which are equal is the same.
func TestOpList(t *testing.T) {
	tr, err := trace.ReadFile(filepath.Join("..", "..", "..", "..", "shared", "traces", oplist.Conversation))
	if errors.Is(err, os.ErrNotExist) {
		tr, err = trace.Generate(trace.DefaultGenerate(600))
	}
	if err != nil {
		t.Fatal(err)
	}
	lists := []oplist.Config{{Copies: 1, Workers: 16, Capacity: 2048}, {Copies: 4, Workers: 128, Capacity: 8192}}
	if !*fullLists {
		tr = tr.Head(600)
		lists = []oplist.Config{{Copies: 2, Workers: 12, Capacity: 500}}
	}
	for _, cfg := range lists {
		l, err := oplist.Build(tr, cfg)
		if err != nil {
			t.Fatal(err)
		}
		want, held, distinct := l.Expected(), l.Totals().Held, l.Totals().Distinct
		if known, ok := oplist.ConversationKnown(cfg); ok && *fullLists && l.Totals().Checksum == known.Totals.Checksum {
			t.Logf("%s: the list whose answers are published", cfg)
			want = known.Answers
		}
		for _, nodes := range []int{1, 5} {
			t.Run(fmt.Sprintf("%s, %d nodes", cfg, nodes), func(t *testing.T) {
				play(t, l, nodes, want, uint64(held), uint64(distinct))
			})
		}
	}
}

// listEngine is one worker of a list.
type listEngine struct {
	pub    transport.Publisher
	seq    uint64
	marks  map[uint32]uint32 // by partition, the token of the block that marks how far it is
	marked uint32
}

const (
	listModel = "oplist"
	// firstMark is above all block numbers.
	firstMark = 1 << 31
)

func play(t *testing.T, l *oplist.List, nodes int, want oplist.Answers, held, distinct uint64) {
	urls := startNodes(t, nodes, func(c *node.Config) {
		c.Ingest.ProbeAfter, c.Ingest.ProbeMax = 2*time.Second, 10*time.Second
	})
	network := newSockets(t)
	engines := make([]*listEngine, l.Config().Workers)
	for w := range engines {
		pub, err := network.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", FourFrames: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := pub.Close(); err != nil {
				t.Error(err)
			}
		})
		engines[w] = &listEngine{pub: pub, marks: map[uint32]uint32{}, marked: firstMark + uint32(w)<<20}
		body := map[string]any{"instance_id": w, "endpoint": pub.Endpoint(), "replay_endpoint": pub.ReplayEndpoint(), "model_name": listModel, "block_size": 1}
		if status, ans := call(t, "POST", urls[w%nodes]+"/register", body, nil); status != 201 {
			t.Fatalf("register: HTTP %d %s", status, ans)
		}
	}
	for _, url := range urls {
		await(t, 30*time.Second, func() string {
			if n := metricAt(t, url, "dynamo_kvindexer_listeners", `status="active"`); n != float64(len(engines)) {
				return fmt.Sprintf("%v of %d streams are active", n, len(engines))
			}
			return ""
		})
	}
	got := make([]oplist.Answers, nodes)
	marked := 0
	var tokens []uint32
	var batch []encode.Event
	var last *oplist.Op
	flush := func() {
		if len(batch) > 0 {
			engines[last.Worker].publish(t, last.Worker, tokens, batch, urls)
			batch = nil
		}
	}
	for o := range l.All {
		if o.Kind == oplist.Query {
			flush()
			tokens = oplist.AppendBlocks(tokens[:0], o.Contents)
			for at, url := range urls {
				ans, marks := askBody(t, url, promptBody(listModel, tokens))
				marked += marks
				for instance, ranks := range ans.Scores {
					w, err := strconv.ParseUint(instance, 10, 16)
					if err != nil {
						t.Fatal(err)
					}
					got[at].Add(o.Request, uint32(w), uint32(ranks["0"]))
				}
			}
			continue
		}
		ev := encode.Event{Kind: engine.Removed, Hashes: o.Keys, Medium: encode.VLLMMap.Medium(indexer.Device), Group: -1}
		if o.Kind == oplist.Stored {
			ev.Kind, ev.SpecKind, ev.BlockSize = engine.Stored, "full_attention", 1
			ev.HasParent, ev.Parent = o.HasParent, o.Parent
			ev.Tokens = oplist.AppendBlocks(nil, o.Contents)
		}
		batch = append(batch, ev)
		last = &oplist.Op{Worker: o.Worker}
	}
	flush()
	for at, a := range got {
		if a != want {
			t.Errorf("node %d of %d answers %+v, want %+v", at, nodes, a, want)
		}
	}
	for w, e := range engines { // the marks are not of the list
		e.unmark(t, uint32(w))
	}
	await(t, 20*time.Second, func() string {
		st := statusOf(t, urls[0])
		if h, d := st.Index.Held["device"], st.Index.Distinct; h != held || d != distinct || st.Index.Faults != 0 {
			return fmt.Sprintf("%d blocks held, %d distinct, %d faults; want %d, %d, 0", h, d, st.Index.Faults, held, distinct)
		}
		return ""
	})
	t.Logf("%d queries at each of %d nodes: %+v; %d held, %d distinct; %d answers were marked and asked again", l.Totals().Queries, nodes, want, held, distinct, marked)
}

// publish sends a batch, with a new mark in the partition of the prompt that it is about,
// and returns when every node sees the mark, so everything before it.
func (e *listEngine) publish(t *testing.T, worker uint32, prompt []uint32, batch []encode.Event, urls []string) {
	t.Helper()
	p := partitionOfToken(prompt[0])
	if old, ok := e.marks[p]; ok {
		batch = append(batch, removal(old))
	}
	for e.marked++; partitionOfToken(e.marked) != p; {
		e.marked++
	}
	e.marks[p] = e.marked
	batch = append(batch, encode.Event{
		Kind: engine.Stored, Hashes: []uint64{oplist.Mix(uint64(e.marked))}, Tokens: []uint32{e.marked}, BlockSize: 1,
		Medium: encode.VLLMMap.Medium(indexer.Device), Group: -1, SpecKind: "full_attention",
	})
	e.send(t, batch)
	instance := strconv.FormatUint(uint64(worker), 10)
	for _, url := range urls {
		deadline := time.Now().Add(20 * time.Second)
		for {
			ans, err := tryAsk(url, listModel, []uint32{e.marked})
			if err == nil && ans.Scores[instance]["0"] == 1 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("a batch of worker %d is not seen at %s after 20 s: %v", worker, url, err)
			}
			time.Sleep(200 * time.Microsecond)
		}
	}
}

func (e *listEngine) unmark(t *testing.T, worker uint32) {
	t.Helper()
	var batch []encode.Event
	for _, m := range e.marks {
		batch = append(batch, removal(m))
	}
	e.send(t, batch)
}

func removal(mark uint32) encode.Event {
	return encode.Event{Kind: engine.Removed, Hashes: []uint64{oplist.Mix(uint64(mark))}, Medium: encode.VLLMMap.Medium(indexer.Device), Group: -1}
}

func (e *listEngine) send(t *testing.T, batch []encode.Event) {
	t.Helper()
	payload := encode.Append(nil, encode.VLLMMap, &encode.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Rank: -1, Events: batch})
	if err := e.pub.Publish("", e.seq, payload); err != nil {
		t.Fatal(err)
	}
	e.seq++
}

// partitionOfToken is where a chain that begins with a block of one token lives.
func partitionOfToken(token uint32) uint32 {
	const firstGroup = 1
	l := blockhash.AppendTokens(nil, []uint32{token}, 1, blockhash.Seed)
	return shard.Layout{Partitions: shard.DefaultPartitions}.Partition(firstGroup, l[0], 0)
}
