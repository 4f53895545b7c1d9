package router

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/kvcluster/kvcluster/indexer"
	"github.com/kvcluster/kvcluster/shard/catalog"
)

func TestMooncakeLongPrefix(t *testing.T) {
	f := setup(t, Config{})
	f.register("1", 0)
	path := make([]uint64, 300)
	for i := range path {
		path[i] = uint64(i + 1)
		tier := indexer.Device
		if i%2 == 1 {
			tier = indexer.Host
		}
		f.fake.hold("1", 0, tier, i, path[:i+1]...)
	}
	list := strings.Trim(strings.ReplaceAll(fmt.Sprint(path), " ", ","), "[]")
	f.post("/query_by_hash", `{"model":"m","block_hashes":[`+list+`,7,8]}`).want(t, 200, `{"data":{"1":{"longest_matched":1200,"GPU":600,"DP":{"0":600},"CPU":600,"DISK":0}}}`)
}

// What a Mooncake client registers is all in the catalog, which every node has.
func TestMooncakeRegistration(t *testing.T) {
	f := setup(t, Config{})
	f.mustPost("/register", `{"endpoint":"tcp://1.1.1.1:5557","replay_endpoint":"tcp://1.1.1.1:5558","modelname":"deepseek","block_size":4,
	  "type":"SGLang","instance_id":"node2","dp_rank":1,"tenant_id":"default","lora_name":"sql","additionalsalt":"w8a8"}`, 200)
	b, err := msgpack.Marshal(map[string]any{
		"endpoint": "tcp://1.1.1.1:5559", "type": "vLLM", "modelname": "deepseek", "instance_id": "node3", "block_size": 4, "dp_rank": 0,
		"hash_profile": map[string]any{"strategy": "vllm_v1", "algorithm": "sha256_cbor", "python_hash_seed": "00", "index_projection": "low64_be"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if a := f.do("POST", "/register", "application/msgpack", string(b)); a.status != 200 {
		t.Fatalf("%d %q", a.status, a.body)
	}
	group := catalog.GroupKey{Model: "deepseek", RoutingGroup: "default"}
	for instance, want := range map[string]catalog.Registration{
		"node2": {
			Instance: "node2", Rank: 1, Group: group, BlockSize: 4, Endpoint: "tcp://1.1.1.1:5557", ReplayEndpoint: "tcp://1.1.1.1:5558",
			Lora: "sql", Salt: "w8a8", EngineType: "SGLang",
		},
		"node3": {Instance: "node3", Group: group, BlockSize: 4, Endpoint: "tcp://1.1.1.1:5559", EngineType: "vLLM", HashSeed: "00"},
	} {
		w, _ := f.fake.View().Worker(instance)
		if d := cmp.Diff(want, w.Ranks[0].Registration); d != "" {
			t.Errorf("%s registered (-want +got):\n%s", instance, d)
		}
	}
}
