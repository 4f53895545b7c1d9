package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvcluster/kvcluster/cmd/internal/node"
	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/router/contract"
	"github.com/kvcluster/kvcluster/transport"
	"github.com/kvcluster/kvcluster/transport/engine"
	"github.com/kvcluster/kvcluster/transport/engine/encode"
)

// The HTTP contract, the same table as package router runs over plain maps: on a node
// alone, and at every node of a cluster of five.
func TestContract(t *testing.T) {
	for _, nodes := range []int{1, 5} {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			urls := startNodes(t, nodes, func(c *node.Config) { c.Router.TestEndpoints = true })
			s := &contractSite{urls: urls, net: newSockets(t), engines: map[workerID]*contractEngine{}}
			t.Cleanup(func() { s.close(t) })
			contract.Run(t, contract.Site{
				Nodes: nodes, Do: s.do, Endpoint: s.endpoint, Store: s.store, Remove: s.remove, Patience: 10 * time.Second,
			})
		})
	}
}

// contractSite is nodes and the engines that publish to them.
type contractSite struct {
	urls    []string
	net     transport.Network
	engines map[workerID]*contractEngine
}

type contractEngine struct {
	pub transport.Publisher
	seq uint64
}

func (s *contractSite) close(t testing.TB) {
	for id, e := range s.engines {
		if err := e.pub.Close(); err != nil {
			t.Errorf("engine %v: close: %v", id, err)
		}
	}
}

func (s *contractSite) do(t testing.TB, at int, r contract.Request) contract.Answer {
	req, err := http.NewRequest(r.Method, s.urls[at]+r.Path, strings.NewReader(r.Body))
	if err != nil {
		t.Fatal(err)
	}
	if r.ContentType != "" {
		req.Header.Set("Content-Type", r.ContentType)
	}
	if r.Header[0] != "" {
		req.Header.Set(r.Header[0], r.Header[1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return contract.Answer{Status: resp.StatusCode, Header: resp.Header, Body: string(body)}
}

func (s *contractSite) endpoint(t testing.TB, instance string, rank uint32) (string, string) {
	id := workerID{instance, fmt.Sprint(rank)}
	e := s.engines[id]
	if e == nil {
		pub, err := s.net.NewPublisher(transport.PublisherConfig{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0", FourFrames: true})
		if err != nil {
			t.Fatal(err)
		}
		e = &contractEngine{pub: pub}
		s.engines[id] = e
	}
	return e.pub.Endpoint(), e.pub.ReplayEndpoint()
}

// names are an engine's names of blocks: of their prefixes, namespace included.
func names(b contract.Blocks) (out []uint64) {
	h := uint64(0x9e3779b97f4a7c15)
	for _, l := range b.Locals() {
		h = (h ^ l) * 0xff51afd7ed558ccd
		h ^= h >> 33
		out = append(out, h)
	}
	return out
}

func (s *contractSite) store(t testing.TB, b contract.Blocks) {
	t.Helper()
	format, size := encode.VLLMMap, b.Group.BlockSize
	ev := encode.Event{Kind: engine.Stored, Hashes: names(b)[b.From:], Group: -1, SpecKind: "full_attention", BlockSize: uint32(size), LoraName: b.Lora, Bigram: b.Bigram}
	end := b.To * size
	if b.Bigram {
		format, ev.SpecKind = encode.SGLangMap, ""
		end++
	}
	ev.Tokens, ev.Medium = b.Tokens[b.From*size:end], format.Medium(b.Tier)
	if b.From > 0 {
		ev.HasParent, ev.Parent = true, names(b)[b.From-1]
	}
	if b.Lora != "" || b.Salt != "" {
		for i := b.From; i < b.To; i++ {
			var keys []encode.Key
			if b.Lora != "" {
				keys = append(keys, encode.Key{Text: b.Lora})
			}
			if i == 0 && b.Salt != "" {
				keys = append(keys, encode.Key{Text: "dynamo-cache-salt:" + b.Salt})
			}
			ev.ExtraKeys = append(ev.ExtraKeys, keys)
		}
	}
	s.publish(t, b, format, ev)
	s.await(t, b, true)
}

func (s *contractSite) remove(t testing.TB, b contract.Blocks) {
	t.Helper()
	s.publish(t, b, encode.VLLMMap, encode.Event{Kind: engine.Removed, Hashes: names(b)[b.From:], Medium: encode.VLLMMap.Medium(b.Tier), Group: -1})
	s.await(t, b, false)
}

func (s *contractSite) publish(t testing.TB, b contract.Blocks, format encode.Format, ev encode.Event) {
	t.Helper()
	e := s.engines[workerID{b.Instance, fmt.Sprint(b.Rank)}]
	payload := encode.Append(nil, format, &encode.Batch{Time: float64(time.Now().UnixMicro()) / 1e6, Rank: int64(b.Rank), Events: []encode.Event{ev}})
	if err := e.pub.Publish("", e.seq, payload); err != nil {
		t.Fatalf("engine %s: publish: %v", b.Instance, err)
	}
	e.seq++
}

// await returns when every node says of every one of the blocks that it is held in the
// tier, or that it is not.
func (s *contractSite) await(t testing.TB, b contract.Blocks, held bool) {
	t.Helper()
	tier := [indexer.NumTiers]string{"device", "host_pinned", "disk", "external"}[b.Tier]
	body := map[string]any{"model_name": b.Group.Model, "instance_id": b.Instance, "dp_rank": b.Rank, "block_hashes": b.Locals()}
	if b.Group.RoutingGroup != "" {
		body["routing_group"] = b.Group.RoutingGroup
	}
	for _, url := range s.urls {
		await(t, 20*time.Second, func() string {
			var ans struct{ Path []struct{ Tiers []string } }
			code, text := call(t, "POST", url+"/explain", body, &ans)
			if code != 200 || len(ans.Path) < b.To {
				return fmt.Sprintf("%s: explain: HTTP %d %s", url, code, text)
			}
			for i := b.From; i < b.To; i++ {
				found := false
				for _, x := range ans.Path[i].Tiers {
					found = found || x == tier
				}
				if found != held {
					return fmt.Sprintf("%s: block %d of instance %s rank %d, want %v in tier %s: %s", url, i, b.Instance, b.Rank, held, tier, text)
				}
			}
			return ""
		})
	}
}
